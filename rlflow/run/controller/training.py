"""Trained batches, checkpoints, and how a run ends.

    Trained(b) → publish b + 1 → Save, if due → engines are stale
    nothing left to train → evaluate and save the last version → Finish
    Stop → the running train step ends → Save → Finish;  a second Stop → Finish

A stop waits for no evaluation and no sync. Groups that were not trained stay live.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from .accounts import kept
from .boarding import gaps
from .evaluation import cover_scored, make_due
from .events import Finish, GroupFailed, Save, Saved, SaveFailed, Trained, TrainFailed, Warn
from .fleet import make_stale
from .ids import BatchId
from .journal import SavedRow
from .rollout import give_up, guard_against_dropping_all, rows_pile_up, set_aside
from .state import Batch, State

__all__ = ["conclude", "end", "group_failed", "has_nothing_to_train", "save_failed", "save_lost", "saved", "train_failed", "trained"]


def trained(state: State, event: Trained) -> bool:
    """Publish the version that the batch made; its groups are finished."""
    batch = state.training
    if batch is None or batch.id != event.batch:
        return False
    state.disarm("train step", batch.id)
    state.training = None
    state.watermark.end_of_step()
    state.journal_batch(batch, "trained")
    state.uncovered_batches.append(replace(batch, trajectories=(), staleness={}))
    if batch.groups:
        state.drops_in_a_row = 0
    passed = {uid: (tries, passes) for uid, tries, passes in event.passed}
    for uid in batch.groups:
        group = state.groups[uid]
        group.state, group.trained_rows = "trained", sum([trajectory.rows for trajectory in group.left])
        kept(state, group, batch.id.batch + 1, passed.get(uid, (0, 0)))
        set_aside(state, group, batch.id.batch + 1)
    state.totals.trained_rows += batch.rows
    state.published = version = batch.id.batch + 1
    make_stale(state)
    is_scored = bool(state.config.eval_every) and version % state.config.eval_every == 0
    is_due = bool(state.config.save_every) and version % state.config.save_every == 0
    if is_due or (is_scored and state.config.keep_best) or rows_pile_up(state):
        _save(state)
    if is_scored:
        make_due(state, version)
    return True


def train_failed(state: State, event: TrainFailed) -> bool:
    if state.training is None or state.training.id != event.batch:
        return False
    state.fail(f"batch {event.batch.batch} could not be trained: {event.why}")
    return True


def group_failed(state: State, event: GroupFailed) -> bool:
    """Its seat stays empty: the batch is what is left of it, and if nothing is, its version is trained of nothing."""
    batch = state.training
    if batch is None or batch.id != event.batch or event.uid not in batch.groups:
        return False
    group = state.groups[event.uid]
    gone = gaps(group.left, batch.id.batch)
    state.training = Batch(
        id=batch.id,
        groups=tuple(uid for uid in batch.groups if uid != event.uid),
        trajectories=tuple(trajectory for trajectory in batch.trajectories if trajectory.uid != event.uid),
        rows=batch.rows - sum(trajectory.rows for trajectory in group.left),
        staleness=dict(Counter(batch.staleness) - gone),
    )
    state.totals.staleness.subtract(gone)
    state.journal_batch(state.training, "training")
    give_up(state, group, "batch", event.why)
    guard_against_dropping_all(state, "batch", event.why)
    return True


def saved(state: State, event: Saved) -> bool:
    """What it covers was fixed when it was asked for: it holds version b + 1, whatever was trained or dropped since."""
    if event.batch not in state.saving:
        return False
    del state.saving[event.batch]
    state.disarm("save", event.batch)
    state.save_failures = state.last_save_failures = state.trainer_deaths = 0
    version = event.batch.batch + 1
    if version > state.saved:
        state.saved = state.checkpoint = version
        state.journal.append(SavedRow(state.timeline, version))
        cover_scored(state)
    return True


def save_failed(state: State, event: SaveFailed) -> bool:
    if event.batch not in state.saving:
        return False
    save_lost(state, event.batch, event.why)
    return True


def save_lost(state: State, batch: BatchId, why: str) -> None:
    """Weights may have moved on, so it is not tried again: the next due version is, and the last one of the run up to the bound."""
    del state.saving[batch]
    state.disarm("save", batch)
    state.totals.failed_saves += 1
    state.save_failures += 1
    kept = f"{state.uncovered_rows} rows are kept since the checkpoint of version {state.saved}"
    state.emit(Warn(f"version {batch.batch + 1} could not be saved: {why} ({state.save_failures} in a row; {kept})"))
    if batch.batch + 1 == state.published and (state.stops or has_nothing_to_train(state)):
        state.last_save_failures += 1
    if state.last_save_failures >= state.config.max_save_attempts:
        state.fail(f"{state.last_save_failures} saves in a row failed at the end, the last one of version {batch.batch + 1}: {why}")


def has_nothing_to_train(state: State) -> bool:
    """The last batch is trained, or the source is exhausted and all its groups are trained or dropped."""
    if state.training is not None or state.batches:
        return False
    return state.next_batch > state.config.last or (state.source_exhausted and state.waiting == 0)


def conclude(state: State) -> None:
    """Before the run ends its last version is evaluated."""
    if state.config.eval_every and state.evaluated < state.published and not state.stops:
        make_due(state, state.published)


def end(state: State) -> Finish | None:
    """Why the run ends with this transition, when all that the end waits for is there."""
    if state.failure:
        return Finish("failed", state.failure)
    if state.stops > 1:
        return Finish("stopped", "stopped at once, by a second stop")
    if state.stops and state.training is None:
        return Finish("stopped", f"stopped at version {state.published}") if _last_version_is_saved(state) else None
    return _end_when_nothing_is_pending(state) if has_nothing_to_train(state) else None


def _end_when_nothing_is_pending(state: State) -> Finish | None:
    is_saved = _last_version_is_saved(state)
    is_syncing = any(engine.sync is not None for engine in state.fleet)
    if not is_saved or state.evaluations or state.evaluations_due or is_syncing:
        return None
    why = "the last batch is trained" if state.next_batch > state.config.last else _why_it_ended(state)
    return Finish("done", f"{why}, at version {state.published}")


def _why_it_ended(state: State) -> str:
    if not state.is_all_filtered:
        return "the source has ended"
    assert state.config.pass_rate is not None
    low, high = state.config.pass_rate
    return f"each of the {state.rows} prompts has a pass rate outside [{low:g}, {high:g}], so none is sampled"


def _last_version_is_saved(state: State) -> bool:
    """Ask for what is missing; true when it is there and no save is under way."""
    if state.saved < state.published and state.batch_id(state.published - 1) not in state.saving:
        _save(state)
    return not state.saving


def _save(state: State) -> None:
    """The checkpoint of the published version."""
    batch: BatchId = state.batch_id(state.published - 1)
    state.saving[batch] = None
    state.emit(Save(batch))
    state.arm("save", batch)
