"""Row discipline: what row operators give, keep and lose, and what is refused by it, beyond the programs of tests/messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from small_loops import Scored
from start import Start
from vocabulary import (
    Advantage,
    Advantages,
    B,
    Embedded,
    P,
    Prompts,
    PromptUid,
    R,
    ResponseMask,
    T,
    TokenRewards,
    Torch,
    TrainRows,
    Trajectories,
    Uid,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    gae,
    grpo,
    keep_mixed,
    micro_pack,
    pad,
    ppo_clip,
    rebalance,
    rloo,
    shaping,
    shard,
    sync,
)

from rlflow import CheckFailed, Feedback, Plan, Record, RowsT, Tensor, dims, f32, flag, fresh, operator, pipeline, roles
from rlflow.compile.facts import RowSet

K = dims("K")[0]
mask, member, value = roles("mask member value")


@operator(per="batch", rows="permute")
def shuffle(rows: RowsT, *, seed: int) -> RowsT: ...  # type: ignore[empty-body]


@operator(per="row", rows="filter")
def drop_long(rows: RowsT, response_mask: ResponseMask) -> RowsT: ...  # type: ignore[empty-body]


@operator(per="batch")
def centred(advantages: Advantages) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="batch")
def centred_by(advantages: Advantages, is_pad: Annotated[Tensor, flag[B], mask("pad")]) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="row")
def flags(advantages: Advantages) -> Annotated[Tensor, flag[B], mask("pad")]: ...  # type: ignore[empty-body]


def codes(run: Callable[[], Any]) -> list[str]:
    """Of all errors of a pipeline."""
    try:
        run()
    except CheckFailed as refused:
        return [d.code for d in refused.diagnostics if d.severity == "error"]
    return []


def trained(change: Callable[[Start, TrainRows], TrainRows], *, mini_batches: int = 1, **options: Any) -> Callable[[], Plan]:
    """A loop whose rows are changed before they are cut."""

    @pipeline
    def loop() -> None:
        start = Start(**options)
        rows = shard(change(start, start.rows()), on=start.actor, mini_batches=mini_batches)
        micro = micro_pack(rows, max_tokens=64)
        start.policy.close(sync(start.actor.train(start.policy.move, micro.loss(ppo_clip())), start.engine))

    return loop


def last(plan: Plan, writer: str) -> RowSet:
    node = next(n for n in plan.graph.nodes if n.name == writer)
    found = plan.facts.rows_of(node.outs[0])
    assert found is not None
    return found


def facts(rows: RowSet) -> dict[str, object]:
    names = ("whole", "group", "padded", "multiple", "balanced", "mini_batches", "cut_for", "packed")
    return {name: getattr(rows, name) for name in names}


def test_the_facts_along_a_whole_loop() -> None:
    plan = trained(lambda s, rows: rebalance(pad(rows, multiple=6), pieces=4, mini_batches=3), mini_batches=3)()
    start = {
        "whole": True,
        "group": 8,
        "padded": False,
        "multiple": 1,
        "balanced": False,
        "mini_batches": None,
        "cut_for": None,
        "packed": False,
    }
    actor = 0
    assert facts(last(plan, "form_batch")) == start
    assert facts(last(plan, "pad")) == (padded := start | {"padded": True, "multiple": 6})
    assert facts(last(plan, "rebalance")) == (dealt := padded | {"balanced": True, "mini_batches": 3})
    assert facts(last(plan, "shard")) == (cut := dealt | {"whole": False, "multiple": 1, "cut_for": actor})
    assert facts(last(plan, "micro_pack")) == cut | {"packed": True}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda s, rows: rebalance(pad(rows, multiple=2), pieces=4), []),
        (lambda s, rows: pad(rebalance(rows, pieces=4), multiple=2), ["RLF502"]),
        (lambda s, rows: pad(pad(rows, multiple=2), multiple=4), ["RLF502"]),
        (lambda s, rows: rebalance(rebalance(rows, pieces=4), pieces=4), ["RLF502"]),
        (lambda s, rows: rebalance(shuffle(shuffle(rows, seed=1), seed=2), pieces=4), []),
        (lambda s, rows: shuffle(rebalance(rows, pieces=4), seed=1), ["RLF502"]),
        (lambda s, rows: pad(drop_long(rows, s.ready.response_mask), multiple=2), []),
        (lambda s, rows: drop_long(pad(rows, multiple=2), s.ready.response_mask), ["RLF521"]),
        (lambda s, rows: drop_long(padded := pad(rows, multiple=2), padded.response_mask), ["RLF502"]),
        (lambda s, rows: drop_long(dealt := rebalance(rows, pieces=4), dealt.response_mask), ["RLF502"]),
        (lambda s, rows: drop_long(cut := shard(rows, on=s.actor), cut.response_mask), ["RLF502"]),
        (lambda s, rows: pad(shard(rows, on=s.actor), multiple=2), ["RLF502"]),
        (lambda s, rows: shard(rows, on=s.actor), ["RLF502"]),
    ],
)
def test_row_operators_have_an_order(change: Callable[[Start, TrainRows], TrainRows], refused: list[str]) -> None:
    assert codes(trained(change)) == refused


@pytest.mark.parametrize(("dealt", "cut", "refused"), [(2, 2, []), (2, 1, ["RLF511"]), (1, 2, ["RLF511"]), (None, 2, [])])
def test_mini_batches_are_dealt_and_cut_in_one_number(dealt: int | None, cut: int, refused: list[str]) -> None:
    def change(start: Start, rows: TrainRows) -> TrainRows:
        return rows if dealt is None else rebalance(rows, pieces=4, mini_batches=dealt)

    assert codes(trained(change, mini_batches=cut)) == refused


def test_a_shuffle_deals_no_mini_batches() -> None:
    assert codes(trained(lambda s, rows: shuffle(rows, seed=0), mini_batches=4)) == []


def test_a_record_of_rows_that_differ_cannot_be_padded() -> None:
    class Mixed(Record):
        uid: Uid
        prompt_uid: PromptUid

    @pipeline
    def loop() -> None:
        start = Start()
        prompts = dataset("other.parquet")
        pad(Mixed(uid=start.ready.uid, prompt_uid=prompts.uid), multiple=2)
        start.finish(start.rows())

    with pytest.raises(CheckFailed) as refused:
        loop()
    assert [(d.code, d.message) for d in refused.value.diagnostics if d.severity == "error"] == [
        ("RLF520", "`prompt_uid` and `uid` have unrelated rows in `pad`")
    ]


def test_a_filter_judges_by_the_rows_that_it_drops() -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        score = exact_match(start.sample.response_text, start.sample.answer, start.sample.response_mask).token_level_scores
        sample = start.sample
        scored = Scored(input_ids=sample.input_ids, response_mask=sample.response_mask, token_level_scores=score, uid=sample.uid)
        once = keep_mixed(scored, score)
        twice = keep_mixed(once, score)  # of the rows before the first filter
        form_batch(twice, prompts=4)
        start.finish(start.rows())

    assert codes(loop) == ["RLF521"]


# --- a group of one -------------------------------------------------------------------------------------------------------------------
@operator(per="group", least_group=2)
def by_trajectory(  # type: ignore[empty-body]
    token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, traj_uid: Annotated[Tensor, f32[B], member("trajectory")]
) -> Advantage: ...


@operator(per="row")
def numbered(uid: Uid) -> Annotated[Tensor, f32[B], member("trajectory")]: ...  # type: ignore[empty-body]


def grouped(n: int, estimator: Any = grpo, *, tree: bool = False, numbers: bool = False, spread: Any = None) -> Plan:
    @pipeline
    def loop() -> None:
        actor, engine = Torch("actor"), Embedded("engine")
        policy = Feedback("policy", init=actor.load())
        prompt = spread(dataset("train.parquet")) if spread else dispatch(dataset("train.parquet"), n=n)
        sample = engine.rollout_tree(policy.served, prompt) if tree else engine.rollout(policy.served, prompt)
        ready = form_batch(sample, prompts=4)
        rewards = shaping(exact_match(ready.response_text, ready.answer, ready.response_mask).token_level_scores)
        more = {"traj_uid": numbered(ready.uid)} if numbers else {}
        adv = estimator(rewards, ready.response_mask, ready.uid, **more)
        old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
        rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=adv.advantages)
        trained = actor.train(policy.move, micro_pack(shard(rows, on=actor), max_tokens=64).loss(ppo_clip()))
        policy.close(sync(trained, engine))

    return loop()


@pytest.mark.parametrize("estimator", [grpo, rloo])
@pytest.mark.parametrize(("n", "refused"), [(1, ["RLF512"]), (2, []), (8, [])])
def test_a_group_of_one(estimator: Any, n: int, refused: list[str]) -> None:
    assert codes(lambda: grouped(n, estimator)) == refused


def test_a_group_of_one_by_a_swap() -> None:
    plan = grouped(1, lambda rewards, mask, uid: gae(rewards, rewards_as_values(rewards), mask))
    assert codes(lambda: plan.replace("gae", rloo_of_values)) == ["RLF512"]


@operator(per="row")
def rewards_as_values(token_level_rewards: TokenRewards) -> Annotated[Tensor, f32[B, R], value]: ...  # type: ignore[empty-body]


@operator(per="group", least_group=2)
def rloo_of_values(token_level_rewards: TokenRewards, response_mask: ResponseMask) -> Advantage: ...  # type: ignore[empty-body]


def test_leaves_of_a_tree_are_told_apart_by_trajectory() -> None:
    assert codes(lambda: grouped(1, tree=True)) == ["RLF513"]
    assert codes(lambda: grouped(2, tree=True)) == ["RLF513"]
    assert codes(lambda: grouped(1, by_trajectory, tree=True, numbers=True)) == ["RLF512"]
    assert codes(lambda: grouped(2, by_trajectory, tree=True, numbers=True)) == []


def test_what_only_groups_have_is_declared_of_groups_only() -> None:
    with pytest.raises(CheckFailed, match='has least_group=2, per="row"'):

        @operator(per="row", least_group=2)
        def alone(uid: Uid) -> Uid: ...  # type: ignore[empty-body]


def test_a_group_of_unknown_size_is_no_news() -> None:
    @operator(per="row", rows="expand", sizes={T: P * K, K: fresh()})
    def branch(prompts: Prompts) -> Trajectories: ...  # type: ignore[empty-body]

    assert codes(lambda: grouped(1, spread=branch)) == []


# --- statistics over pad rows ---------------------------------------------------------------------------------------------------------
def normalised(by: Callable[[TrainRows, Start], Tensor], *, padded: bool) -> Callable[[], Plan]:
    def change(start: Start, rows: TrainRows) -> TrainRows:
        rows = pad(rows, multiple=6) if padded else rows
        return TrainRows(
            input_ids=rows.input_ids, response_mask=rows.response_mask, old_log_probs=rows.old_log_probs, advantages=by(rows, start)
        )

    return trained(change)


@operator(per="row")
def scaled(advantages: Advantages) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="batch")
def centred_in(advantages: Advantages, response_mask: ResponseMask) -> Advantages: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("by", "padded", "refused"),
    [
        (lambda rows, s: centred(rows.advantages), True, ["RLF524"]),
        (lambda rows, s: centred(rows.advantages), False, []),
        (lambda rows, s: centred_in(rows.advantages, rows.response_mask), True, []),
        (lambda rows, s: centred_by(rows.advantages, flags(rows.advantages)), True, []),
        (lambda rows, s: scaled(rows.advantages), True, []),
    ],
)
def test_statistics_over_pad_rows(by: Callable[[TrainRows, Start], Tensor], padded: bool, refused: list[str]) -> None:
    assert codes(normalised(by, padded=padded)) == refused


# --- the way out -------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "help"),
    [
        (lambda s, rows: form_batch(rows, prompts=4), "call `form_batch` once"),
        (lambda s, rows: pad(s.sample, multiple=2), "put `form_batch(...)` before it"),
        (lambda s, rows: pad(shard(rows, on=s.actor), multiple=2), "the other way round: `shard(pad(rows, multiple=2), on=s.actor)`"),
        (lambda s, rows: pad(micro_pack(shard(rows, on=s.actor), max_tokens=64).rows, multiple=2), "call `pad` before `shard`"),
        (lambda s, rows: shard(shard(rows, on=s.actor), on=s.actor), "call `shard` once"),
        (lambda s, rows: micro_pack(rows, max_tokens=64), "put `shard(...)` before it"),
        (lambda s, rows: rebalance(rebalance(rows, pieces=4), pieces=4), "call `rebalance` once"),
        (lambda s, rows: shuffle(rebalance(rows, pieces=4), seed=1), "keep one of `rebalance` and `shuffle`"),
        (lambda s, rows: pad(rebalance(rows, pieces=4), multiple=2), "the other way round: `rebalance(pad(rows, multiple=2), pieces=4)`"),
        (lambda s, rows: pad(pad(rows, multiple=4), multiple=6), "pad once: `pad(rows, multiple=12)`"),
    ],
)
def test_the_message_says_the_way_out(wrong: Callable[[Start, TrainRows], object], help: str) -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        rows = start.rows()
        wrong(start, rows)
        start.finish(rows)

    with pytest.raises(CheckFailed) as refused:
        loop()
    assert [(d.code, d.help) for d in refused.value.diagnostics if d.severity == "error"] == [("RLF502", help)]
