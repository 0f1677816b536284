"""The controller at full size: events through ``decide``, alone and with one ledger transaction each, on simulated engines.

    python benchmarks/controller.py [--events 200000] [--engines 1024] [--in-flight 65536] [--steps 1000000]

    rate     Landed, Failed, Synced, Trained, Saved mixed; events a second of decide, and of decide + ledger; p50, p99, longest
    memory   bytes of state a trajectory in flight
    flat     many small steps: size of the state and of the ledger over them

The simulation around it (which trajectory lands next) is not in the times. Where other processes take the cores, the rate by CPU time says
what is left without them (a wait for the disk is not in it).
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pickle
import pstats
import random
import sys
import tempfile
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import Span, TrajectoryId
from rlflow.run.controller.state import Config, State
from rlflow.run.ledger import Ledger

FAILING = 0.01  # of the attempts
OLDEST_OF = 8  # the next to land is the oldest of so many drawn: groups complete roughly in their order


class World:
    """Engines, trainers and a disk that answer every action well, in a random order; some attempts fail."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.running: list[TrajectoryId] = []
        self.place: dict[TrajectoryId, int] = {}
        self.tags: dict[TrajectoryId, int] = {}
        self.answers: deque[ev.AnyEvent] = deque([ev.RunStarted()])
        self.finished = ""

    def perform(self, actions: Sequence[ev.AnyAction]) -> None:
        for action in actions:
            if type(action) in PERFORM:
                PERFORM[type(action)](self, action)

    def next_event(self) -> ev.AnyEvent:
        """An answer that is outstanding, or a trajectory that lands; both queues move on."""
        if self.answers and (not self.running or self.rng.random() < 0.2):
            return self.answers.popleft()
        size = len(self.running)
        trajectory = min(self.running[int(self.rng.random() * size)] for _ in range(OLDEST_OF))
        tag = self._take_off(trajectory)
        if self.rng.random() < FAILING:
            return ev.Failed(trajectory, "the environment crashed")
        return ev.Landed(trajectory, 1, (Span(tag, 0, 512),))

    def dispatch(self, action: ev.Dispatch) -> None:
        self.place[action.trajectory] = len(self.running)
        self.running.append(action.trajectory)
        self.tags[action.trajectory] = action.version_tag

    def abort(self, action: ev.Abort) -> None:
        if action.trajectory in self.place:
            self._take_off(action.trajectory)

    def _take_off(self, trajectory: TrajectoryId) -> int:
        at, last = self.place.pop(trajectory), self.running.pop()
        if last != trajectory:
            self.running[at], self.place[last] = last, at
        return self.tags.pop(trajectory)


PERFORM: dict[type, Callable[..., None]] = {
    ev.Dispatch: World.dispatch,
    ev.Abort: World.abort,
    ev.Start: lambda world, action: world.answers.append(ev.EngineUp(action.engine, action.start, 1 << 16)),
    ev.StartWorkers: lambda world, action: world.answers.append(ev.WorkersUp(action.start)),
    ev.Run: lambda world, action: world.answers.append(ev.Ran(action.operator, action.unit)),
    ev.Train: lambda world, action: world.answers.append(ev.Trained(action.batch)),
    ev.Sync: lambda world, action: world.answers.append(ev.Synced(action.sync)),
    ev.Save: lambda world, action: world.answers.append(ev.Saved(action.batch)),
    ev.Finish: lambda world, action: setattr(world, "finished", action.why),
}


def full_size(engines: int, in_flight: int) -> Config:
    """Half of what admission lets in may be in flight: n = 16, L = 7, so P = 2 · W / (8 · 16)."""
    n, max_lag = 16, 7
    groups = max(1, 2 * in_flight // (n * (max_lag + 1)))
    names = tuple(f"engine.{i}" for i in range(engines))
    return Config(n=n, groups_per_batch=groups, max_lag=max_lag, last=10**9, engines=names, watermark=in_flight, queue=1, save_every=1)


SMALL = Config(n=1, groups_per_batch=1, max_lag=1, last=10**9, engines=("engine",), save_every=100)


class Timed:
    """One run; seconds of each decide and of each commit."""

    def __init__(self, config: Config, ledger: Ledger | None) -> None:
        self.state, self.world, self.ledger = State(config), World(), ledger
        self.forget()

    def forget(self) -> None:
        self.decided: list[float] = []
        self.with_ledger: list[float] = []
        self.busy = 0.0
        self.changes = 0
        self.in_flight: list[int] = []
        self.kinds: Counter[str] = Counter()

    def fill(self) -> None:
        """Until as many are in flight as may be."""
        while self.state.in_flight < self.state.config.in_flight_target:
            self.step()
        self.forget()

    def step(self) -> None:
        clock, state = time.perf_counter, self.state
        event = self.world.next_event()
        start, busy = clock(), time.thread_time()
        if self.ledger is not None and type(event) is ev.Trained and state.training is not None:
            self.ledger.trained(event.batch.timeline, event.batch.batch, [(uid, state.config.n, -1) for uid in state.training.groups])
        told = clock()
        actions = decide(state, event)
        decided = clock()
        if self.ledger is not None:
            self.ledger.commit(state.journal)
        committed = clock()
        self.busy += time.thread_time() - busy
        self.decided.append(decided - told)
        self.with_ledger.append(committed - start)
        self.kinds[type(event).__name__] += 1
        self.in_flight.append(state.in_flight)
        self.changes += len(state.journal)
        self.world.perform(actions)
        assert not state.finished, self.world.finished


def rate(options: argparse.Namespace, ledger: Ledger | None) -> None:
    """Print events a second at full size."""
    run = Timed(full_size(options.engines, options.in_flight), ledger)
    run.fill()
    if options.profile:
        profiler = cProfile.Profile()
        profiler.runcall(lambda: [run.step() for _ in range(options.events)])
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
        return
    for _ in range(options.events):
        run.step()
    name, seconds = ("decide + ledger", run.with_ledger) if ledger else ("decide", run.decided)
    ordered = sorted(seconds)
    p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    over = sum(one > 0.005 for one in ordered)
    print(f"{name:16}{len(ordered) / sum(ordered):8,.0f} events/s   {len(ordered) / run.busy:8,.0f} a second of CPU time")
    print(f"{'':16}p50 {p50 * 1e6:.1f} µs   p99 {p99 * 1e6:.1f} µs   longest {ordered[-1] * 1e3:.1f} ms, {over} above 5 ms")
    kinds = ", ".join(f"{count} {kind}" for kind, count in run.kinds.most_common())
    mean = sum(run.in_flight) // len(run.in_flight)
    print(
        f"{'':16}{kinds}; {run.changes / len(ordered):.1f} rows each; in flight {min(run.in_flight)} to {max(run.in_flight)}, mean {mean}"
    )


def memory(options: argparse.Namespace) -> None:
    """Print bytes of state a trajectory in flight: all that lines of the controller have allocated."""
    tracemalloc.start()
    run = Timed(full_size(options.engines, 16), None)
    run.fill()
    gc.collect()
    before = held()
    run = Timed(full_size(options.engines, options.in_flight), None)
    run.fill()
    run.state.actions, run.state.journal = [], []
    gc.collect()
    print(f"memory          {(held() - before) / options.in_flight:8,.0f} bytes a trajectory in flight ({options.in_flight} of them)")
    tracemalloc.stop()


def held() -> int:
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/rlflow/run/controller/*")])
    return sum(statistic.size for statistic in snapshot.statistics("filename"))


def flat(options: argparse.Namespace, folder: Path) -> None:
    """Print the size of the state (pickled) and of the ledger's files over many small steps."""
    ledger = Ledger.create(folder)
    run, start = Timed(SMALL, ledger), time.perf_counter()
    print("steps           state   ledger.sqlite      -wal   history.jsonl     events/s")
    for mark in [options.steps * tenth // 10 for tenth in range(1, 11)]:
        while run.state.published < mark:
            run.step()
        sizes = [(folder / name).stat().st_size for name in ("ledger.sqlite", "ledger.sqlite-wal", "history.jsonl")]
        run.state.actions, run.state.journal = [], []
        state = len(pickle.dumps(run.state))
        each = len(run.decided) / (time.perf_counter() - start)
        print(f"{mark:9,} {state:9,} B {sizes[0]:12,} B {sizes[1]:10,} {sizes[2]:13,} {each:12,.0f}", flush=True)
        run.forget()
        start = time.perf_counter()
    ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("events", 200_000), ("engines", 1024), ("in-flight", 65_536), ("steps", 1_000_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=("rate", "memory", "flat"), help="one of the three")
    parser.add_argument("--folder", help="where the ledger lies while it is measured, default: the system's for temporary files")
    parser.add_argument("--profile", action="store_true", help="where the time of the rates goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ledger-", dir=options.folder) as folder:
        if options.only in (None, "rate"):
            rate(options, None)
            (Path(folder) / "rate").mkdir()
            with closing(Ledger.create(Path(folder) / "rate")) as ledger:
                rate(options, ledger)
        if options.only in (None, "memory"):
            memory(options)
        if options.only in (None, "flat"):
            flat(options, Path(folder))


if __name__ == "__main__":
    main()
