"""Does overlapping rollout and training pay, and what does it cost in staleness?

    python benchmarks/async_overlap.py                     simulated delays, the real controller: max_lag 0 ... 4, three seeds
    python benchmarks/async_overlap.py --sweep             the same over policies, watermarks and a queue, and the best
    python benchmarks/async_overlap.py --median 2000 ...   other delays (benchmarks/simulated.py says what they mean)
    python benchmarks/async_overlap.py --real              reward against wall clock of real runs, with and without correction

    rollout   seconds that the engines need for the tokens of a batch when every slot is taken        bound = max(rollout, train):
    train     seconds of a train step                                                                 no schedule is faster than that

ratio: batches a second to those of max_lag 0. gap: share of the trained tokens by the age of the weights that sampled them, in versions.
Warm-up and the last batches, for which fewer and fewer prompts are admitted, are left out of every figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import real_lag
from simulated import Delays, SimulatedRun

from rlflow.language.stale import Stale
from rlflow.run.controller.state import Config

N, P = 8, 32  # trajectories a group, groups a batch
WARM = 6  # batches before the first that counts
CLOSE = 0.02  # settings whose throughput differs less are called equal, and the less stale one is better
GAPS = range(5)


@dataclass(frozen=True)
class Setting:
    max_lag: int
    watermark: int = 0
    """Trajectories in flight; 0: adaptive, all that admission lets in at most."""
    queue: int = 0
    policy: Stale = "wait"

    def config(self, delays: Delays, batches: int) -> Config:
        engines = tuple(f"engine.{i}" for i in range(delays.engines))
        return Config(
            n=N, groups_per_batch=P, max_lag=self.max_lag, last=batches - 1, engines=engines, watermark=self.watermark, queue=self.queue,
            policy=self.policy,
        )  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """Of one run, per batch and as shares of the time."""

    seconds: float
    rollout: float
    train: float
    trainer_idle: float
    engines_idle: float
    dropped: float
    """Of the prompts drawn, in the whole run."""
    gaps: dict[int, float]
    """Share of the trained tokens by age."""

    @property
    def bound(self) -> float:
        return max(self.rollout, self.train)

    @property
    def mean_gap(self) -> float:
        return sum(gap * share for gap, share in self.gaps.items())


def figures(run: SimulatedRun, delays: Delays, max_lag: int) -> Figures:
    """Of the batches between warm-up and the last ``max_lag + 1``."""
    readings, state = run.readings, run.state
    a, b = readings[WARM - 1], readings[-max_lag - 2]
    seconds, batches, tokens = b.time - a.time, b.batches - a.batches, b.tokens - a.tokens
    gaps = {gap: b.gaps[gap] - a.gaps.get(gap, 0) for gap in b.gaps}
    return Figures(
        seconds=seconds / batches,
        rollout=tokens / batches / delays.peak_rate,
        train=(b.training - a.training) / batches,
        trainer_idle=1 - (b.training - a.training + b.handing_out - a.handing_out) / seconds,
        engines_idle=1 - (b.generated - a.generated) / (delays.peak_rate * seconds),
        dropped=state.totals.dropped.total() / (state.next_uid - state.origin.uid - len(state.pending)),
        gaps={gap: count / sum(gaps.values()) for gap, count in gaps.items()},
    )


def mean_of(runs: Sequence[Figures]) -> Figures:
    gaps = {gap: statistics.fmean(run.gaps.get(gap, 0.0) for run in runs) for gap in {gap for run in runs for gap in run.gaps}}
    numbers = {f.name: statistics.fmean(getattr(run, f.name) for run in runs) for f in dataclasses.fields(Figures) if f.name != "gaps"}
    return Figures(gaps=gaps, **numbers)


def measure(setting: Setting, delays: Delays, batches: int, seeds: Iterable[int]) -> list[Figures]:
    """One run a seed."""
    runs = (SimulatedRun(setting.config(delays, batches), delays, seed).run() for seed in seeds)
    return [figures(run, delays, setting.max_lag) for run in runs]


HEAD = (
    f"{'max_lag':>7} {'stale':>7} {'W':>8} {'queue':>5} {'s/batch':>8} {'ratio':>6} {'min..max':>12} {'/bound':>7} "
    + " ".join(f"{f'gap {gap}':>6}" for gap in GAPS)
    + f" {'older':>6} {'mean gap':>8} {'dropped':>7} {'trainer idle':>12} {'engines idle':>12}"
)


def row(setting: Setting, runs: Sequence[Figures], base: Sequence[Figures]) -> str:
    ratios, mean = [one.seconds / run.seconds for one, run in zip(base, runs, strict=True)], mean_of(runs)
    spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
    shares = " ".join(f"{mean.gaps[gap]:>6.1%}" if gap in mean.gaps else f"{'-':>6}" for gap in GAPS)
    older = sum(share for gap, share in mean.gaps.items() if gap > GAPS[-1])
    return (
        f"{setting.max_lag:>7} {setting.policy:>7} {setting.watermark or 'adaptive':>8} {setting.queue:>5} {mean.seconds:>8.2f} "
        f"{statistics.fmean(ratios):>6.2f} {spread:>12} {mean.seconds / mean.bound:>7.2f} {shares} {older:>6.1%} {mean.mean_gap:>8.2f} "
        f"{mean.dropped:>7.1%} {mean.trainer_idle:>12.1%} {mean.engines_idle:>12.1%}"
    )


def settings(sweep: bool) -> list[Setting]:
    """max_lag 0 ... 4; swept: by what becomes of slow groups too, then by watermarks from three quarters of a batch on, and a queue."""
    if not sweep:
        return [Setting(lag) for lag in GAPS]
    policies: list[Setting] = [Setting(lag, policy=policy) for lag in GAPS[1:] for policy in ("wait", "drop", "correct")]
    watermarks = [round(N * P * times) for times in (0.75, 1.0, 1.5)]
    widths = [Setting(lag, watermark) for lag, watermark in itertools.product(GAPS[1:], watermarks)]
    widths += [Setting(lag, queue=1) for lag in GAPS[1:]]
    return list(dict.fromkeys([Setting(0), *policies, *widths]))


def best_of(results: dict[Setting, list[Figures]]) -> Setting:
    """The least stale of the fastest ones."""
    means = {setting: mean_of(runs) for setting, runs in results.items()}
    fastest = min(mean.seconds for mean in means.values())
    return min((s for s, mean in means.items() if mean.seconds <= fastest * (1 + CLOSE)), key=lambda s: means[s].mean_gap)


def simulated(delays: Delays, batches: int, seeds: Sequence[int], sweep: bool) -> None:
    results: dict[Setting, list[Figures]] = {}
    print(f"{delays}\nn {N}, groups a batch {P}, {batches} batches, seeds {', '.join(map(str, seeds))}\n{HEAD}", flush=True)
    for setting in settings(sweep):
        results[setting] = measure(setting, delays, batches, seeds)
        print(row(setting, results[setting], results[Setting(0)]), flush=True)
    best = best_of(results)
    mean = mean_of(results[best])
    print(
        f"\nbest (fastest; of those within {CLOSE:.0%} the least stale): "
        f"max_lag {best.max_lag}, {best.policy}, W {best.watermark or 'adaptive'}, queue {best.queue}\n"
        f"  rollout {mean.rollout:.2f} s, train {mean.train:.2f} s a batch: bound {mean.bound:.2f} s, measured {mean.seconds:.2f} s; "
        f"idle: trainer {mean.trainer_idle:.1%}, engines {mean.engines_idle:.1%} "
        f"({delays.sync / mean.seconds:.1%} of the time they stand still for new weights)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sweep", action="store_true")
    for one in dataclasses.fields(Delays):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--steps", type=int, default=100, help="of a real run")
    parser.add_argument("--results", type=Path, default=Path("async_overlap.jsonl"), help="of the real runs, a line a cell; those are kept")
    parser.add_argument("--minutes", type=float, default=600.0, help="no real run is started after so many")
    told = parser.parse_args()
    if told.real:
        print(real_lag.table(real_lag.measure(real_lag.cells(told.seeds), told.steps, told.results, time.time() + 60 * told.minutes)))
        return
    delays = Delays(**{one.name: getattr(told, one.name) for one in dataclasses.fields(Delays)})
    simulated(delays, told.batches, told.seeds, told.sweep)


if __name__ == "__main__":
    main()
