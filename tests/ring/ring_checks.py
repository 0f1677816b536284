"""The invariants of the state machine, checked after every transition on the accounts, by plain scans.

1 every prompt in one place    2 3 in ring_actions (train)    4 nobody waits without a name, and nothing possible is left undone
5 6 in ring_actions (dispatch), and the bounds of the queue   7 the tables, and what a resume makes of them    8 rows on disk
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from ring_accounts import Accounts, Member, Prompt

from rlflow.run.controller.books import Books
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.state import Batch, State
from rlflow.run.controller.tally import Tally
from rlflow.run.controller.totals import Totals

if TYPE_CHECKING:
    from ring_world import Ring

__all__ = ["check_resumed", "check_transition"]


def check_transition(ring: Ring) -> None:
    _note_formed(ring)
    _note_last_evaluation(ring)
    _every_prompt_in_one_place(ring)
    _bounds(ring)
    _deadlines_can_be_met(ring)
    left = _covered_but_not_deleted(ring)
    _tables(ring.tables, ring.accounts, left)
    _rows_on_disk(ring, left)
    if ring.finish is None:
        _no_deadlock(ring)
        _nothing_possible_is_left(ring)


def check_resumed(state: State, accounts: Accounts, tables: Books) -> None:
    """Invariant 7: the state that the rules give, before anything is started."""
    assert (state.timeline, state.published, state.next_batch) == (accounts.timeline, accounts.published, accounts.published)
    assert state.in_flight == 0
    assert not state.batches
    assert state.training is None
    _same_groups(state, accounts)
    _tables(tables, accounts)
    _same_sums(state.totals, accounts.prompts.values())


def _same_groups(state: State, accounts: Accounts) -> None:
    """Trajectory by trajectory."""
    assert set(state.groups) == accounts.live
    for uid, group in state.groups.items():
        prompt = accounts.prompts[uid]
        assert (group.tag, group.hops_done, group.judged) == (prompt.tag, prompt.hops, prompt.judged)
        assert (group.state == "ready") == accounts.is_ready(prompt)
        for trajectory, member in zip(group.trajectories, prompt.members, strict=True):
            assert trajectory.state == ("dropped" if member.taken_out_by else member.state)
            assert trajectory.reason == member.taken_out_by
            if member.state == "landed":
                assert (trajectory.attempt, trajectory.hops_done, trajectory.judged) == (member.attempt, member.hops, member.judged)
                assert [span.version for span in trajectory.spans] == member.versions
            else:
                assert (trajectory.spans, trajectory.rows, trajectory.hops_done) == ((), 0, 0)


def _note_formed(ring: Ring) -> None:
    """Batches formed in this transition, one after the other."""
    state, accounts = ring.state, ring.accounts
    batches = [batch for batch in (state.training, *state.batches) if batch is not None]
    for batch in batches:
        if batch.id.batch >= accounts.formed:
            _note_batch(ring, batch)
    assert [batch.id.batch for batch in batches] == list(range(accounts.published, accounts.formed))


def _note_batch(ring: Ring, batch: Batch) -> None:
    """The P ready ones of the earliest deadlines, or, of a source that has ended, all that are left."""
    accounts, config = ring.accounts, ring.config
    assert batch.id.batch == accounts.formed <= config.last
    ready = sorted((prompt for prompt in accounts.of("waiting") if accounts.is_ready(prompt)), key=lambda prompt: (prompt.tag, prompt.uid))
    if len(batch.groups) < config.groups_per_batch:
        assert accounts.next_draw() is None
        assert config.remainder == "short"
        assert {prompt.uid for prompt in accounts.of("waiting")} == set(batch.groups)
    assert sorted(prompt.uid for prompt in ready[: config.groups_per_batch]) == list(batch.groups)
    for uid in batch.groups:
        accounts.prompts[uid].state, accounts.prompts[uid].batch = "consumed", batch.id.batch
    accounts.formed += 1


def _note_last_evaluation(ring: Ring) -> None:
    """When there is nothing left to train, the last version is due whether it is one of every k or not."""
    accounts = ring.accounts
    if ring.config.eval_every and not ring.stops and not accounts.has_something_to_train:
        done = {evaluation.version for evaluation in ring.evaluations} | set(accounts.due.values())
        if accounts.published not in done:
            accounts.due.setdefault(accounts.published, None)


def _every_prompt_in_one_place(ring: Ring) -> None:
    """Invariant 1."""
    state, accounts = ring.state, ring.accounts
    _same_groups(state, accounts)
    assert (state.published, state.next_batch, state.timeline) == (accounts.published, accounts.formed, accounts.timeline)
    assert state.waiting == len(accounts.of("waiting"))
    assert state.ready == sum(map(accounts.is_ready, accounts.of("waiting")))
    assert list(accounts.trained_in) == list(range(accounts.origin.version, accounts.published))
    trained = [uid for uids in accounts.trained_in.values() for uid in uids]
    assert len(trained) == len(set(trained))
    assert set(trained) == {prompt.uid for prompt in accounts.of("trained")}
    _same_sums(state.totals, accounts.prompts.values())


def _bounds(ring: Ring) -> None:
    """Invariant 5."""
    state, config = ring.state, ring.config
    assert state.in_flight == len(ring.running())
    assert config.n <= state.watermark.value <= config.highest_watermark
    assert state.queue_depth <= config.queue
    assert all(evaluation.timeline == ring.accounts.timeline for evaluation in ring.evaluations), "scores of a dead timeline are asked for"
    for name, host in ring.hosts.items():
        assert (state.engines[name].state != "down") == host.up
        assert (state.engines[name].state == "serving") == (host.held == (ring.accounts.timeline, ring.accounts.published))


def _deadlines_can_be_met(ring: Ring) -> None:
    """P seats a batch: by b + k no more are due than (k + 1) · P, and the spares while one is at the door."""
    accounts, config = ring.accounts, ring.config
    if config.policy not in ("wait", "drop"):
        return
    for i, tag in enumerate(sorted(prompt.tag for prompt in accounts.of("waiting"))):
        seat = accounts.formed + max(i - config.oversample, 0) // config.groups_per_batch
        assert seat <= tag + config.max_lag, f"the group of tag {tag} has no seat that is early enough"


def _covered_but_not_deleted(ring: Ring) -> set[int]:
    """Only while each transition deletes as many as it may; the end waits for none."""
    accounts = ring.accounts
    left = {uid for uid in ring.tables.groups if accounts.is_covered(accounts.prompts[uid])}
    deleted = len(ring.tables.finished) - ring.finished
    ring.finished = len(ring.tables.finished)
    assert not left or (deleted >= ring.config.covered_at_once and ring.finish is None), f"{deleted} groups covered, {len(left)} are left"
    return left


def _tables(tables: Books, accounts: Accounts, left: AbstractSet[int] = frozenset()) -> None:
    """Invariant 7: what a ledger holds is what is true. left: prompts that are covered, and whose rows will be deleted."""
    forgotten = {uid for uid, prompt in accounts.prompts.items() if accounts.is_covered(prompt)} - left
    assert set(tables.groups) == set(accounts.prompts) - forgotten
    assert {uid for start, stop in tables.finished for uid in range(start, stop)} == forgotten
    for uid, row in tables.groups.items():
        _row(accounts, accounts.prompts[uid], row.tag, row.state, row.version)
    assert (tables.saved.version if tables.saved else accounts.origin.version) == accounts.checkpoint
    _same_sums(tables, [accounts.prompts[uid] for uid in forgotten])


def _same_sums(told: Totals | Books, prompts: Collection[Prompt]) -> None:
    """What was trained, dropped and taken out of either, and how much of it was right."""
    assert _sums(told.kept) == _of_prompts(prompt for prompt in prompts if prompt.state == "trained")
    of_all = sum((Counter(_sums(tally)) for tally in told.lost.values()), Counter[str]())
    assert of_all == Counter(_of_prompts(prompt for prompt in prompts if prompt.state == "dropped"))
    out = [member for prompt in prompts if prompt.is_finished for member in prompt.members if member.taken_out_by]
    assert {by: _sums(tally) for by, tally in told.taken_out.items()} == {
        by: _of_members([member for member in out if member.taken_out_by == by]) for by in {member.taken_out_by for member in out}
    }


def _of_members(members: list[Member]) -> dict[str, int]:
    """They are of no group, for theirs is summed up with what is left of it."""
    tries, passes = (sum(member.judged[i] for member in members) for i in (0, 1))
    return {"groups": 0, "tokens": sum(4 * len(member.versions) for member in members), "tries": tries, "passes": passes}


def _sums(tally: Tally) -> dict[str, int]:
    return {"groups": tally.groups, "tokens": tally.tokens, "tries": tally.tries, "passes": tally.passes}


def _of_prompts(prompts: Iterable[Prompt]) -> dict[str, int]:
    """Four tokens of each version that sampled a trajectory which landed."""
    found = list(prompts)
    landed = [member for prompt in found for member in prompt.members if member.state == "landed" and not member.taken_out_by]
    tokens = sum(4 * len(member.versions) for member in landed)
    tries, passes = (sum(prompt.counts[i] for prompt in found) for i in (0, 1))
    return {"groups": len(found), "tokens": tokens, "tries": tries, "passes": passes}


def _row(accounts: Accounts, prompt: Prompt, tag: int, state: str, version: int) -> None:
    assert tag == prompt.tag
    if prompt.state == "waiting":
        assert state == ("ready" if accounts.is_ready(prompt) else "landed" if prompt.has_landed else "running")
    else:
        assert state == prompt.state
        assert prompt.state == "consumed" or version == prompt.version


def _rows_on_disk(ring: Ring, left: AbstractSet[int]) -> None:
    """Invariant 8."""
    accounts = ring.accounts
    for uid in ring.disk:
        assert uid in accounts.prompts, f"rows of prompt {uid} are kept, and it is not drawn"
        assert uid in left or not accounts.is_covered(accounts.prompts[uid]), f"rows of prompt {uid} are kept for nothing"


def _no_deadlock(ring: Ring) -> None:
    """Invariant 4: each wait has a timer (a turn that waits has one of its own), and something is waited for."""
    waits = len(ring.outstanding()) + 2 * len(ring.between_turns())
    assert ring.timers == set(ring.state.armed)
    assert len(ring.timers) == waits > 0, f"{waits} waits, timers {sorted(ring.timers)}"


def _nothing_possible_is_left(ring: Ring) -> None:
    """No lost wake-up: whatever the rules allow now has been done."""
    accounts = ring.accounts
    if ring.stops:
        return
    for prompt in accounts.of("waiting"):
        _is_scored(ring, prompt)
    assert not _could_board(ring), "a batch could be formed"
    assert not _could_send(ring), "a trajectory could be sent"
    assert not any(_could_go_on(ring, trajectory) for trajectory in ring.between_turns()), "a turn could be asked for"
    if accounts.formed <= ring.config.last and ring.workers_up:
        for name, host in ring.hosts.items():
            busy = name in ring.syncs or any(evaluation.engine == name for evaluation in ring.evaluations)
            is_current = host.held == (accounts.timeline, accounts.published)
            assert not host.up or busy or is_current or not accounts.has_something_to_train, f"engine {name} could be synced"


def _is_scored(ring: Ring, prompt: Prompt) -> None:
    """Landed rows never wait for siblings (invariant 5)."""
    config = ring.config
    asked = {str(unit) for _, unit in ring.runs}
    for traj_uid, member in enumerate(prompt.members):
        if member.state == "landed" and member.hops < len(config.trajectory_hops) and ring.workers_up:
            assert f"{prompt.uid}.{traj_uid}.{member.attempt}" in asked
    scored = prompt.has_landed and all(member.hops == len(config.trajectory_hops) for member in prompt.members)
    if scored and prompt.hops < len(config.group_hops) and ring.workers_up:
        assert f"{ring.accounts.timeline}:{prompt.uid}" in asked


def _could_send(ring: Ring) -> bool:
    accounts = ring.accounts
    current = (accounts.timeline, accounts.published)
    fit = [host for host in ring.hosts.values() if host.up and host.held == current and len(host.running) < host.capacity]
    if not fit or len(ring.running()) >= ring.state.watermark.value:
        return False
    return bool(accounts.queued()) or (accounts.next_draw() is not None and accounts.room() >= 1)


def _could_go_on(ring: Ring, trajectory: TrajectoryId) -> bool:
    """The engine that it ran on has kept its room; another one needs some."""
    accounts = ring.accounts
    tag = accounts.timeline, accounts.member(trajectory).tag
    fit = [host for host in ring.hosts.values() if host.up and host.held is not None and tag <= host.held < (tag[0] + 1, 0)]
    return any(trajectory in host.running or len(host.running) < host.capacity for host in fit)


def _could_board(ring: Ring) -> bool:
    """The dry run, prompt by prompt."""
    accounts, config = ring.accounts, ring.config
    behind = accounts.formed - accounts.published
    if accounts.formed > config.last or behind > config.queue or not ring.workers_up:
        return False
    waiting = accounts.of("waiting")
    ready = sorted((prompt for prompt in waiting if accounts.is_ready(prompt)), key=lambda prompt: (prompt.tag, prompt.uid))
    if accounts.next_draw() is None and 0 < len(waiting) < config.groups_per_batch:
        return len(ready) == len(waiting)
    if len(ready) < config.groups_per_batch:
        return False
    left = [prompt.tag + config.max_lag for prompt in waiting if prompt not in ready[: config.groups_per_batch]]
    fits = all(sum(deadline <= accounts.formed + k for deadline in left) <= k * config.groups_per_batch for k in range(config.max_lag + 1))
    return fits or config.policy != "wait"
