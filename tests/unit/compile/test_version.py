"""What depends on which version; rows and numbers of two versions that meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pytest
from small_loops import penalised
from start import Start
from vocabulary import (
    Advantages,
    B,
    Critic,
    Embedded,
    InputIds,
    ModelRows,
    OldLogProbs,
    Policy,
    PolicyForward,
    ResponseMask,
    RolloutLogProbs,
    S,
    T,
    TokenRewards,
    Torch,
    TorchCritic,
    TrainRows,
    Trajectories,
    Values,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    gae,
    group,
    imitate,
    micro_pack,
    pad,
    ppo_clip,
    shaping,
    shard,
    sync,
    truncated_importance,
)
from vocabulary import grpo as grpo_advantage

from operators.records import Sample
from pipelines.grpo import grpo
from rlflow import (
    CheckFailed,
    Diagnostic,
    Difference,
    Feedback,
    Loss,
    Move,
    Next,
    Plan,
    Record,
    Served,
    Tensor,
    Weights,
    Worker,
    fresh,
    i64,
    operator,
    pipeline,
)


def found(loop: Callable[[], Plan]) -> list[Diagnostic]:
    try:
        return list(loop().warnings)
    except CheckFailed as refused:
        return refused.diagnostics


def codes(loop: Callable[[], Plan]) -> list[str]:
    return [d.code for d in found(loop)]


def versions(plan: Plan, writer: str, name: str) -> tuple[tuple[str, str], ...]:
    node = next(n for n in plan.graph.nodes if n.name == writer)
    return next(plan.facts.versions[out] for out in node.outs if plan.graph.fields[out].name == name)


# --- copies ---------------------------------------------------------------------------------------------------------------------------
def test_what_a_rollout_copies_of_the_prompt_depends_on_no_weights() -> None:
    plan = grpo()
    free = {name for name in Sample.__annotations__ if not versions(plan, "engine.rollout", name)}
    assert free == {"uid", "traj_uid", "answer"}
    assert versions(plan, "form_batch", "uid") == ()
    assert versions(plan, "engine.rollout", "response_mask") == (("policy", "served"),)


def test_without_copies_everything_depends_on_the_weights() -> None:
    assert versions(penalised(), "engine.rollout", "uid") == (("policy", "served"),)


Uid = Annotated[Tensor, i64[B], group]
Tokens = Annotated[Tensor, i64[B, S], group]


class Rows(Record):
    uid: Uid
    tokens: Tokens


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ({"uid": "prompts.uid"}, None),
        ({"uit": "prompts.uid"}, "`rollout` copies `prompts.uid` to `uit`; its result has uid, tokens"),
        ({"uid": "prompts.uit"}, "`rollout` copies `prompts.uit` to `uid`; its result has uid, tokens"),
        (
            {"uid": "prompts.answer"},
            "`rollout` copies `prompts.answer` to `uid`, which is of another dtype or role; its result has uid, tokens",
        ),
        (
            {"tokens": "prompts.prompt_ids"},
            "`rollout` copies `prompts.prompt_ids` to `tokens`, which is of another dtype or role; its result has uid, tokens",
        ),
    ],
)
def test_a_copy_names_a_result_and_an_argument(copies: dict[str, str], message: str | None) -> None:
    class Engine(Worker):
        @operator(per="row", sizes={B: T, S: fresh()}, copies=copies)
        def rollout(self, policy: Served[object], prompts: Trajectories) -> Rows: ...  # type: ignore[empty-body]

    @pipeline
    def loop() -> None:
        s = Start()
        Engine("copier").rollout(s.policy.served, dispatch(dataset("x"), n=2))
        s.finish(s.rows())

    refused = [d.message for d in found(loop) if d.code == "RLF013"]
    assert refused == ([] if message is None else [message])


# --- numbers of two versions ------------------------------------------------------------------------------------------------------------
def _two_estimates(max_lag: int, corrects: tuple[Difference, ...]) -> Callable[[], Plan]:
    @operator(per="row", corrects=corrects)
    def lower(values: Values, other: Values) -> Values: ...  # type: ignore[empty-body]

    @pipeline
    def loop() -> None:
        s = Start()
        critic, replica = Training("critic"), Training("replica")
        baseline = Feedback("baseline", init=critic.load(), max_lag=max_lag)
        old = critic.values(baseline.current, s.ready.input_ids, s.ready.response_mask)
        lagging = replica.values(baseline.served, s.ready.input_ids, s.ready.response_mask)
        adv = gae(s.rewards, lower(old, lagging), s.ready.response_mask)
        baseline.close(sync(critic.fit(baseline.move, s.rewards), replica))
        s.finish(s.rows(adv.advantages))

    return loop


class Training(TorchCritic):
    @operator(per="batch", sink=True)
    def fit(self, weights: Move[Critic], token_level_rewards: TokenRewards) -> Next[Critic]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(("max_lag", "corrects", "expected"), [(1, (), ["RLF307"]), (1, ("version",), []), (0, (), [])])
def test_values_of_two_versions_of_a_critic_do_not_meet(max_lag: int, corrects: tuple[Difference, ...], expected: list[str]) -> None:
    assert codes(_two_estimates(max_lag, corrects)) == expected


def test_values_and_rows_of_different_policies_are_no_mixture() -> None:
    """A critic at k values rows that the policy sampled at k - 1: two feedbacks, nothing of one version to compare."""

    @pipeline
    def loop() -> None:
        s = Start(max_lag=1)
        critic = Training("critic")
        baseline = Feedback("baseline", init=critic.load())
        values = critic.values(baseline.current, s.ready.input_ids, s.ready.response_mask)
        adv = gae(s.rewards, values, s.ready.response_mask)
        baseline.close(critic.fit(baseline.move, s.rewards))
        s.finish(s.rows(truncated_importance(adv.advantages, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)))

    assert codes(loop) == []


# --- rows of another ---------------------------------------------------------------------------------------------------------------------
def _student(own: bool, corrects: tuple[Difference, ...], max_lag: int = 0) -> Callable[[], Plan]:
    class Imitate(Loss[PolicyForward, ModelRows]):
        @property
        def corrects(self) -> tuple[Difference, ...]:
            return corrects

    @pipeline
    def loop() -> None:
        s = Start(max_lag=max_lag)
        student = Torch("student")
        policy = Feedback("student", init=student.load())
        small = micro_pack(shard(pad(s.ready, multiple=2), on=s.actor if own else student), max_tokens=64)
        if own:
            s.policy.close(sync(s.actor.train(s.policy.move, small.loss(Imitate())), s.engine))
            policy.close(student.train(policy.move, micro_pack(shard(pad(s.ready, multiple=1), on=student), max_tokens=64).loss(imitate())))
        else:
            policy.close(student.train(policy.move, small.loss(Imitate())))
            s.policy.close(
                sync(s.actor.train(s.policy.move, micro_pack(shard(s.rows(), on=s.actor), max_tokens=64).loss(imitate())), s.engine)
            )

    return loop


@pytest.mark.parametrize(
    ("own", "max_lag", "corrects", "expected"),
    [
        (True, 0, (), []),
        (True, 1, (), ["RLF307"]),
        (True, 1, ("version",), []),
        (False, 0, (), ["RLF307"]),
        (False, 0, ("version", "engine", "temperature", "top_p"), ["RLF307"]),
        (False, 0, ("policy",), []),
        (False, 1, ("policy",), []),
    ],
)
def test_rows_that_the_policy_in_training_did_not_sample_as_it_is(
    own: bool, max_lag: int, corrects: tuple[Difference, ...], expected: list[str]
) -> None:
    assert codes(_student(own, corrects, max_lag)) == expected


def test_V12_an_anchor_at_k_on_rows_of_an_older_version_needs_a_correction() -> None:
    @pipeline
    def loop(corrected: bool) -> None:
        s = Start(max_lag=1)
        weighed = (
            truncated_importance(s.advantages, s.old(), s.ready.rollout_log_probs, s.ready.response_mask) if corrected else s.advantages
        )
        rows = TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=s.old(), advantages=weighed)
        micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=64)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))

    assert codes(lambda: loop(corrected=True)) == []
    assert codes(lambda: loop(corrected=False)) == ["RLF307"]


class Own(Torch):
    """Trains by a rule of its own, without losses."""

    @operator(per="batch")
    def fit(self, weights: Move[Policy], input_ids: InputIds, old_log_probs: OldLogProbs, advantages: Advantages) -> Next[Policy]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(("max_lag", "corrected", "expected"), [(0, False, []), (1, False, ["RLF307"]), (1, True, [])])
def test_a_call_that_trains_without_losses_is_judged_by_what_it_reads(max_lag: int, corrected: bool, expected: list[str]) -> None:
    @pipeline
    def loop() -> None:
        s = Start()
        own, engine = Own("own"), Embedded("own engine")
        policy = Feedback("own", init=own.load(), max_lag=max_lag)
        ready = form_batch(engine.rollout(policy.served, dispatch(dataset("x"), n=2)), prompts=4)
        score = exact_match(ready.response_text, ready.answer, ready.response_mask)
        weighed = grpo_advantage(shaping(score.token_level_scores), ready.response_mask, ready.uid).advantages
        old = own.log_probs(policy.current, ready.input_ids, ready.response_mask)
        if corrected:
            weighed = truncated_importance(weighed, old, ready.rollout_log_probs, ready.response_mask)
        policy.close(sync(own.fit(policy.move, ready.input_ids, old, weighed), engine))
        s.finish(s.rows())

    assert codes(loop) == expected


def test_copied_log_probs_are_still_those_of_who_scored_them() -> None:
    """A call that hands on what was recorded: at k - lag, not at the version of the weights that it is given."""

    @pipeline
    def loop() -> None:
        s = Start(max_lag=1)
        reference = Again("reference")
        kept = reference.again(reference.load(), s.ready.rollout_log_probs).kept
        s.finish(s.rows(truncated_importance(s.advantages, s.old(), kept, s.ready.response_mask)))

    plan = loop()
    field = next(f.id for f in plan.graph.fields if f.name == "kept")
    assert (plan.facts.scored[field].whose, plan.facts.scored[field].reading) == ("policy", "served")
    assert versions(plan, "reference.again", "kept") == (("policy", "served"),)


class Kept(Record):
    kept: RolloutLogProbs


class Again(Torch):
    @operator(per="row", copies={"kept": "rollout_log_probs"})
    def again(self, weights: Weights[Policy], rollout_log_probs: RolloutLogProbs) -> Kept: ...  # type: ignore[empty-body]


class Drifting(Training):
    @operator(per="row")
    def drift(self, now: Weights[Critic], then: Weights[Critic], response_mask: ResponseMask) -> Values: ...  # type: ignore[empty-body]


def test_a_call_that_compares_two_versions_itself_is_no_mixture() -> None:
    @pipeline
    def loop() -> None:
        s = Start()
        critic = Drifting("critic")
        baseline = Feedback("baseline", init=critic.load(), max_lag=1)
        adv = gae(s.rewards, critic.drift(baseline.current, baseline.served, s.ready.response_mask), s.ready.response_mask)
        baseline.close(sync(critic.fit(baseline.move, s.rewards), critic))
        s.finish(s.rows(adv.advantages))

    assert codes(loop) == []
