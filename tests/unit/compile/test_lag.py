"""The worst lag that the compiler states is the one that the controller's own rules reach; schedules that ask for more are refused."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from small_loops import filtered, penalised
from start import Start
from vocabulary import Embedded, Torch, dataset, dispatch, form_batch, imitate, micro_pack, pad, shard, sync

from pipelines.grpo import grpo
from rlflow import CheckFailed, Feedback, Plan, Stale, pipeline
from rlflow.compile.facts import Gap
from rlflow.compile.lag import asked_lag, highest_watermark
from rlflow.run.controller.admission import room
from rlflow.run.controller.boarding import first_violation


# --- what the controller does, with counters -----------------------------------------------------------------------------------------
class Loop(NamedTuple):
    """Versions count from the published one: a group's tag is 0 or below, the next batch 0 or above. Groups of one trajectory."""

    next_batch: int
    training: bool
    queued: int
    running: tuple[int, ...]  # tags
    ready: tuple[int, ...]


class Reached(NamedTuple):
    gap: int
    in_flight: int
    queue: int
    stuck: tuple[Loop, ...]  # states in which nothing can happen any more


def reached(*, prompts: int, max_lag: int, watermark: int, queue: int) -> Reached:
    """The largest gap of a trained group, trajectories in flight and batches in the queue, over all orders of events."""
    start = Loop(0, False, 0, (), ())
    seen, frontier, gap, stuck = {start}, [start], 0, list[Loop]()
    while frontier:
        at = frontier.pop()
        following: list[Loop] = []
        waiting = at.running + at.ready
        seats = room(
            waiting=len(waiting), published=0, next_batch=at.next_batch, last=10**6, groups_per_batch=prompts, max_lag=max_lag, oversample=0
        )
        if len(at.running) < watermark and seats >= 1:
            following.append(at._replace(running=tuple(sorted((*at.running, 0)))))
        for tag in set(at.running):
            left = list(at.running)
            left.remove(tag)
            following.append(at._replace(running=tuple(left), ready=tuple(sorted((*at.ready, tag)))))
        takes_one = at.queued < queue or not at.training
        if takes_one and len(at.ready) >= prompts and _boards(at, prompts, max_lag):
            gap = max(gap, at.next_batch - at.ready[0])
            queued = at.queued + at.training  # an idle trainer starts on it at once
            following.append(Loop(at.next_batch + 1, True, queued, at.running, at.ready[prompts:]))
        if at.training:
            older = [tuple(tag - 1 for tag in tags) for tags in (at.running, at.ready)]
            following.append(Loop(at.next_batch - 1, at.queued > 0, max(0, at.queued - 1), *older))
        if not following:
            stuck.append(at)
        new = set(following) - seen
        seen |= new
        frontier += new
    return Reached(gap, max(len(at.running) for at in seen), max(at.queued for at in seen), tuple(stuck))


def _boards(at: Loop, prompts: int, max_lag: int) -> bool:
    tags = [{tag: group.count(tag) for tag in set(group)} for group in (at.running + at.ready, at.ready)]
    return first_violation(*tags, next_batch=at.next_batch, groups_per_batch=prompts, max_lag=max_lag) is None


SCHEDULES = [(p, lag, w, q) for p, lag, q in product((1, 2), (0, 1, 2), (0, 1, 2)) for w in (1, p * (lag + 1), p * (lag + 1) + 1)]


@pytest.mark.parametrize(("prompts", "max_lag", "watermark", "queue"), SCHEDULES)
def test_the_controller_reaches_max_lag_and_no_more(prompts: int, max_lag: int, watermark: int, queue: int) -> None:
    found = reached(prompts=prompts, max_lag=max_lag, watermark=watermark, queue=queue)
    assert found.gap == max_lag
    assert found.in_flight == min(watermark, highest_watermark(max_lag=max_lag, batch=prompts))
    assert found.queue == min(queue, max_lag)
    assert found.stuck == ()  # V8: nor does a bound of 0 wait for ever


# --- numbers ---------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("watermark", "queue", "expected"), [(256, 0, 0), (257, 0, 1), (512, 0, 1), (513, 0, 2), (1, 0, 0), (256, 2, 2), (1024, 1, 3)]
)
def test_the_lag_that_a_schedule_asks_for(watermark: int, queue: int, expected: int) -> None:
    assert asked_lag(watermark=watermark, batch=256, queue=queue) == expected


def test_gaps_of_a_synchronous_loop() -> None:
    assert penalised().facts.gaps == {0: Gap(worst=0, prompts=64, group=8, watermark=512, queue=0)}


def test_a_filter_before_the_batch_changes_nothing() -> None:
    assert filtered(tree=True).facts.gaps == {0: Gap(worst=0, prompts=16, group=4, watermark=64, queue=0)}


def test_a_schedule_is_kept_in_the_plan() -> None:
    first = penalised()
    assert first.feedbacks[0].worst_gap == 0  # looked at before: what is known of the schedule must not stick
    plan = first.scheduled(watermark=100)
    assert plan.facts.gaps == {0: Gap(worst=0, prompts=64, group=8, watermark=100, queue=0)}
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.replace("exact_match", plan_reward).graph.name == "penalised"


def plan_reward(response_text: object, answer: object, response_mask: object) -> object:
    from vocabulary import exact_match

    return exact_match(response_text, answer, response_mask)  # type: ignore[arg-type]


@pytest.mark.parametrize(("watermark", "legal"), [(7, False), (8, True), (512, True), (513, False), (-1, False)])
def test_what_is_legal(watermark: int, legal: bool) -> None:
    if legal:
        penalised().scheduled(watermark=watermark)
    else:
        with pytest.raises(CheckFailed, match=r"8 to 512 are legal") as refused:
            penalised().scheduled(watermark=watermark)
        assert [d.code for d in refused.value.diagnostics] == ["RLF308"]


@pipeline
def two_policies(first: int, second: int) -> None:
    s = Start(max_lag=first)
    rival, engine = Torch("rival"), Embedded("rival engine")
    other = Feedback("other", init=rival.load(), max_lag=second)
    idle = Feedback("idle", init=(still := Torch("still")).load(), max_lag=7)
    theirs = form_batch(engine.rollout(other.served, dispatch(dataset("train.parquet"), n=2)), prompts=8)
    rows = micro_pack(shard(pad(theirs, multiple=1), on=rival), max_tokens=64)
    other.close(sync(rival.train(other.move, rows.loss(imitate())), engine))
    idle.close(still.train(idle.move, micro_pack(shard(pad(theirs, multiple=1), on=still), max_tokens=64).loss(imitate())))
    mine = micro_pack(shard(pad(s.ready, multiple=2), on=s.actor), max_tokens=64)
    s.policy.close(sync(s.actor.train(s.policy.move, mine.loss(imitate())), s.engine))


def test_one_schedule_keeps_the_strictest_bound_and_what_is_not_sampled_does_not_lag() -> None:
    assert [gap.worst for gap in two_policies(3, 1).facts.gaps.values()] == [1, 1, 0]
    assert [gap.watermark for gap in two_policies(3, 1).facts.gaps.values()] == [1024, 32, 0]


# --- what becomes of slow groups --------------------------------------------------------------------------------------------------------
def test_spares_raise_what_may_be_in_flight() -> None:
    """64 prompts of 8 and 4 to spare: 544 trajectories."""
    assert penalised().scheduled(oversample=4).facts.gaps == {0: Gap(worst=0, prompts=64, group=8, watermark=544, oversample=4)}
    penalised().scheduled(watermark=544, oversample=4)
    with pytest.raises(CheckFailed, match=r"a watermark of 545 lets rows of `policy` lag 1 versions, max_lag is 0"):
        penalised().scheduled(watermark=545, oversample=4)


@pytest.mark.parametrize(
    ("stale", "says"),
    [
        ("wait", "trained rows are at most 2 behind, with"),
        ("drop", "trained rows are at most 2 behind, slower groups are dropped, with"),
        ("mask", "trained rows are at most 2 behind, older tokens are masked, with"),
        ("correct", "trained rows are 2 behind, those of slower groups more, with"),
    ],
)
def test_a_plan_says_what_becomes_of_slow_groups(stale: Stale, says: str) -> None:
    plan = grpo(max_lag=2, stale=stale)
    assert plan.facts.gaps[0].stale == plan.feedbacks[0].stale == stale
    assert says in " ".join(plan.explain().split())


def test_the_queue_is_told() -> None:
    assert "in flight and 2 batches ahead of the trainer" in " ".join(grpo(max_lag=2).scheduled(queue=2).explain().split())


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(CheckFailed, match=r"feedback `policy` has stale='hurry'; it is one of wait, drop, mask, correct"):
        grpo(stale="hurry")  # type: ignore[arg-type]


@pytest.mark.parametrize("stale", ["wait", "drop", "mask", "correct"])
def test_at_max_lag_0_no_group_is_late_and_no_policy_asks_for_a_mask(stale: Stale) -> None:
    @pipeline
    def loop() -> None:
        s = Start()
        s.policy.stale = stale
        s.finish(s.rows())

    assert loop().feedbacks[0].stale == stale
