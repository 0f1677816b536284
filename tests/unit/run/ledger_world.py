"""A run of integers whose controller is killed and resumed: the real `decide`, `resume` and ledger; the world tells what was trained."""

from __future__ import annotations

import random
from pathlib import Path

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import Span, TrajectoryId
from rlflow.run.controller.journal import Change
from rlflow.run.controller.resume import resume
from rlflow.run.controller.schedule import Config
from rlflow.run.ledger import FILE, Ledger


def closed_ledger(folder: Path, changes: list[Change]) -> Path:
    """The file of a ledger that holds just these."""
    ledger = Ledger.create(folder)
    ledger.commit(changes)
    ledger.close()
    return folder / FILE


class Killed(Exception):
    """The process is gone."""


class LedgerWorld:
    """One life of a controller after the other, on one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        if not (folder / FILE).exists():
            Ledger.create(folder).close()
        self.outstanding: list[ev.AnyAction] = []
        self.oldest: dict[TrajectoryId, int] = {}

    def live(self, config: Config, events: int) -> str:
        """Go on from the ledger for so many events; why it finished, or "" after a kill, somewhere between a line and an action."""
        self.outstanding = []
        self.ledger = Ledger.open(self.folder)
        try:
            self.state = resume(config, self.ledger.load())
            self.ledger.commit(self.state.journal)
            self._decide(ev.RunStarted())
            for _ in range(events):
                if self.state.finished:
                    return self.outstanding[-1].outcome  # type: ignore[attr-defined,no-any-return]
                self._decide(self._answer())
            self._die()
        except Killed:
            return ""
        finally:
            self.ledger.close()
        return ""

    def _die(self) -> None:
        """Before its commit, or right after it and before its actions."""
        event = self._answer()
        if self.rng.random() < 0.5:
            decide(self.state, event)
            self.ledger.commit(self.state.journal)

    def _decide(self, event: ev.AnyEvent) -> None:
        actions = decide(self.state, event)
        self.ledger.commit(self.state.journal)
        for action in actions:
            self._perform(action)

    def _perform(self, action: ev.AnyAction) -> None:
        if isinstance(action, ev.Abort):
            self.outstanding = [one for one in self.outstanding if getattr(one, "trajectory", None) != action.trajectory]
        elif isinstance(action, ev.StartWorkers):
            self.outstanding = [one for one in self.outstanding if not isinstance(one, ev.Train | ev.Save | ev.StartWorkers)]
            self.outstanding.append(action)
        elif isinstance(action, ev.Start | ev.Dispatch | ev.Run | ev.Train | ev.Sync | ev.Save | ev.Evaluate | ev.Finish):
            self.outstanding.append(action)

    def _answer(self) -> ev.AnyEvent:
        at = self.rng.randrange(len(self.outstanding))
        action = self.outstanding.pop(at)
        luck = self.rng.random()
        match action:
            case ev.Start():
                return ev.EngineUp(action.engine, action.start, 64)
            case ev.StartWorkers():
                return ev.WorkersUp(action.start)
            case ev.Sync():
                return ev.Synced(action.sync)
            case ev.Evaluate():
                return ev.Evaluated(action.evaluation)
            case ev.Run():
                return ev.Ran(action.operator, action.unit, "drop" if luck < 0.1 else "keep", "no variance")
            case ev.Save():
                return ev.SaveFailed(action.batch, "disk full") if luck < 0.1 else ev.Saved(action.batch)
            case ev.Train():
                return self._train(action, luck)
            case ev.Dispatch():
                return self._roll_out(action, luck)
        raise AssertionError(f"{action} is not answered")

    def _train(self, action: ev.Train, luck: float) -> ev.AnyEvent:
        if luck < 0.05:
            return ev.TrainerDown("actor", self.state.workers_start, "killed")
        groups = []
        for uid in action.groups:
            of = [trajectory for trajectory in action.trajectories if trajectory.uid == uid]
            groups.append((uid, len(of), min(self._oldest(trajectory) for trajectory in of)))
        self.ledger.trained(action.batch.timeline, action.batch.batch, groups)
        return ev.Trained(action.batch)

    def _oldest(self, trajectory: TrajectoryId) -> int:
        """Of what landed before this world was there, the ledger tells."""
        if trajectory not in self.oldest:
            spans = self.state.groups[trajectory.uid].trajectories[trajectory.traj_uid].spans
            self.oldest[trajectory] = min(span.version for span in spans)
        return self.oldest[trajectory]

    def _roll_out(self, action: ev.Dispatch, luck: float) -> ev.AnyEvent:
        if luck < 0.05:
            return ev.Failed(action.trajectory, "the environment crashed")
        self.oldest[action.trajectory] = action.version_tag
        spans = (Span(action.version_tag, 0, 4), Span(self.state.published, 4, 6))
        return ev.Landed(action.trajectory, 1, spans)
