"""What is known of the rows of the data, who is sampled no more, and what dropping biases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decide_world import World

from rlflow.errors import UsageError
from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import GroupId, Span, TrajectoryId
from rlflow.run.controller.journal import PassRate
from rlflow.run.controller.passrates import PassRates, Word
from rlflow.run.controller.resume import resume
from rlflow.run.controller.schedule import Config, Hop
from rlflow.run.controller.state import Group, Trajectory
from rlflow.run.controller.tally import Tally

BOUNDS = (0.1, 0.9)


def test_the_newest_word_on_a_row_counts() -> None:
    rates = PassRates(BOUNDS)
    assert rates.tell(5, Word(3, 4, 4), saved=0) == [PassRate(5, 4, 4, 3)]
    assert rates.refuses(5) == "4 of 4 were right at version 3, outside [0.1, 0.9]"
    rates.tell(5, Word(7, 4, 2), saved=0)
    assert rates.refuses(5) == ""
    assert rates.refuses(6) == ""


@pytest.mark.parametrize(("passes", "sampled"), [(0, False), (1, True), (9, True), (10, False)])
def test_the_bounds_are_inside(passes: int, sampled: bool) -> None:
    rates = PassRates(BOUNDS)
    rates.tell(0, Word(1, 10, passes), saved=0)
    assert (rates.refuses(0) == "") is sampled
    assert rates.outside == (0 if sampled else 1)


def test_words_from_versions_above_a_checkpoint_are_undone() -> None:
    rates = PassRates(BOUNDS)
    rates.tell(5, Word(3, 4, 4), saved=0)
    rates.tell(5, Word(7, 4, 2), saved=0)
    rates.tell(6, Word(7, 4, 4), saved=0)
    assert rates.undo(5) == [PassRate(5, 0, 0, 7), PassRate(6, 0, 0, 7)]
    assert rates.words == {5: (Word(3, 4, 4),)}
    assert rates.outside == 1


def test_a_word_is_kept_until_a_checkpoint_holds_a_newer_one() -> None:
    rates = PassRates(BOUNDS)
    for version, saved in ((1, 0), (4, 0), (8, 5)):
        told = rates.tell(0, Word(version, 4, 2), saved)
    assert told == [PassRate(0, 0, 0, 1), PassRate(0, 4, 2, 8)]
    assert rates.words[0] == (Word(4, 4, 2), Word(8, 4, 2))


def test_a_row_is_never_remembered_more_often_than_it_was_told_since_the_checkpoint() -> None:
    rates = PassRates(BOUNDS)
    for version in range(1, 1000):
        rates.tell(0, Word(version, 4, version % 5), saved=version - version % 10)
        assert len(rates.words[0]) <= 11


def test_two_words_of_one_version_are_one() -> None:
    """Two epochs of a row in one batch: 1 of 4, then 3 of 4."""
    rates = PassRates(BOUNDS)
    rates.tell(0, Word(2, 4, 1), saved=0)
    assert rates.tell(0, Word(2, 4, 3), saved=0) == [PassRate(0, 8, 4, 2)]


def test_what_a_ledger_kept_is_what_was_known() -> None:
    rates, again, kept = PassRates(BOUNDS), PassRates(BOUNDS), dict[tuple[int, int], PassRate]()
    for row, version, passes, saved in ((0, 1, 4, 0), (1, 1, 0, 0), (0, 5, 1, 0), (1, 6, 2, 3), (0, 9, 3, 5)):
        for change in rates.tell(row, Word(version, 4, passes), saved):
            kept[change.row, change.version] = change
    again.load(change for change in kept.values() if change.tries)
    assert again == rates


def test_without_bounds_nothing_is_kept() -> None:
    rates = PassRates(None)
    assert rates.tell(0, Word(1, 4, 4), saved=0) == []
    assert rates.words == {}


# --- in a run: 4 rows, seed 0 --------------------------------------------------------------------------------------------------------
ROWS = Config(n=1, groups_per_batch=2, max_lag=0, last=9, engines=("e",), pass_rate=(0.1, 0.9))


def world_of(config: Config, rows: int = 4) -> World:
    world = World(config)
    world.state.rows = rows
    world.begin()
    return world


def step(world: World, *passes: int) -> list[ev.AnyAction]:
    """Train a batch of two groups, of which so many of 4 tries were right."""
    for trajectory in world.running():
        world.land(trajectory)
    assert world.training is not None
    actions = world.train(tuple((uid, 4, right) for uid, right in zip(world.training.groups, passes, strict=True)))
    return actions + world.sync("e")


def drops(actions: list[ev.AnyAction]) -> list[tuple[int, str, str]]:
    return [(action.group.uid, action.reason, action.detail) for action in actions if isinstance(action, ev.Drop)]


def test_a_prompt_that_was_always_right_is_not_sampled_in_the_next_epoch() -> None:
    """Epoch 0 is uids 0 to 3. Uid 1 was right 4 times of 4; its row is uid 4, 5, 6 or 7 of epoch 1, and is dropped there."""
    world = world_of(ROWS)
    step(world, 2, 4)
    actions = step(world, 2, 2)
    again = drops(actions + step(world, 2, 2))
    assert [(reason, detail) for _, reason, detail in again] == [("pass rate", "4 of 4 were right at version 1, outside [0.1, 0.9]")]
    assert 4 <= again[0][0] <= 7
    assert world.state.totals.dropped == {"pass rate": 1}
    assert world.state.totals.lost["pass rate"].groups == 1


def test_Q11_a_run_in_which_every_prompt_is_filtered_ends_with_the_reason() -> None:
    world = world_of(ROWS)
    step(world, 4, 0)
    for trajectory in world.running():
        world.land(trajectory)
    world.train(((2, 4, 4), (3, 4, 0)))
    world.save(next(iter(world.saves)))
    why = "each of the 4 prompts has a pass rate outside [0.1, 0.9], so none is sampled, at version 2"
    assert world.finish == ev.Finish("done", why)


def test_a_rollback_undoes_what_was_learned_since_the_checkpoint() -> None:
    """Version 1 is saved; uids 2 and 3 are judged in batch 1, which makes version 2."""
    world = world_of(replace(ROWS, save_every=1))
    step(world, 4, 2)
    world.save(next(iter(world.saves)))
    rows = set(world.state.pass_rates.words)
    step(world, 4, 0)
    assert len(world.state.pass_rates.words) == len(world.tables.pass_rates) == 4
    world.trainer_down("actor")
    assert set(world.state.pass_rates.words) == {row for row, _ in world.tables.pass_rates} == rows
    assert world.state.pass_rates.outside == 1
    assert world.state.totals.kept.groups == 2


def test_a_resume_knows_what_was_learned_up_to_the_checkpoint() -> None:
    world = world_of(replace(ROWS, save_every=1))
    step(world, 4, 2)
    world.save(next(iter(world.saves)))
    known = dict(world.state.pass_rates.words)
    step(world, 4, 0)
    resumed = resume(replace(ROWS, save_every=1), world.tables)
    assert resumed.pass_rates.words == known
    assert sum(isinstance(change, PassRate) for change in resumed.journal) == 2


def test_what_a_filter_drops_before_boarding_is_known_too() -> None:
    world = world_of(replace(ROWS, hops=(Hop("keep_mixed", per="group"),)))
    world.land(TrajectoryId(0, 0, 0))
    del world.runs["keep_mixed", GroupId(0, 0)]
    world.feed(ev.Ran("keep_mixed", GroupId(0, 0), "drop", "all alike", judged=(4, 4)))
    assert world.state.pass_rates.outside == 1
    assert PassRate in {type(change) for change in world.state.journal}


@pytest.mark.parametrize("bounds", [(0.5, 0.4), (-0.1, 0.5), (0.1, 1.1)])
def test_bounds_that_bound_nothing_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="give the lowest and the highest rate that is sampled"):
        replace(ROWS, pass_rate=bounds)


# --- what dropping biases ------------------------------------------------------------------------------------------------------------
def landed(tokens: int, judged: tuple[int, int] = (0, 0)) -> Trajectory:
    return Trajectory(0, 0, 0, state="landed", spans=(Span(0, 0, tokens),), judged=judged)


def test_a_tally_sums_lengths_and_passes() -> None:
    tally = Tally()
    tally.add(Tally.of(Group(0, 0, [landed(10), landed(30)]), 2, 1))
    one = Tally.of(Group(1, 0, [landed(20), Trajectory(1, 1, 0, tries=1, state="running"), Trajectory(1, 2, 0)]), 0, 0)
    tally.add(one)
    assert tally == Tally(groups=2, landed=3, unfinished=1, tokens=60, tries=2, passes=1)
    assert (tally.mean_tokens, tally.pass_rate) == (20.0, 0.5)
    tally.add(one, times=-1)
    assert tally == Tally(groups=1, landed=2, tokens=40, tries=2, passes=1)


def test_of_nothing_there_is_no_mean() -> None:
    assert (Tally().mean_tokens, Tally().pass_rate) == (None, None)


def test_slow_groups_that_are_dropped_are_on_the_other_side() -> None:
    """P = 2, L = 0, s = 1: uid 1 still runs when 0 and 2 are ready."""
    world = World(replace(ROWS, oversample=1, pass_rate=None))
    world.begin()
    for uid in (0, 2):
        world.land(TrajectoryId(uid, 0, 0), tokens=5)
    world.train(((0, 1, 1), (2, 1, 0)))
    assert world.state.totals.kept == Tally(groups=2, landed=2, tokens=10, tries=2, passes=1)
    assert world.state.totals.lost == {"oversampled": Tally(groups=1, unfinished=1)}


def test_a_group_that_was_judged_as_it_landed_counts_so() -> None:
    world = World(replace(ROWS, n=2, groups_per_batch=1))
    world.begin()
    for traj_uid, right in ((0, 1), (1, 0)):
        judged_landing(world, traj_uid, right)
    world.train()
    assert world.state.totals.kept == Tally(groups=1, landed=2, tokens=6, tries=2, passes=1)


def judged_landing(world: World, traj_uid: int, right: int, uid: int = 0) -> None:
    trajectory = TrajectoryId(uid, traj_uid, 0)
    world._take_off(trajectory)
    world._member(trajectory).state = "landed"
    world.feed(ev.Landed(trajectory, 1, (Span(world.published, 0, 3),), judged=(1, right)))


def filtered(world: World, uid: int, event: ev.Ran) -> None:
    del world.runs["keep_mixed", GroupId(0, uid)]
    if event.verdict == "keep":
        world.group_hops[uid].append("keep_mixed")
    world.feed(event)


def test_what_was_judged_before_a_kill_counts_after_the_resume() -> None:
    """n = 2: trajectory 0 was right and lands before the kill, trajectory 1 after it, and was wrong."""
    config = replace(ROWS, n=2, groups_per_batch=1)
    world = World(config)
    world.begin()
    judged_landing(world, 0, right=1)
    state = resume(config, world.tables)
    assert [trajectory.judged for trajectory in state.groups[0].trajectories] == [(1, 1), (0, 0)]


def test_a_resume_goes_on_with_the_sums_of_what_is_trained_and_dropped_for_good() -> None:
    """Batch 0 is covered, batch 1 is not: it will be trained, and counted, again."""
    config = replace(ROWS, n=1, groups_per_batch=1, save_every=1, pass_rate=None, hops=(Hop("keep_mixed", per="group"),))
    world = World(config)
    world.begin()
    for uid in range(3):
        judged_landing(world, 0, right=uid % 2, uid=uid)
        filtered(world, uid, ev.Ran("keep_mixed", GroupId(0, uid), "keep" if uid else "drop", judged=(4, 4 - uid)))
        if uid:
            world.train()
            if uid == 1:
                world.save(next(iter(world.saves)))
            world.sync("e")
    totals = resume(config, world.tables).totals
    assert totals.kept == Tally(groups=1, landed=1, tokens=3, tries=4, passes=3)
    assert totals.lost == {"keep_mixed": Tally(groups=1, landed=1, tokens=3, tries=4, passes=4)}
