"""Whose log-probs a field holds, and which mixtures are refused unless somebody corrects for exactly that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pytest
from start import Start
from vocabulary import (
    Advantages,
    B,
    Embedded,
    InputIds,
    KlRows,
    ModelRows,
    OldLogProbs,
    Policy,
    PolicyForward,
    R,
    RefLogProbs,
    ResponseMask,
    RolloutLogProbs,
    S,
    Sample,
    T,
    TokenScores,
    Torch,
    TrainRows,
    Trajectories,
    anchor_on_rollout,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    grpo,
    imitate,
    log_prob,
    micro_pack,
    pad,
    ppo_clip,
    shaping,
    shard,
    sync,
    truncated_importance,
)

from rlflow import (
    CheckFailed,
    Current,
    Diagnostic,
    Difference,
    Feedback,
    Frozen,
    Loss,
    Plan,
    Served,
    Tensor,
    Worker,
    f32,
    fresh,
    operator,
    pipeline,
)

TeacherLogProbs = Annotated[Tensor, f32[B, R], log_prob("teacher")]


class Teacher:
    """A model to learn from."""


class TorchTeacher(Worker):
    @operator(per="run")
    def load(self) -> Frozen[Teacher]: ...  # type: ignore[empty-body]

    @operator(per="row")
    def log_probs(self, weights: Frozen[Teacher], input_ids: InputIds, response_mask: ResponseMask) -> TeacherLogProbs: ...  # type: ignore[empty-body]


class TeacherRows(ModelRows):
    """Rows and what a teacher makes of them."""

    teacher_log_probs: TeacherLogProbs


class Distill(Loss[PolicyForward, TeacherRows]):
    """KL to the teacher."""


class Towards(Loss[PolicyForward, KlRows]):
    """KL to the reference."""


def found(loop: Callable[[], Plan]) -> list[Diagnostic]:
    try:
        return list(loop().warnings)
    except CheckFailed as refused:
        return refused.diagnostics


def codes(loop: Callable[[], Plan]) -> list[str]:
    return [d.code for d in found(loop)]


def scored(plan: Plan, writer: str, name: str) -> tuple[str, str, float, float, str]:
    """Whose, at which reading, temperature, top-p, by what kind of engine."""
    node = next(n for n in plan.graph.nodes if n.name == writer)
    of = next(plan.facts.scored[out] for out in node.outs if plan.graph.fields[out].name == name)
    return of.whose, of.reading, of.temperature, of.top_p, of.engine


# --- what is known --------------------------------------------------------------------------------------------------------------------
def test_log_probs_are_of_the_weights_and_the_worker_that_made_them() -> None:
    @pipeline
    def loop() -> None:
        s = Start(max_lag=1)
        reference = Torch("reference")
        ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
        anchor = anchor_on_rollout(s.ready.rollout_log_probs)
        rows = Both(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, ref_log_probs=ref, anchor=anchor)
        micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=64)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(Towards(), Anchored())), s.engine))

    plan = loop()
    assert scored(plan, "engine.rollout", "rollout_log_probs") == ("policy", "served", 1.0, 1.0, "Embedded")
    assert scored(plan, "reference.log_probs", "ref") == ("reference", "frozen", 1.0, 1.0, "Torch")
    assert scored(plan, "anchor_on_rollout", "anchor") == ("policy", "served", 1.0, 1.0, "Embedded")
    assert scored(plan, "Both", "ref_log_probs") == ("reference", "frozen", 1.0, 1.0, "Torch")
    node = next(n for n in plan.graph.nodes if n.name == "anchor_on_rollout")
    assert plan.facts.corrected[node.outs[0]] == ("version", "engine")


class AnchorRows(ModelRows):
    anchor: OldLogProbs


class Anchored(Loss[PolicyForward, AnchorRows]):
    """A ratio to the anchor."""


class Both(AnchorRows, KlRows):
    """What the two losses read."""


# --- one difference at a time ---------------------------------------------------------------------------------------------------------
def weigh(corrects: tuple[Difference, ...]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    @operator(per="row", corrects=corrects)
    def weighed(advantages: Advantages, old_log_probs: OldLogProbs, rollout_log_probs: RolloutLogProbs) -> Advantages: ...  # type: ignore[empty-body]

    return weighed


DIFFERENT = {"temperature": {"temperature": 0.5}, "top_p": {"top_p": 0.9}, "version": {"max_lag": 1}, "engine": {}}


@pytest.mark.parametrize("difference", DIFFERENT)
@pytest.mark.parametrize("corrects", [("temperature", "engine"), ("top_p", "engine"), ("version", "engine"), ("engine",), ()])
def test_an_operator_takes_exactly_the_mixtures_that_it_corrects_for(difference: str, corrects: tuple[Difference, ...]) -> None:
    @pipeline
    def loop() -> None:
        s = Start(**DIFFERENT[difference])  # type: ignore[arg-type]
        s.finish(s.rows(weigh(corrects)(s.advantages, s.old(), s.ready.rollout_log_probs)))

    expected = [] if difference in corrects and "engine" in corrects else ["RLF307" if difference == "version" else "RLF123"]
    assert codes(loop) == expected


@pytest.mark.parametrize("corrects", [("engine",), ("version",), ()])
def test_a_loss_that_reads_what_the_engine_recorded_says_so(corrects: tuple[Difference, ...]) -> None:
    class RolloutRows(ModelRows):
        rollout_log_probs: RolloutLogProbs

    class Ratio(Loss[PolicyForward, RolloutRows]):
        @property
        def corrects(self) -> tuple[Difference, ...]:
            return corrects

    @pipeline
    def loop() -> None:
        s = Start()
        rows = RolloutRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, rollout_log_probs=s.ready.rollout_log_probs)
        micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=64)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(Ratio())), s.engine))

    assert codes(loop) == ([] if "engine" in corrects else ["RLF123"])


def test_an_anchor_on_the_rollout_keeps_the_temperature_of_the_rollout() -> None:
    @pipeline
    def loop() -> None:
        s = Start(temperature=0.5)
        rows = AnchorRows(
            input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, anchor=anchor_on_rollout(s.ready.rollout_log_probs)
        )
        micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=64)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(Anchored())), s.engine))

    assert [(d.code, d.message) for d in found(loop)] == [
        ("RLF123", "`actor.train` computes log-probs at temperature 1.0 and reads `anchor` at temperature 0.5")
    ]


def test_a_loss_that_corrects_what_there_is_not_is_refused() -> None:
    class Odd(Loss[PolicyForward, ModelRows]):
        @property
        def corrects(self) -> tuple[Difference, ...]:
            return ("lag",)  # type: ignore[return-value]

    @pipeline
    def loop() -> None:
        s = Start()
        micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=64)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(Odd())), s.engine))

    assert [d.message for d in found(loop)] == ["`Odd` corrects 'lag'; there are version, temperature, top_p, engine, stale, policy"]


# --- two policies -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("corrects", [("policy", "engine"), ("version", "temperature", "top_p", "engine")])
def test_two_policies_meet_where_it_is_meant(corrects: tuple[Difference, ...]) -> None:
    @operator(per="row", corrects=corrects)
    def agree(advantages: Advantages, old_log_probs: OldLogProbs, other_log_probs: OldLogProbs) -> Advantages: ...  # type: ignore[empty-body]

    @pipeline
    def loop() -> None:
        s = Start()
        rival = Torch("rival")
        other = Feedback("other", init=rival.load())
        theirs = rival.log_probs(other.current, s.ready.input_ids, s.ready.response_mask)
        s.finish(s.rows(agree(s.advantages, s.old(), theirs)))
        other.close(rival.train(other.move, micro_pack(shard(pad(s.ready, multiple=1), on=rival), max_tokens=64).loss(imitate())))

    assert codes(loop) == ([] if "policy" in corrects else ["RLF124"])


def test_a_judge_that_learns_too_may_score_the_rows_of_the_policy() -> None:
    class Judge(Torch):
        @operator(per="row")
        def judge(self, weights: Current[Policy], input_ids: InputIds, response_mask: ResponseMask) -> TokenScores: ...  # type: ignore[empty-body]

    @pipeline
    def loop() -> None:
        s = Start()
        judge = Judge("judge")
        taste = Feedback("taste", init=judge.load())
        s.__dict__["score"] = type(
            "Scores", (), {"token_level_scores": judge.judge(taste.current, s.ready.input_ids, s.ready.response_mask)}
        )
        rows = s.rows()
        taste.close(judge.train(taste.move, micro_pack(shard(pad(s.ready, multiple=1), on=judge), max_tokens=64).loss(imitate())))
        s.finish(rows)

    assert codes(loop) == []


# --- teacher and reference --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "given"), [("teacher", "teacher"), ("teacher", "reference"), ("reference", "teacher"), ("reference", "reference")]
)
def test_a_teacher_is_no_reference(asked: str, given: str) -> None:
    @pipeline
    def loop() -> None:
        s = Start()
        frozen: TorchTeacher | Torch = TorchTeacher("teacher") if given == "teacher" else Torch("reference")
        theirs = frozen.log_probs(frozen.load(), s.ready.input_ids, s.ready.response_mask)  # type: ignore[arg-type]
        common = {"input_ids": s.ready.input_ids, "response_mask": s.ready.response_mask}
        if asked == "teacher":
            rows = micro_pack(shard(pad(TeacherRows(**common, teacher_log_probs=theirs), multiple=2), on=s.actor), max_tokens=64).loss(
                Distill()
            )
        else:
            rows = micro_pack(shard(pad(RefRows(**common, ref_log_probs=theirs), multiple=2), on=s.actor), max_tokens=64).loss(Towards())  # type: ignore[assignment]
        s.policy.close(sync(s.actor.train(s.policy.move, rows), s.engine))

    assert codes(loop) == ([] if asked == given else ["RLF121"])


class RefRows(ModelRows):
    ref_log_probs: RefLogProbs


def test_truncated_importance_corrects_for_lag_and_engine_and_nothing_else() -> None:
    from operators.mismatch import anchor_on_rollout as shipped_anchor
    from operators.mismatch import truncated_importance as shipped
    from rlflow.language.operator import declaration_of

    assert [d.corrects for fn in (shipped, shipped_anchor, truncated_importance) if (d := declaration_of(fn))] == [
        ("version", "engine")
    ] * 3


@pytest.mark.parametrize(
    ("corrects", "expected"), [(("policy",), []), (("temperature",), []), (("version",), ["RLF123"]), ((), ["RLF123"])]
)
def test_who_imitates_takes_rows_of_any_temperature(corrects: tuple[Difference, ...], expected: list[str]) -> None:
    class Imitate(Loss[PolicyForward, ModelRows]):
        @property
        def corrects(self) -> tuple[Difference, ...]:
            return corrects

    @pipeline
    def loop() -> None:
        s = Start(temperature=0.5)
        micro = micro_pack(shard(pad(s.ready, multiple=2), on=s.actor), max_tokens=64)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(Imitate())), s.engine))

    assert codes(loop) == expected


class Arena(Embedded):
    """Two policies play each other."""

    @operator(per="row", sizes={B: T, S: fresh()})
    def play(self, left: Served[Policy], right: Served[Policy], prompts: Trajectories) -> Sample: ...  # type: ignore[empty-body]


def test_both_sides_of_a_game_train_on_its_rows() -> None:
    @pipeline
    def loop() -> None:
        arena, left, right = Arena("arena"), Torch("left"), Torch("right")
        one, two = (Feedback(worker.name, init=worker.load(), max_lag=1) for worker in (left, right))
        ready = form_batch(arena.play(one.served, two.served, dispatch(dataset("x"), n=2)), prompts=4)
        score = exact_match(ready.response_text, ready.answer, ready.response_mask)
        adv = grpo(shaping(score.token_level_scores), ready.response_mask, ready.uid).advantages
        for policy, worker in ((one, left), (two, right)):
            old = worker.log_probs(policy.current, ready.input_ids, ready.response_mask)
            weighed = truncated_importance(adv, old, ready.rollout_log_probs, ready.response_mask)
            rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=weighed)
            micro = micro_pack(shard(pad(rows, multiple=1), on=worker), max_tokens=64)
            policy.close(sync(worker.train(policy.move, micro.loss(ppo_clip())), arena))

    assert codes(loop) == []
