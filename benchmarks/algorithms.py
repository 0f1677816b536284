"""Advantages and losses beside verl's functions, on one long-tailed batch, in one run.

    python benchmarks/algorithms.py [--rows 1024] [--width 4096] [--times 7] [--only gae,whiten] [--peer-mask int64]

The batch has `rows` answers, 8 a prompt, right-padded to `width`; lengths are log-normal (median width / 8, σ = 1 in the logarithm, cut at
width), so that about a fifth of the padded positions hold a token. What each row of the table calls is in rows_advantage.py and its like.

    ms      median over `times` calls of the processor's time, user and system: one thread, so it is what a clock shows on an idle machine
    peak    what one call needs at most over what was there before: the growth of the peak of resident memory, in a forked child whose
            malloc gives every large block pages of its own. Results are in it.
    ratio   the peer's ms / ours; every peer's result is compared with ours, and one that differs is marked `differs`

verl is no dependency: without it our figures stand alone. To have both, in a virtual environment of its own:

    pip install torch==2.13.0 numpy msgspec && pip install --no-deps verl==0.9.1
    pip install "ray[default]" hydra-core omegaconf accelerate datasets codetiming psutil pyzmq "tensordict==0.10.0"
    pip install "transformers<5.11,>=5.6.1" && pip install --no-deps pillow torchdata loguru dacite peft pylatexenc tensorboard
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from rlflow.data.column import Column

Call = Callable[[], Any]  # one measured call; it returns a Tensor [B, R], a Column or a number
M_MMAP_THRESHOLD = -3  # of mallopt(3)


@dataclass(frozen=True)
class Batch:
    """Right-padded tensors; `column(name)` is the same as a Column."""

    rows: int
    width: int
    peer_mask_dtype: torch.dtype = torch.int64
    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    _columns: dict[str, Column] = field(default_factory=dict)

    @property
    def mask(self) -> torch.Tensor:
        return self.fields["response_mask"]

    @property
    def uid(self) -> torch.Tensor:
        return self.fields["uid"]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.fields[name]

    def peer_mask(self) -> torch.Tensor:
        return self.mask.to(self.peer_mask_dtype)

    def column(self, name: str) -> Column:
        if name not in self._columns:
            dtype, lengths = ("flag" if name == "response_mask" else "f32"), self.mask.sum(-1).numpy()
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            self._columns[name] = Column(dtype, self[name][self.mask].numpy(), offsets)
        return self._columns[name]


@dataclass(frozen=True)
class Row:
    """One line of comparison: how to call ours, by layout, and the peer's, by the name that it has there."""

    name: str
    ours: Mapping[str, Callable[[Batch], Call]]
    peer: Callable[[], Mapping[str, Callable[[Batch], Call]]]  # imports it: ImportError where it is not installed
    tolerance: float = 1e-4


def make_batch(rows: int, width: int, peer_mask: str, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(np.log(width / 8), 1.0, rows)).astype(np.int64), 1, width)
    mask = torch.arange(width) < torch.from_numpy(lengths)[:, None]
    noise = torch.Generator().manual_seed(seed)

    def random() -> torch.Tensor:
        return torch.randn(rows, width, generator=noise) * mask

    rewards = torch.zeros(rows, width)
    rewards[torch.arange(rows), torch.from_numpy(lengths) - 1] = torch.from_numpy(rng.integers(0, 2, rows).astype(np.float32))
    rewards[::8, 0] += 0.25  # no group of equal scores: there verl has rounding noise, and we have 0
    uid = torch.arange(rows) // 8
    fields = {"response_mask": mask, "token_level_rewards": rewards, "uid": uid, "values": random(), "advantages": random()}
    fields["log_probs"] = -random().abs() - 0.1 * mask
    fields["old_log_probs"] = fields["log_probs"] + 0.1 * random()
    return Batch(rows, width, getattr(torch, peer_mask), fields)


# --- measuring ------------------------------------------------------------------------------------------------------------------------
def milliseconds(call: Call, times: int) -> float:
    """Median, after one call that does not count."""
    call()
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return statistics.median(taken) * 1e3


def peak_megabytes(call: Call) -> float:
    """Growth of the peak of resident memory over one call, in a child."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            libc = ctypes.CDLL(None)
            libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)
            call()
            libc.malloc_trim(0)  # what earlier calls left free would serve this one, and not be seen
            before = _resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            kept = call()
            os.write(into, str(_resident("VmHWM") - before).encode())
            status = 0 if kept is not None else 1
        finally:
            os._exit(status)
    os.close(into)
    with os.fdopen(out) as answer:
        grown = answer.read()
    os.waitpid(child, 0)
    return float(grown) / 1024 if grown else float("nan")


def _resident(name: str) -> int:
    """KiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def trained(result: Any, batch: Batch) -> np.ndarray[Any, Any]:
    """What there is to compare: the trained tokens, or the number itself."""
    if isinstance(result, Column):
        return np.asarray(result.values)
    tensor = torch.as_tensor(result).detach()
    return np.asarray((tensor[batch.mask] if tensor.shape == batch.mask.shape else tensor).numpy())


# --- the table ------------------------------------------------------------------------------------------------------------------------
def compare(row: Row, batch: Batch, times: int) -> None:
    reference, fastest, made = None, {}, row.ours
    for layout, make in made.items():
        call = make(batch)
        reference = trained(call(), batch) if reference is None else reference
        fastest[layout] = milliseconds(call, times)
        show(row.name, f"rlflow {layout}", fastest[layout], peak_megabytes(call), "")
    try:
        peers = row.peer()
    except ImportError:
        return
    for name, make in peers.items():
        call = make(batch)
        same = np.allclose(trained(call(), batch), reference, rtol=row.tolerance, atol=row.tolerance)
        taken = milliseconds(call, times)
        ratios = "  ".join(f"{layout} {taken / ours:.1f}x" for layout, ours in fastest.items())
        show(row.name, name, taken, peak_megabytes(call), ratios + ("" if same else "  differs"))


def show(row: str, who: str, ms: float, peak: float, note: str) -> None:
    print(f"{row:<24}{who:<40}{ms:>10.2f}{peak:>10.1f}   {note}", flush=True)


def rows() -> list[Row]:
    import rows_advantage
    import rows_loss

    return [*rows_advantage.ROWS, *rows_loss.ROWS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--only", default="", help="names of rows, comma-separated")
    parser.add_argument("--peer-mask", default="int64", choices=["int64", "float32"], help="dtype of the mask that the peer gets")
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        import verl
    except ImportError:
        print("verl is not installed here: only our own figures. How to have both: `python benchmarks/algorithms.py --help`\n")
    else:
        print(f"verl {verl.__version__} in the same process, its mask {given.peer_mask}")
    batch = make_batch(given.rows, given.width, given.peer_mask)
    tokens = int(batch.mask.sum())
    print(f"B={given.rows} R={given.width}: {tokens} tokens, {tokens / batch.mask.numel():.0%} of the positions; median of {given.times}\n")
    print(f"{'':<24}{'':<40}{'ms':>10}{'peak MB':>10}   ratio")
    for row in rows():
        if not given.only or row.name in given.only.split(","):
            compare(row, batch, given.times)


if __name__ == "__main__":
    main()
