"""The controller at full size: events through ``decide``, alone and with one ledger transaction each, on simulated engines.

    python benchmarks/controller.py [--events 200000] [--engines 1024] [--in-flight 65536] [--steps 1000000]

    rate     Landed, Failed, Synced, Trained, Saved mixed; events a second of decide, and of decide + ledger; p50, p99, longest
    memory   bytes of state a trajectory in flight
    flat     many small steps: size of the state and of the ledger over them

The simulation around it (which trajectory lands next) is not in the times.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
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


class Timed:
    """One run; seconds of each decide and of each commit."""

    def __init__(self, config: Config, ledger: Ledger | None) -> None:
        self.state, self.world, self.ledger = State(config), World(), ledger
        self.decided: list[float] = []
        self.committed: list[float] = []
        self.changes = 0
        self.in_flight: list[int] = []
        self.kinds: Counter[str] = Counter()

    def fill(self) -> None:
        """Until as many are in flight as may be; what that took is forgotten."""
        while self.state.in_flight < self.state.config.in_flight_target:
            self.step()
        self.decided, self.committed, self.in_flight, self.changes = [], [], [], 0
        self.kinds.clear()

    def step(self) -> None:
        clock, state = time.perf_counter, self.state
        event = self.world.next_event()
        start = clock()
        actions = decide(state, event)
        decided = clock()
        if self.ledger is not None:
            self.ledger.commit(state.journal)
        committed = clock()
        self.decided.append(decided - start)
        self.committed.append(committed - start)
        self.kinds[type(event).__name__] += 1
        self.in_flight.append(state.in_flight)
        self.changes += len(state.journal)
        self.world.perform(actions)
        assert not state.finished, self.world.finished

    def go(self, events: int) -> None:
        for _ in range(events):
            self.step()


def said(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    rate = len(ordered) / sum(ordered)
    return f"{name:18} {rate:10,.0f} /s   p50 {p50 * 1e6:6.1f} µs   p99 {p99 * 1e3:7.3f} ms   longest {ordered[-1] * 1e3:7.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("events", 200_000), ("engines", 1024), ("in-flight", 65_536), ("steps", 1_000_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", help="where the ledger lies while it is measured")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    for with_ledger in (False, True):
        with tempfile.TemporaryDirectory(prefix="ledger-", dir=options.folder) as folder:
            ledger = Ledger.create(Path(folder)) if with_ledger else None
            run = Timed(full_size(options.engines, options.in_flight), ledger)
            run.fill()
            if options.profile:
                profile(run, options.events)
                continue
            run.go(options.events)
            print(f"{len(run.decided)} events: {dict(run.kinds)}; {run.changes / len(run.decided):.2f} rows each; "
              f"in flight {min(run.in_flight)} to {max(run.in_flight)}")
            print(said("decide", run.decided))
            if ledger is not None:
                print(said("decide + ledger", run.committed))
                print({p.name: p.stat().st_size // 1024 for p in Path(folder).iterdir()}, "KiB")
                ledger.close()


def profile(run: Timed, events: int) -> None:
    import cProfile
    import pstats

    p = cProfile.Profile()
    p.runcall(run.go, events)
    pstats.Stats(p).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
