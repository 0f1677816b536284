"""A run without machines: the real `decide` of the controller, driven by a discrete-event clock.

    decide(state, event) ──actions──▶ SimulatedRun ──▶ clock: landed, synced, trained ... ──event──▶ decide

    engine     decodes all that it runs by one token a step; a step takes longer the more it runs; paused while it takes new weights
    trainer    one batch at a time; it hands out weights before it trains on
    lengths    log-normal with a share of its own for each prompt, cut at a cap: long tails, and hard prompts that are long in every try

Only the delays are simulated: who is sent where, who boards, what is synced when and which version sampled which token is the core's doing.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import BatchId, Span, TrajectoryId
from rlflow.run.controller.state import Config, State

ROUNDING = 1e-6  # of a token: what float sums of seconds may be off


@dataclass(frozen=True, kw_only=True)
class Delays:
    """What the machines take. Seconds and tokens.

    A decode step of an engine that runs r sequences takes ``step_base + r * step_each``; a train step ``train_base + tokens / train_rate``.
    Lengths are ``median * exp(spread_prompt * z_prompt + spread_trajectory * z)``, at most ``cap``.
    """

    engines: int = 4
    slots: int = 128
    step_base: float = 0.010
    step_each: float = 0.0001
    train_base: float = 1.0
    train_rate: float = 25_000.0
    sync: float = 1.5
    median: float = 500.0
    spread_prompt: float = 0.6
    spread_trajectory: float = 0.6
    cap: int = 2048

    @property
    def peak_rate(self) -> float:
        """Tokens a second of all engines when every slot is taken."""
        return self.engines * self.slots / (self.step_base + self.slots * self.step_each)

    def length(self, seed: int, trajectory: TrajectoryId) -> int:
        """Of a trajectory, the same in every run with this seed, whatever the schedule."""
        prompt = np.random.default_rng([seed, trajectory.uid]).standard_normal()
        own = np.random.default_rng([seed, trajectory.uid, trajectory.traj_uid, trajectory.attempt]).standard_normal()
        return max(1, min(self.cap, round(self.median * math.exp(self.spread_prompt * prompt + self.spread_trajectory * own))))


@dataclass(frozen=True)
class Reading:
    """All meters at the end of a train step; differences of two of them are what a stretch of the run did."""

    time: float
    batches: int
    tokens: int
    """Trained."""
    generated: float
    """By all engines, also for what was dropped later."""
    training: float
    """Seconds that the trainer trained."""
    handing_out: float
    """Seconds that it handed out weights."""
    gaps: dict[int, int]
    """Trained tokens by the age of the weights that sampled them, in versions."""


@dataclass
class _Running:
    trajectory: TrajectoryId
    began: float
    """On the engine's count of steps."""
    length: int
    spans: list[tuple[int, int]]
    """(version, first token)."""


@dataclass
class _Engine:
    delays: Delays
    steps: float = 0.0
    at: float = 0.0
    version: int = -1
    paused: bool = True
    generated: float = 0.0
    running: dict[TrajectoryId, _Running] = field(default_factory=dict)
    ends: list[tuple[float, TrajectoryId]] = field(default_factory=list)
    epoch: int = 0
    """Raised whenever what it runs, or how fast, changes: an end told before is no longer true."""

    @property
    def rate(self) -> float:
        """Steps a second."""
        return 0.0 if self.paused or not self.running else 1.0 / (self.delays.step_base + len(self.running) * self.delays.step_each)

    def advance(self, now: float) -> None:
        done = (now - self.at) * self.rate
        self.steps += done
        self.generated += done * len(self.running)
        self.at = now
        self.epoch += 1

    def send(self, trajectory: TrajectoryId, length: int) -> None:
        self.running[trajectory] = _Running(trajectory, self.steps, length, [(self.version, 0)])
        heapq.heappush(self.ends, (self.steps + length, trajectory))

    def next_end(self) -> tuple[float, TrajectoryId] | None:
        """(seconds from now, who)."""
        while self.ends and self.ends[0][1] not in self.running:
            heapq.heappop(self.ends)
        if not self.ends or not self.rate:
            return None
        return max(self.ends[0][0] - self.steps, 0.0) / self.rate, self.ends[0][1]

    def take(self, version: int) -> None:
        """New weights: what runs goes on with them, from the token it has come to."""
        self.version, self.paused = version, False
        for one in self.running.values():
            come_to = min(math.ceil(self.steps - one.began - ROUNDING), one.length - 1)
            if one.spans[-1][1] >= come_to:
                one.spans.pop()
            one.spans.append((version, come_to))


class SimulatedRun:
    """One run of ``config`` with ``delays``; ``readings`` holds the meters after each batch."""

    def __init__(self, config: Config, delays: Delays, seed: int) -> None:
        self.state, self.delays, self.seed = State(config), delays, seed
        self.engines = {name: _Engine(delays) for name in config.engines}
        self.now = 0.0
        self.readings: list[Reading] = []
        self.finish: ev.Finish | None = None
        self._clock: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._lengths: dict[TrajectoryId, int] = {}
        self._trainer_free = self._training = self._handing_out = 0.0
        self._trained_tokens = 0
        self._gaps: Counter[int] = Counter()

    def run(self) -> SimulatedRun:
        """To its end. Raises RuntimeError where nothing can happen any more, or the run does not end well."""
        self._tell(ev.RunStarted())
        while self.finish is None:
            if not self._clock:
                raise RuntimeError(f"nothing can happen any more at {self.now:.1f} s: {sorted(self.state.armed)}")
            self.now, _, happen = heapq.heappop(self._clock)
            happen()
        if self.finish.outcome != "done":
            raise RuntimeError(f"the simulated run ended: {self.finish.why}")
        return self

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._clock, (self.now + seconds, next(self._order), happen))

    def _tell(self, event: ev.AnyEvent) -> None:
        for action in decide(self.state, event):
            self._perform(action)

    def _perform(self, action: ev.AnyAction) -> None:
        match action:
            case ev.Start(engine, start):
                self._after(0.0, lambda: self._tell(ev.EngineUp(engine, start, self.delays.slots)))
            case ev.StartWorkers(start):
                self._after(0.0, lambda: self._tell(ev.WorkersUp(start)))
            case ev.Sync(sync):
                self._sync(sync.engine, sync.version, lambda: self._tell(ev.Synced(sync)))
            case ev.Dispatch(trajectory, engine):
                self._lengths[trajectory] = length = self.delays.length(self.seed, trajectory)
                self._change(engine, lambda one: one.send(trajectory, length))
            case ev.Abort(trajectory):
                for name, one in self.engines.items():
                    if trajectory in one.running:
                        self._change(name, lambda one: one.running.pop(trajectory))
            case ev.Train(batch):
                self._train(batch, action.trajectories)
            case ev.Save(batch):
                self._after(0.0, lambda: self._tell(ev.Saved(batch)))
            case ev.Finish():
                self.finish = action
            case ev.Arm() | ev.Disarm() | ev.Drop() | ev.Recycle() | ev.Warn():
                pass  # nothing fails here, so that no wait runs out
            case _:
                raise RuntimeError(f"the simulation has no {type(action).__name__}")

    # --- engines ------------------------------------------------------------------------------------------------------------------
    def _change(self, name: str, change: Callable[[_Engine], object]) -> None:
        """Of what an engine runs; its next end is told anew."""
        engine = self.engines[name]
        engine.advance(self.now)
        change(engine)
        if (end := engine.next_end()) is not None:
            epoch = engine.epoch
            self._after(end[0], lambda: self._ended(name, end[1]) if engine.epoch == epoch else None)

    def _ended(self, name: str, trajectory: TrajectoryId) -> None:
        one = self.engines[name].running[trajectory]
        self._change(name, lambda engine: engine.running.pop(trajectory))
        starts = [*one.spans, (-1, one.length)]
        spans = tuple(Span(version, first, after) for (version, first), (_, after) in itertools.pairwise(starts))
        self._tell(ev.Landed(trajectory, 1, spans))

    def _sync(self, name: str, version: int, then: Callable[[], None]) -> None:
        """The engine stands still while it takes the weights; the trainer hands them out to all engines at once."""

        def taken() -> None:
            self._change(name, lambda engine: engine.take(version))
            then()

        self._change(name, lambda engine: setattr(engine, "paused", True))
        until = self.now + self.delays.sync
        self._handing_out += max(0.0, until - max(self.now, self._trainer_free))
        self._trainer_free = max(self._trainer_free, until)
        self._after(self.delays.sync, taken)

    # --- trainer ------------------------------------------------------------------------------------------------------------------
    def _train(self, batch: BatchId, trajectories: tuple[TrajectoryId, ...]) -> None:
        gaps: Counter[int] = Counter()
        for trajectory in trajectories:
            live = self.state.groups[trajectory.uid].trajectories[trajectory.traj_uid]
            for span in live.spans:
                gaps[batch.batch - span.version] += span.end - span.start
        tokens = sum(self._lengths.pop(trajectory) for trajectory in trajectories)
        seconds = self.delays.train_base + tokens / self.delays.train_rate
        begin = max(self.now, self._trainer_free)
        self._trainer_free = begin + seconds

        def trained() -> None:
            self._training += seconds
            self._trained_tokens += tokens
            self._gaps.update(gaps)
            self._read(batch.batch + 1)
            self._tell(ev.Trained(batch))

        self._after(self._trainer_free - self.now, trained)

    def _read(self, batches: int) -> None:
        for name in self.engines:
            self._change(name, lambda _: None)
        generated = sum(engine.generated for engine in self.engines.values())
        self.readings.append(
            Reading(self.now, batches, self._trained_tokens, generated, self._training, self._handing_out, dict(sorted(self._gaps.items())))
        )
