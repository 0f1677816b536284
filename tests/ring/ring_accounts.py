"""What is true of a run, kept from events and actions alone, by plain sets and scans: nothing here is shared with the core.

prompt      not drawn → waiting → consumed(batch) → trained | dropped → covered → forgotten by everybody but these accounts
trajectory  queued → running → landed (→ taken out of its group by a filter)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.schedule import Config, Origin

__all__ = ["Accounts", "Member", "Prompt"]


@dataclass
class Member:
    """One trajectory of a drawn prompt."""

    state: Literal["queued", "running", "landed"] = "queued"
    attempt: int = -1
    tag: int = -1
    versions: list[int] = field(default_factory=list)
    """Those that sampled this attempt, in order."""
    hops: int = 0
    failures: int = 0
    """Failed attempts."""
    losses: int = 0
    """Attempts whose engine went down, or the process that played them."""
    turn: int = 0
    asked: bool = False
    """A turn ended and the next one was not asked for yet."""
    judged: tuple[int, int] = (0, 0)
    """Tries and passes of its rows."""
    taken_out_by: str = ""
    """The filter that did not leave it in its group; it has landed all the same."""

    def queue(self) -> None:
        self.state, self.versions, self.hops, self.turn, self.asked, self.judged = "queued", [], 0, 0, False, (0, 0)
        self.taken_out_by = ""


@dataclass
class Prompt:
    uid: int
    tag: int
    members: list[Member]
    hops: int = 0
    state: Literal["waiting", "consumed", "trained", "dropped"] = "waiting"
    batch: int = -1
    version: int = -1
    """Published when it was dropped; what its batch made when it was trained."""
    judged: tuple[int, int] = (0, 0)
    """Tries and passes, where the whole of it was judged: by an operator, or by its batch."""

    @property
    def is_finished(self) -> bool:
        return self.state in ("trained", "dropped")

    @property
    def counts(self) -> tuple[int, int]:
        """Tries and passes: the word on the whole of it, else those on the rows of what its filters left."""
        landed = [member.judged for member in self.members if member.state == "landed" and not member.taken_out_by]
        return self.judged if self.judged[0] else (sum(tries for tries, _ in landed), sum(passes for _, passes in landed))

    @property
    def left(self) -> list[int]:
        """The trajectories that its filters have left."""
        return [traj_uid for traj_uid, member in enumerate(self.members) if not member.taken_out_by]

    @property
    def has_landed(self) -> bool:
        return all(member.state == "landed" for member in self.members)


class Accounts:
    def __init__(self, config: Config, origin: Origin) -> None:
        self.config, self.origin = config, origin
        self.timeline = origin.timeline
        self.published = self.formed = self.checkpoint = origin.version
        """checkpoint: newest version whose ``Saved`` was heard."""
        self.prompts: dict[int, Prompt] = {}
        """Drawn ones, finished ones too."""
        self.sent: set[TrajectoryId] = set()
        """Every attempt ever made, on all timelines."""
        self.source_end: int | None = None
        self.drawn = origin.uid
        """Prompts below were drawn, on whatever timeline."""
        self.trained_in: dict[int, tuple[int, ...]] = {}
        """Batch -> uids, on the surviving timeline."""
        self.due: dict[int, int | None] = {}
        """Version that is to be evaluated -> the one that was scored for it, on the surviving timeline."""
        if config.eval_every and origin.version % config.eval_every == 0:
            self.due[origin.version] = None

    # -- what is asked

    def of(self, state: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts.values() if prompt.state == state]

    @property
    def live(self) -> set[int]:
        return {uid for uid, prompt in self.prompts.items() if not prompt.is_finished}

    def is_ready(self, prompt: Prompt) -> bool:
        config = self.config
        scored = all(member.hops == len(config.trajectory_hops) for member in prompt.members)
        return prompt.state == "waiting" and prompt.has_landed and scored and prompt.hops == len(config.group_hops)

    def is_covered(self, prompt: Prompt) -> bool:
        """A checkpoint holds what became of it."""
        return prompt.is_finished and prompt.version <= self.checkpoint

    def next_draw(self) -> int | None:
        """The smallest uid that is neither finished nor live; None: there is no prompt any more."""
        uid = self.origin.uid
        while uid in self.prompts:
            uid += 1
        ends = [end for end in (self.config.prompts or None, self.source_end) if end is not None]
        return uid if all(uid < end for end in ends) else None

    def room(self) -> int:
        """Groups that may be registered now."""
        config = self.config
        reach = min(self.published + config.max_lag, config.last)
        seats = (reach + 1 - self.formed) * config.groups_per_batch
        return seats + (config.oversample if reach >= self.formed else 0) - len(self.of("waiting"))

    @property
    def has_something_to_train(self) -> bool:
        if self.of("consumed"):
            return True
        return self.formed <= self.config.last and (self.next_draw() is not None or bool(self.of("waiting")))

    def queued(self) -> list[tuple[int, int, int]]:
        """(tag, uid, traj_uid) of all that is to be sent."""
        return [
            (prompt.tag, prompt.uid, traj_uid)
            for prompt in self.of("waiting")
            for traj_uid, member in enumerate(prompt.members)
            if member.state == "queued"
        ]

    def member(self, trajectory: TrajectoryId) -> Member:
        return self.prompts[trajectory.uid].members[trajectory.traj_uid]

    # -- what happens

    def draw(self, uid: int) -> None:
        self.drawn = max(self.drawn, uid + 1)
        self.prompts[uid] = Prompt(uid, self.published, [Member() for _ in range(self.config.n)])

    def drop(self, uid: int) -> None:
        prompt = self.prompts[uid]
        prompt.state, prompt.version = "dropped", self.published

    def train(self, batch: int, uids: Iterable[int]) -> None:
        self.trained_in[batch] = tuple(uids)
        for uid in self.trained_in[batch]:
            self.prompts[uid].state, self.prompts[uid].version = "trained", batch + 1
        self.published = batch + 1
        if self.config.eval_every and self.published % self.config.eval_every == 0:
            self.due[self.published] = None

    def score(self, dues: Iterable[int], version: int) -> None:
        for due in dues:
            assert self.due[due] is None, "scored twice"
            self.due[due] = version

    def end_source(self) -> None:
        """There is no prompt beyond those drawn so far, on timelines that died too."""
        self.source_end = self.drawn

    def copy(self) -> Accounts:
        """One that can be taken back without this one."""
        twin = copy.copy(self)
        twin.prompts, twin.due = copy.deepcopy(self.prompts), dict(self.due)
        return twin

    def back(self, config: Config) -> None:
        """A resume or rollback to the newest checkpoint c, by the rules; ``config`` is what the run goes on with."""
        version = self.checkpoint
        same_hops = (self.config.hops, self.config.least_left) == (config.hops, config.least_left)
        self.config, self.timeline = config, self.timeline + 1
        self.published = self.formed = version
        self.trained_in = {batch: uids for batch, uids in self.trained_in.items() if batch < version}
        self.due = {due: scored if scored is not None and scored <= version else None for due, scored in self.due.items() if due <= version}
        for uid, prompt in list(self.prompts.items()):
            if prompt.is_finished and prompt.version <= version:
                continue
            if prompt.tag > version:
                del self.prompts[uid]
            else:
                _keep(prompt, version, same_hops)
        for uid in self._without_a_seat():
            del self.prompts[uid]

    def _without_a_seat(self) -> list[int]:
        """For every k = -1 … L at most (k + 1) · P may be due by c + k: of too many those go that run, then those of late tags."""
        config, gone = self.config, set[int]()
        for k in range(-1, config.max_lag + 1):
            due = [prompt for prompt in self.of("waiting") if prompt.uid not in gone and prompt.tag + config.max_lag <= self.published + k]
            excess = max(len(due) - (k + 1) * config.groups_per_batch, 0)
            due.sort(key=lambda prompt: (self._progress(prompt), -prompt.tag, -prompt.uid))
            gone.update(prompt.uid for prompt in due[:excess])
        return sorted(gone)

    def _progress(self, prompt: Prompt) -> int:
        return 2 if self.is_ready(prompt) else 1 if prompt.has_landed else 0


def _keep(prompt: Prompt, version: int, same_hops: bool) -> None:
    """Its tag stays, and the rows that only versions up to the checkpoint sampled; what operators made of them, if they are the same."""
    prompt.state, prompt.batch, prompt.version = "waiting", -1, -1
    for member in prompt.members:
        member.failures = member.losses = 0
        if member.state != "landed" or max(member.versions) > version:
            member.queue()
            prompt.hops = 0
        elif not same_hops:
            member.hops = prompt.hops = 0
    if not prompt.hops:
        prompt.judged = (0, 0)
        for member in prompt.members:
            member.taken_out_by = ""
