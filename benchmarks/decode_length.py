"""Decode cost a token against sequence length: the engine's K/V slabs, with and without fixed shapes, and a full re-forward for contrast.

python benchmarks/decode_length.py [--model DIR] [--threads 1]

With a cache the cost should be about flat in the length (attention reads grow, everything else does not); without one every
token pays for all before it. `plain shapes` are products of as many rows as there are, whose last bits depend on that number: what the
engine would do if a row's numbers might depend on its neighbours.

Each figure is the median over steps of the CPU time of the model's forward for one token of each row, divided by the batch, in
microseconds. Runs in this process, without HTTP.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from rlflow.engines.rollout.embedded import fixed_shapes
from rlflow.engines.rollout.embedded import runner as runner_module
from rlflow.engines.rollout.embedded.config import ServerConfig
from rlflow.engines.rollout.embedded.fixed_shapes import TiledLinear
from rlflow.engines.rollout.embedded.runner import ModelRunner
from rlflow.engines.tiny import make_tiny_model

LENGTHS, BATCHES, STEPS = (64, 256, 1024), (1, 16), 25


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode cost a token against sequence length.")
    parser.add_argument("--model", type=Path, help="Hugging Face folder; a tiny one is made if left out")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = args.model or make_tiny_model(Path(folder) / "tiny", alphabet="0123456789+-=", seed=0, max_position_embeddings=2048)
        runner, plain = ModelRunner(ServerConfig(model_path=path)), ModelRunner(ServerConfig(model_path=path))
        with_plain_shapes(plain)
        print(f"{path.name}: {runner.model.num_parameters():,} parameters, {args.threads} thread(s); µs of CPU a token")
        print(f"{'batch':>5} {'':<14}" + "".join(f"{f'length {n}':>14}" for n in LENGTHS) + f"{'last / first':>14}")
        for batch in BATCHES:
            fixed, other = zip(*((cached(runner, batch, n), cached(plain, batch, n)) for n in LENGTHS), strict=True)
            show(batch, "K/V cache", list(fixed))
            show(batch, "plain shapes", list(other))
            print(f"{'':>5} {'fixed / plain':<14}" + "".join(f"{a / b:>14.2f}" for a, b in zip(fixed, other, strict=True)))
            show(batch, "re-forward", [reforward(path, batch, n) for n in LENGTHS])


def show(batch: int, name: str, micros: list[float]) -> None:
    print(f"{batch:>5} {name:<14}" + "".join(f"{m:>14.1f}" for m in micros) + f"{micros[-1] / micros[0]:>14.2f}")


def with_plain_shapes(runner: ModelRunner) -> None:
    """Linear layers in one product, attention over all positions in one, no rows to fill up a tile."""
    for module in runner.model.modules():
        if isinstance(module, TiledLinear):
            module.__class__ = nn.Linear
    decode = runner.decode

    def plain(tokens: Any, position: Any) -> Any:
        with patch.object(fixed_shapes, "spans", lambda length: [(0, length)]), patch.object(runner_module, "filled_up", lambda rows: rows):
            return decode(tokens, position)

    runner.decode = plain  # type: ignore[method-assign]


def cached(runner: ModelRunner, batch: int, length: int) -> float:
    """Decode steps around `length` after a prefill of that many tokens."""
    prompts = [np.random.default_rng(row).integers(3, 10, length).tolist() for row in range(batch)]
    runner.cache.free()
    runner.cache.reserve(batch, length + STEPS, keep=0)
    runner.prefill(prompts, 0, [False] * batch)
    tokens = np.full(batch, 5)
    return per_token(lambda step: runner.decode(tokens, np.full(batch, length + step)), batch)


def reforward(path: Path, batch: int, length: int) -> float:
    """The whole sequence again for each token, with transformers' own attention and no cache."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.randint(3, 10, (batch, length))
    return per_token(lambda step: model(ids, use_cache=False, logits_to_keep=1), batch)


def per_token(step: Callable[[int], object], batch: int) -> float:
    seconds = []
    for i in range(STEPS):
        begin = time.process_time()
        step(i)
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds[3:]) / batch * 1e6


if __name__ == "__main__":
    main()
