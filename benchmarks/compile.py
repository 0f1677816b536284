"""How long tracing and checking take: `python benchmarks/compile.py [runs]`.

    shipped     every pipeline of pipelines/, pass by pass; wanted: at most 20 ms for the largest
    synthetic   graphs of 250 to 4,000 operators from generated files; wanted: at most 1 s for 1,000, growing as n log n at most
    command     `rlflow check` as a process, from its start to its exit

A synthetic file is straight code, one call a line, as a user's would be. `mixed` is the shape of a real loop, only more of it; each of
the others is one thing that a pass could be quadratic in.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from math import log
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SIZES = (250, 500, 1000, 2000, 4000)
HEAD = '''\
from __future__ import annotations

from typing import Annotated

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.trainers import Torch
from operators.fields import B, ResponseMask, ResponseText, TokenRewards
from operators.filters import keep_mixed
from operators.loss import kl_penalty, ppo_clip
from operators.records import KlRows, ModelRows, PolicyForward, PpoRows, Sample
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from rlflow import Feedback, Loss, Record, RowsT, Tensor, f32, operator, pipeline, roles

from rlflow.language.corrects import Difference

(quality,) = roles("quality")
Quality = Annotated[Tensor, f32[B], quality]


@operator(per="row")
def grade(response_text: ResponseText) -> Quality: ...


@operator(per="row")
def mix(rewards: TokenRewards, quality: Quality, response_mask: ResponseMask) -> TokenRewards: ...


@operator(per="group", rows="filter")
def keep(rows: RowsT, response_mask: ResponseMask) -> RowsT: ...


@operator(per="batch", rows="permute")
def shuffle(rows: RowsT) -> RowsT: ...


@operator(per="batch", sink=True)
def report(quality: Quality) -> None: ...


class imitate(Loss[PolicyForward, PpoRows]):
    """Does not mind whose rows they are."""

    @property
    def corrects(self) -> tuple[Difference, ...]:
        return ("policy",)


class TrainRows(ModelRows, PpoRows):
    """What the forward and the loss read."""


class KlTrainRows(TrainRows, KlRows):
    """The same, with a penalty."""


@pipeline
def loop() -> None:
'''


def mixed(n: int) -> Iterator[str]:
    """A tenth filters of the stream, a half rewards, the rest records, references and policies that are trained."""
    models = max(1, n // 50)
    yield from _start(models)
    yield from _filters(n // 10)
    yield from _rewards(n // 4)
    for i in range(models):
        yield from _model(i, penalty=True)
    yield from _ends(models)


def chain(n: int) -> Iterator[str]:
    """One reward after the other."""
    yield from _start(1)
    yield from _filters(0)
    yield from _rewards(0)
    yield "    graded = grade(ready.response_text)"
    yield from ("    rewards = mix(rewards, graded, ready.response_mask)" for _ in range(n - 20))
    yield from _model(0)
    yield from _ends(1)


def fan_out(n: int) -> Iterator[str]:
    """Many readers of one field."""
    yield from _start(1)
    yield from _filters(0)
    yield from _rewards(0)
    for i in range((n - 20) // 2):
        yield f"    grade_{i} = grade(ready.response_text)"
        yield f"    report(grade_{i})"
    yield from _model(0)
    yield from _ends(1)


def filters(n: int) -> Iterator[str]:
    """Row operators on the stream, each on what the last one kept."""
    yield from _start(1)
    yield from _filters(n - 20)
    yield from _rewards(0)
    yield from _model(0)
    yield from _ends(1)


def orders(n: int) -> Iterator[str]:
    """Records put together anew, and reordered, over and over."""
    yield from _start(1)
    yield from _filters(0)
    yield from _rewards(0)
    yield from _model(0, reorder=(n - 20) // 2)
    yield from _ends(1)


def policies(n: int) -> Iterator[str]:
    """Many policies, each with workers, a feedback and an engine of its own."""
    models = (n - 10) // 11
    yield from _start(models)
    yield from _filters(0)
    yield from _rewards(0)
    for i in range(models):
        yield from _model(i)
    yield from _ends(models)


SHAPES = (mixed, chain, fan_out, filters, orders, policies)


def _start(models: int) -> Iterator[str]:
    yield "    engine = Embedded('engine')"
    for i in range(models):
        yield f"    actor_{i} = Torch('actor_{i}', dp=2)"
        yield f"    policy_{i} = Feedback('policy_{i}', init=actor_{i}.load())"
    yield "    kept = engine.rollout(policy_0.served, dispatch(dataset('digits.parquet', tokenizer='tiny'), n=8))"


def _filters(n: int) -> Iterator[str]:
    yield from ("    kept = keep(kept, kept.response_mask)" for _ in range(n))
    yield "    ready = form_batch(kept, prompts=64)"


def _rewards(n: int) -> Iterator[str]:
    yield "    score = integer_match(ready.response_text, ready.answer, ready.response_mask)"
    yield "    rewards = shape_rewards(score.token_level_scores)"
    for i in range(n):
        yield f"    grade_{i} = grade(ready.response_text)"
        yield f"    rewards = mix(rewards, grade_{i}, ready.response_mask)"


def _model(i: int, *, penalty: bool = False, reorder: int = 0) -> Iterator[str]:
    """One policy: its log-probs, its rows, its update."""
    inputs = "ready.input_ids, ready.position_ids, ready.attention_mask"
    cls, extra, losses = "TrainRows", "", "ppo_clip()" if i == 0 else "imitate()"
    yield "    adv = grpo(rewards, ready.response_mask, ready.uid, traj_uid=ready.traj_uid)"
    yield f"    old = actor_{i}.log_probs(policy_{i}.current, {inputs})"
    if penalty:
        cls, extra, losses = "KlTrainRows", ", ref_log_probs=ref", f"{losses}, kl_penalty(0.1)"
        yield f"    reference_{i} = Torch('reference_{i}')"
        yield f"    ref = reference_{i}.log_probs(reference_{i}.load(), {inputs})"
    of = "input_ids={0}.input_ids, position_ids={0}.position_ids, response_mask={0}.response_mask, is_pad={0}.is_pad".format
    yield f"    rows = {cls}({of('ready')}, old_log_probs=old, advantages=adv.advantages{extra})"
    for _ in range(reorder):
        yield "    rows = shuffle(rows)"
        yield f"    rows = {cls}({of('rows')}, old_log_probs=rows.old_log_probs, advantages=rows.advantages)"
    yield f"    micro = micro_pack(shard(rebalance(pad(rows, multiple=2), pieces=8), on=actor_{i}), max_tokens=4096)"
    yield f"    trained_{i} = actor_{i}.train(policy_{i}.move, micro.loss({losses}))"


def _ends(models: int) -> Iterator[str]:
    for i in range(models):
        yield f"    policy_{i}.close(sync(trained_{i}, engine))" if i == 0 else f"    policy_{i}.close(trained_{i})"


# --- measuring --------------------------------------------------------------------------------------------------------------
def load(source: str, name: str, folder: Path) -> ModuleType:
    """A generated pipeline file, imported."""
    file = folder / f"{name}.py"
    file.write_text(source)
    module = sys.modules[name] = ModuleType(name)
    exec(compile(source, str(file), "exec"), vars(module))
    return module


class Timed(NamedTuple):
    """Of one pipeline. best: of all compiles but the first, in total and pass by pass: what noise there is only adds."""

    calls: int
    fields: int
    first_ms: float
    best_ms: float
    p50_ms: float
    passes: dict[str, float]


def timed(module: ModuleType, name: str, runs: int) -> Timed:
    """Compile once, then `runs` times more."""
    totals: list[float] = []
    passes: dict[str, list[float]] = {}
    for run in range(runs + 1):
        gc.collect()
        start = perf_counter()
        plan = vars(module)[name]()
        totals.append((perf_counter() - start) * 1e3)
        for key, ms in plan.timings_ms.items() if run else ():
            passes.setdefault(key, []).append(ms)
        calls, fields = sum(not node.is_record for node in plan.graph.nodes), len(plan.graph.fields)
        del plan
    return Timed(calls, fields, totals[0], min(totals[1:]), median(totals[1:]), {key: min(each) for key, each in passes.items()})


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of log time over log size, by least squares."""
    xs, ys = [log(x) for x in sizes], [log(y) for y in times]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def shipped(runs: int) -> None:
    """The pipelines of this repository."""
    rows = {name: timed(import_module(f"pipelines.{name}"), name, runs) for name in ("grpo", "ppo", "multiturn")}
    print(f"{'pipeline':10} {'calls':>5} {'fields':>6} {'first ms':>8} {'p50 ms':>7}   best of each pass, ms")
    for name, row in rows.items():
        passes = "  ".join(f"{key} {ms:.2f}" for key, ms in row.passes.items())
        print(f"{name:10} {row.calls:5} {row.fields:6} {row.first_ms:8.1f} {row.p50_ms:7.2f}   {passes}")
    largest = max(rows, key=lambda name: rows[name].calls)
    print(f"largest: {largest}, p50 {rows[largest].p50_ms:.2f} ms over {runs} compiles (wanted: at most 20)")


def synthetic(runs: int) -> None:
    """Each shape at each size."""
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            found = {}
            for size in SIZES:
                module = load(HEAD + "\n".join(shape(size)) + "\n", f"{shape.__name__}_{size}", Path(folder))
                found[size] = timed(module, "loop", runs)
            _print_growth(shape.__name__, (shape.__doc__ or "").strip(), found)


def _print_growth(name: str, what: str, found: dict[int, Timed]) -> None:
    rows = list(found.values())
    calls = [row.calls for row in rows]
    times = {"first ms": [row.first_ms for row in rows], "best ms": [row.best_ms for row in rows]}
    times |= {key: [row.passes[key] for row in rows] for key in rows[0].passes}
    print(f"\n{name}: {what}\n{'calls':>10} " + " ".join(f"{n:8}" for n in calls) + "  exponent")
    for key, each in times.items():
        print(f"{key:>10} " + " ".join(f"{ms:8.1f}" for ms in each) + f"  {exponent(calls, each):.2f}")
    allowed = exponent(calls, [n * log(n) for n in calls])
    print(f"  best grows as n^{exponent(calls, times['best ms']):.2f}; n log n over these sizes is n^{allowed:.2f}")


def command(runs: int) -> None:
    """`rlflow check` in a process of its own."""
    check = [sys.executable, "-m", "rlflow.cli", "check", "pipelines/grpo.py"]
    empty, times = [sys.executable, "-c", "pass"], {}
    for name, argv in (("python -c pass", empty), ("rlflow check pipelines/grpo.py", check)):
        taken = []
        for _ in range(runs):
            start = perf_counter()
            subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
            taken.append((perf_counter() - start) * 1e3)
        times[name] = median(taken)
    print("\n" + "\n".join(f"{name}: {ms:.0f} ms, median of {runs} processes" for name, ms in times.items()))


if __name__ == "__main__":
    given = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    shipped(given * 10)
    synthetic(given)
    command(given)
    print(f"torch imported here: {'torch' in sys.modules}")
    print("peer: none. No framework of this kind checks its loop before it runs, so there is no figure to set beside these.")
