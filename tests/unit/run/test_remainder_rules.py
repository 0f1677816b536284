"""A filter that leaves a part of a group: what the controller forms its batch of, and what a rollback or a resume makes of it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from test_ready import KEYS

from pipelines.grpo import grpo
from rlflow.compile.ir import Node
from rlflow.errors import DataError
from rlflow.run.batchscope import Made
from rlflow.run.controller import events as ev
from rlflow.run.controller.books import Books
from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import BatchId, GroupId, Span, SyncId, TrajectoryId
from rlflow.run.controller.journal import Change, Counters, Finished, GroupRow, PassRate, SavedRow, TimelineRow, TrajectoryRow
from rlflow.run.controller.resume import forget_rows, resume
from rlflow.run.controller.schedule import Config, Hop
from rlflow.run.controller.state import State
from rlflow.run.controller.tally import Tally
from rlflow.run.ready import OfGroup
from rlflow.run.sampling import left_of

HOPS = (Hop("keep", "group"), Hop("advantage", "group"))
CONFIG = Config(n=3, groups_per_batch=1, max_lag=1, last=9, engines=("e",), hops=HOPS, least_left=2)


def landed(traj_uid: int, version: int = 5) -> TrajectoryRow:
    return TrajectoryRow(7, traj_uid, 0, 5, "landed", "e", 1 + traj_uid, (Span(version, 0, 4),), 0)


def resumed(*rows: Change, config: Config = CONFIG, least_left: int = 2) -> State:
    """From the checkpoint of version 5, on timeline 1; prompt 7 is the only one that is live."""
    books = Books()
    books.apply([TimelineRow(0, 0, 3, 1, 1, 9, ("keep", "advantage"), "wait", least_left), Counters(7, 0, 0, -1), SavedRow(0, 5), *rows])
    return resume(config, books)


def filtered() -> State:
    """The filter has just left trajectories 0 and 2."""
    state = resumed(GroupRow(7, 5, "landed", -1, 0, 0), landed(0), landed(1), landed(2))
    decide(state, ev.RunStarted())
    decide(state, ev.WorkersUp(1))
    decide(state, ev.Ran("keep", GroupId(1, 7), left=(0, 2)))
    return state


def test_the_batch_is_of_what_is_left() -> None:
    state = filtered()
    trained = [a for a in decide(state, ev.Ran("advantage", GroupId(1, 7))) if isinstance(a, ev.Train)]
    assert trained == [ev.Train(BatchId(1, 5), (7,), (TrajectoryId(7, 0, 0), TrajectoryId(7, 2, 0)))]
    assert state.training is not None
    assert (state.training.rows, state.training.staleness) == (1 + 3, {0: 8})


def test_what_is_taken_out_is_in_the_ledger_with_its_filter() -> None:
    rows = [change for change in filtered().journal if isinstance(change, TrajectoryRow)]
    assert [(row.traj_uid, row.state, row.reason) for row in rows] == [(1, "dropped", "keep")]


def test_a_rollback_keeps_what_was_left_and_counts_the_rows_that_were_trained() -> None:
    state = filtered()
    decide(state, ev.Ran("advantage", GroupId(1, 7)))
    decide(state, ev.Trained(BatchId(1, 5)))
    assert state.totals.trained_rows == 4
    decide(state, ev.TrainerDown("actor", 1, "killed"))
    assert [t.state for t in state.groups[7].trajectories] == ["landed", "dropped", "landed"]
    assert (state.groups[7].state, state.totals.trained_rows) == ("ready", 0)


def judged(traj_uid: int, tokens: int, passes: int) -> TrajectoryRow:
    return TrajectoryRow(7, traj_uid, 0, 5, "landed", "e", 2, (Span(5, 0, tokens),), 0, 2, passes)


def test_what_a_filter_takes_out_is_summed_up_beside_what_is_trained_and_taken_back_with_it() -> None:
    """The second trajectory was cut off: the mean length and the pass rate of what is trained are without it."""
    state = resumed(GroupRow(7, 5, "landed", -1, 0, 0), judged(0, 4, 2), judged(1, 64, 0), judged(2, 6, 1))
    decide(state, ev.RunStarted())
    decide(state, ev.WorkersUp(1))
    decide(state, ev.Ran("keep", GroupId(1, 7), left=(0, 2)))
    decide(state, ev.Ran("advantage", GroupId(1, 7)))
    assert state.totals.taken_out == {}
    decide(state, ev.Trained(BatchId(1, 5)))
    kept, out = Tally(groups=1, landed=2, tokens=10, tries=4, passes=3), Tally(landed=1, tokens=64, tries=2, passes=0)
    assert (state.totals.kept, state.totals.taken_out) == (kept, {"keep": out})
    decide(state, ev.TrainerDown("actor", 1, "killed"))
    assert (state.totals.kept, state.totals.lost, state.totals.taken_out) == (Tally(), {}, {})


def test_what_was_taken_out_of_a_group_that_no_checkpoint_knew_is_taken_back_too() -> None:
    """Prompt 7 is trained into version 6, prompt 8 is drawn after that and trained into version 7; nothing is saved."""
    state = resumed(GroupRow(7, 5, "landed", -1, 0, 0), judged(0, 4, 2), judged(1, 64, 0), judged(2, 6, 1))
    decide(state, ev.RunStarted())
    decide(state, ev.EngineUp("e", 1, 8))
    decide(state, ev.WorkersUp(1))
    decide(state, ev.Ran("keep", GroupId(1, 7)))
    decide(state, ev.Ran("advantage", GroupId(1, 7)))
    decide(state, ev.Trained(BatchId(1, 5)))
    decide(state, ev.Synced(SyncId(1, 5, "e", 1)))
    sent = decide(state, ev.Synced(SyncId(1, 6, "e", 2)))
    for trajectory in [action.trajectory for action in sent if isinstance(action, ev.Dispatch) and action.trajectory.uid == 8]:
        decide(state, ev.Landed(trajectory, 1, (Span(6, 0, 5),), (1, 1)))
    decide(state, ev.Ran("keep", GroupId(1, 8), left=(0, 2)))
    decide(state, ev.Ran("advantage", GroupId(1, 8)))
    decide(state, ev.Trained(BatchId(1, 6)))
    assert state.totals.taken_out == {"keep": Tally(landed=1, tokens=5, tries=1, passes=1)}
    decide(state, ev.TrainerDown("actor", 1, "killed"))
    assert (state.totals.kept, state.totals.taken_out) == (Tally(), {})


def test_a_resume_with_other_columns_knows_what_was_taken_out_of_groups_that_are_covered() -> None:
    """Prompt 6 was trained into version 5, that of the checkpoint; prompt 7 is live, and sampled again."""
    out = TrajectoryRow(6, 1, 0, 4, "dropped", "e", 2, (Span(4, 0, 64),), 0, 2, 0, "keep")
    books = Books()
    books.apply([TimelineRow(0, 0, 3, 1, 1, 9, ("keep", "advantage"), "wait", 2), Counters(6, 0, 0, -1), SavedRow(0, 5)])
    books.apply([GroupRow(6, 4, "trained", 4, 0, 2, 5), out, GroupRow(7, 5, "landed", -1, 0, 0), judged(0, 4, 2)])
    forget_rows(books)
    state = resume(CONFIG, books)
    assert state.totals.taken_out == {"keep": Tally(landed=1, tokens=64, tries=2, passes=0)}
    assert [trajectory.state for trajectory in state.groups[7].trajectories] == ["queued"] * 3


def test_of_a_group_that_is_dropped_later_each_filter_has_what_it_took() -> None:
    state = resumed(GroupRow(7, 5, "landed", -1, 0, 0), judged(0, 4, 2), judged(1, 64, 0), judged(2, 6, 1))
    decide(state, ev.RunStarted())
    decide(state, ev.WorkersUp(1))
    decide(state, ev.Ran("keep", GroupId(1, 7), left=(0, 2)))
    decide(state, ev.Ran("advantage", GroupId(1, 7), "drop", "no variance"))
    assert state.totals.lost == {"advantage": Tally(groups=1, landed=2, tokens=10, tries=4, passes=3)}
    assert state.totals.taken_out == {"keep": Tally(landed=1, tokens=64, tries=2, passes=0)}


def test_the_row_of_the_data_is_judged_by_all_of_its_answers() -> None:
    """It is a prompt that is answered right three times of six, whatever part of it is trained."""
    config = replace(CONFIG, pass_rate=(0.1, 0.6))
    state = resumed(GroupRow(7, 5, "landed", -1, 0, 0), judged(0, 4, 2), judged(1, 64, 0), judged(2, 6, 1), config=config)
    state.rows = 1
    decide(state, ev.RunStarted())
    decide(state, ev.WorkersUp(1))
    decide(state, ev.Ran("keep", GroupId(1, 7), left=(0, 2)))
    decide(state, ev.Ran("advantage", GroupId(1, 7)))
    decide(state, ev.Trained(BatchId(1, 5)))
    assert [(row.tries, row.passes) for row in state.journal if isinstance(row, PassRate)] == [(6, 3)]


def test_a_resume_goes_on_with_the_sums_of_what_was_taken_out() -> None:
    """Of a group that a checkpoint covers, in the rows or folded already."""
    rows = [judged(0, 4, 2), msgspec.structs.replace(judged(1, 64, 0), state="dropped", reason="keep"), judged(2, 6, 1)]
    covered = GroupRow(7, 4, "trained", 4, 0, 2, 5, "", "", 2, 0, 10, 4, 3)
    out = {"keep": Tally(landed=1, tokens=64, tries=2, passes=0)}
    assert resumed(covered, *rows).totals.taken_out == out
    assert resumed(covered, *rows, Finished((7,))).totals.taken_out == out


def test_a_resume_keeps_what_was_left() -> None:
    out = TrajectoryRow(7, 1, 0, 5, "dropped", "e", 2, (Span(5, 0, 4),), 0, 0, 0, "keep")
    state = resumed(GroupRow(7, 5, "landed", -1, 0, 1), landed(0), out, landed(2))
    assert [(t.state, t.reason) for t in state.groups[7].trajectories] == [("landed", ""), ("dropped", "keep"), ("landed", "")]
    decide(state, ev.RunStarted())
    assert [a.operator for a in decide(state, ev.WorkersUp(1)) if isinstance(a, ev.Run)] == ["advantage"]


@pytest.mark.parametrize(
    ("config", "least_left", "version"),
    [
        pytest.param(replace(CONFIG, hops=HOPS[::-1]), 2, 5, id="other operators"),
        pytest.param(CONFIG, 1, 5, id="another declaration"),
        pytest.param(CONFIG, 2, 6, id="a sibling is sampled anew"),
    ],
)
def test_a_resume_takes_back_what_a_filter_said_of_another_group(config: Config, least_left: int, version: int) -> None:
    out = TrajectoryRow(7, 1, 0, 5, "dropped", "e", 2, (Span(5, 0, 4),), 0, 0, 0, "keep")
    state = resumed(GroupRow(7, 5, "ready", -1, 0, 2), landed(0), out, landed(2, version), config=config, least_left=least_left)
    group = state.groups[7]
    assert (group.trajectories[1].state, group.trajectories[1].reason, group.hops_done) == ("landed", "", 0)


# --- which trajectories are left ------------------------------------------------------------------------------------------------------
def filter_node(least_kept: int) -> Node:
    """Of any call, made a filter."""
    return msgspec.structs.replace(grpo().graph.nodes[0], name="keep", rows="filter", least_kept=least_kept)


GIVEN = {0: 1, 1: 2, 2: 1}  # rows by trajectory


def test_all_rows_are_all_trajectories() -> None:
    assert left_of(filter_node(2), 7, GIVEN, 4, (0, 1, 1, 2)) == ()


def test_those_are_left_whose_rows_are() -> None:
    assert left_of(filter_node(2), 7, GIVEN, 3, (1, 1, 2)) == (1, 2)


@pytest.mark.parametrize(
    ("least", "whose", "said"),
    [
        (0, (), "`keep` keeps 2 of the 4 rows of prompt 7: a filter per group keeps all of one or none"),
        (2, (0, 1), "keeps 1 rows of 2 of trajectory 7.1: a trajectory is trained whole or not"),
        (2, (0, 9), "keeps 1 rows and was given none of trajectory 7.9"),
        (2, (1, 1), "keeps 1 trajectory of prompt 7, and declares least_kept=2"),
    ],
)
def test_what_a_filter_does_not_declare_is_refused(least: int, whose: tuple[int, ...], said: str) -> None:
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        left_of(filter_node(least), 7, GIVEN, 2, whose)


def test_a_filter_that_keeps_all_that_another_left_is_held_to_what_it_declares() -> None:
    assert left_of(filter_node(1), 7, {1: 2}, 2, (1, 1)) == ()
    with pytest.raises(DataError, match="`keep` keeps 1 trajectory of prompt 7, and declares least_kept=2"):
        left_of(filter_node(2), 7, {1: 2}, 2, (1, 1))


def test_rows_that_operators_made_of_groups_are_read_without_those_that_were_taken_out() -> None:
    whole, part = OfGroup(KEYS[0], 2, (0, 1)), OfGroup(KEYS[1], 4, (0, 3))
    assert (whole.take, part.take) == (None, (0, 3))
    made = Made.of_groups(0, [part, whole])
    assert (made.keys, made.rows.tolist() if made.rows is not None else None) == ((KEYS[1], KEYS[0]), [0, 3, 4, 5])
    assert Made.of_groups(0, [whole, whole]).rows is None
