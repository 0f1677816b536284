"""V: versions, staleness, what a log-prob is of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusals import accepted, refused, written
from start import Start
from vocabulary import (
    Advantages,
    B,
    Embedded,
    InputIds,
    KlTrainRows,
    OldLogProbs,
    Policy,
    PolicyForward,
    ResponseMask,
    RolloutLogProbs,
    S,
    Sample,
    Torch,
    TrainRows,
    anchor_on_rollout,
    exact_match,
    form_batch,
    grpo,
    kl_penalty,
    micro_pack,
    pad,
    ppo_clip,
    shaping,
    shard,
    sync,
    truncated_importance,
)

from rlflow import Feedback, Loss, Record, Served, Tensor, absent, fresh, operator, pipeline


# --- V3: a second source
class Gateway(Embedded):
    """Applications play sessions through it."""

    @operator(per="row", sizes={B: fresh(), S: fresh()})
    def recorded(self, *, application: str) -> Sample: ...  # type: ignore[empty-body]

    @operator(per="row", sizes={B: fresh(), S: fresh()})
    def sessions(self, policy: Served[Policy], *, application: str) -> Sample: ...  # type: ignore[empty-body]


def _on_sessions(versioned: bool, corrected: bool = False, max_lag: int = 4) -> None:
    actor, gateway = Torch("actor", dp=2), Gateway("gateway")
    policy = Feedback("policy", init=actor.load(), max_lag=max_lag)
    played = gateway.sessions(policy.served, application="tutor") if versioned else gateway.recorded(application="tutor")
    ready = form_batch(played, prompts=64)
    score = exact_match(ready.response_text, ready.answer, ready.response_mask)
    advantages = grpo(shaping(score.token_level_scores), ready.response_mask, ready.uid).advantages
    old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
    if corrected:
        advantages = truncated_importance(advantages, old, ready.rollout_log_probs, ready.response_mask)
    rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=advantages)
    micro = micro_pack(shard(pad(rows, multiple=2), on=actor), max_tokens=4096)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip())), gateway))


def test_V3_a_source_of_rows_says_which_version_sampled_them() -> None:
    """Sessions from outside went into the batch past the gate that bounds staleness: nothing knew how old they were."""
    found = refused(_on_sessions, versioned=False)
    assert (found.code, written(found)) == ("RLF204", 'gateway.recorded(application="tutor")')
    assert found.message == "`gateway.recorded` yields `rollout_log_probs`, log-probs of weights as served, and is given no weights"
    assert found.help == "let it take them: `policy: Served[...]`, and pass the feedback's `.served`"


def test_V3_every_source_is_held_to_the_bound() -> None:
    """The same: a source that names its version is judged like the engine's own rows, by max_lag and by what corrects for it."""
    found = refused(_on_sessions, versioned=True)
    assert (found.code, written(found)) == ("RLF307", "actor.train(policy.move, micro.loss(ppo_clip()))")
    assert accepted(_on_sessions, versioned=True, corrected=True)


class Played(Record):
    """Sessions without the log-probs of whoever sampled them."""

    input_ids: InputIds
    response_mask: ResponseMask
    advantages: Advantages


@operator(per="row", sizes={B: fresh(), S: fresh()})
def uploaded(*, application: str) -> Played: ...  # type: ignore[empty-body]


def test_V3_rows_that_no_policy_sampled_have_no_ratio() -> None:
    """The same of rows that bring no log-probs: scored by the current weights, they look as fresh as any."""

    def loop() -> None:
        actor = Torch("actor", dp=2)
        policy = Feedback("policy", init=actor.load(), max_lag=4)
        ready = form_batch(uploaded(application="tutor"), prompts=64)
        old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
        rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=ready.advantages)
        micro = micro_pack(shard(pad(rows, multiple=2), on=actor), max_tokens=4096)
        policy.close(actor.train(policy.move, micro.loss(ppo_clip())))

    found = refused(loop)
    assert (found.code, written(found)) == ("RLF307", "actor.train(policy.move, micro.loss(ppo_clip()))")
    assert found.message == "`actor.train` takes a ratio on rows that no policy sampled, uncorrected"
    assert "the rows come from here" in [label.text for label in found.related]


# --- V12: the anchor of the ratio
def _asynchronous(how: str) -> None:
    s = Start(max_lag=2)
    if how == "weighed":
        s.finish(s.rows(truncated_importance(s.advantages, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)))
        return
    old = anchor_on_rollout(s.ready.rollout_log_probs) if how == "anchored" else s.old()
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))


def test_V12_a_ratio_that_is_anchored_to_a_policy_that_never_sampled_is_refused() -> None:
    """Rows were two versions old, old log-probs were computed anew by the current weights, and the ratio started at 1 as if on-policy."""
    found = refused(_asynchronous, how="recomputed")
    assert found.code == "RLF307"
    assert found.message == "`actor.train` mixes rows sampled at `policy` k - 2 with log-probs at k, uncorrected"
    assert found.notes == ("the ratio is then anchored to a policy that never sampled these tokens",)
    assert found.help == (
        "weigh the advantages with `truncated_importance(...)`, anchor on the rollout with `anchor_on_rollout(...)`, or set max_lag=0"
    )


@pytest.mark.parametrize("how", ["weighed", "anchored"])
def test_V12_what_accounts_for_the_lag_is_accepted(how: str) -> None:
    """The same, repaired in both of the ways that the message names."""
    assert accepted(_asynchronous, how=how)


# --- V13: temperature
def _at_temperature(temperature: float, max_lag: int) -> None:
    s = Start(max_lag=max_lag, temperature=temperature)
    weighed = s.advantages
    if max_lag:
        weighed = truncated_importance(weighed, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)
    s.finish(s.rows(weighed))


def test_V13_log_probs_at_two_temperatures_do_not_meet() -> None:
    """The engine sampled at 0.6, the trainer scored at 1: the ratio was 1.14 on-policy, and importance weights corrected no real gap."""
    found = refused(_at_temperature, temperature=0.6, max_lag=1)
    assert (found.code, written(found)) == ("RLF123", "s.ready.rollout_log_probs")
    assert found.message == "log-probs at temperature 0.6 and 1.0 meet in `truncated_importance`"


def test_V13_what_is_trained_is_what_was_sampled() -> None:
    """The same where no two log-probs meet: the ratio is 1, and it is still another policy that is trained than the one that sampled."""
    found = refused(_at_temperature, temperature=0.6, max_lag=0)
    assert found.code == "RLF123"
    assert found.message == "`engine` samples `policy` at temperature 0.6, `actor` trains it at 1.0"
    assert accepted(_at_temperature, temperature=1.0, max_lag=0)


# --- V14: top-p
@operator(per="row", corrects=("top_p", "version", "engine"))
def weighed_by_kept_mass(  # type: ignore[empty-body]
    advantages: Advantages, old_log_probs: OldLogProbs, rollout_log_probs: RolloutLogProbs, response_mask: ResponseMask
) -> Advantages: ...


def _cut_at(top_p: float, max_lag: int, weigh: Callable[..., Tensor] = truncated_importance) -> None:
    s = Start(max_lag=max_lag, top_p=top_p)
    weighed = s.advantages
    if max_lag:
        weighed = weigh(weighed, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)
    s.finish(s.rows(weighed))


def test_V14_log_probs_of_a_cut_distribution_do_not_meet_those_of_the_whole() -> None:
    """An engine that cuts at top-p 0.9 renormalises what is left: with weights unchanged, every ratio was the mass that was kept."""
    found = refused(_cut_at, top_p=0.9, max_lag=1)
    assert (found.code, written(found)) == ("RLF123", "s.ready.rollout_log_probs")
    assert found.message == "log-probs at top-p 0.9 and 1.0 meet in `truncated_importance`"
    assert found.notes == ("a ratio of the two is the mass that top-p keeps, even when the weights are equal",)


def test_V14_a_policy_that_is_cut_when_it_samples_is_another_than_the_one_that_is_trained() -> None:
    """The same where no two log-probs meet."""
    found = refused(_cut_at, top_p=0.9, max_lag=0)
    assert (found.code, found.message) == ("RLF123", "`engine` samples `policy` at top-p 0.9, `actor` trains it at 1.0")
    assert accepted(_cut_at, top_p=1.0, max_lag=0)


def test_V14_an_operator_may_say_that_it_corrects_for_the_cut() -> None:
    """The same, repaired by somebody who knows what they do, in so many words."""
    assert accepted(_cut_at, top_p=0.9, max_lag=1, weigh=weighed_by_kept_mass)


# --- V18: hops that nobody reads
class GradientRows(Record):
    advantages: Advantages
    response_mask: ResponseMask


class policy_gradient(Loss[PolicyForward, GradientRows]):
    """Has no ratio, so it reads no old log-probs."""


class AllRows(KlTrainRows, GradientRows): ...


LOSSES = {"ppo_clip": ppo_clip(), "policy_gradient": policy_gradient()}


def _recipe(loss: str, kl: float, weighed: bool, skip_old: bool = False) -> None:
    """Every hop is written down, whoever reads it."""
    s = Start(max_lag=int(weighed))
    reference = Torch("reference")
    old = absent("skip_old is set") if skip_old else s.old()
    ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
    advantages = s.advantages
    if weighed:
        advantages = truncated_importance(advantages, old, s.ready.rollout_log_probs, s.ready.response_mask)
    rows = AllRows(
        input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, ref_log_probs=ref, advantages=advantages
    )
    micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(LOSSES[loss], kl_penalty(kl))), s.engine))


FORWARDS = {  # loss, kl, importance weights → which forwards of whole models remain
    ("ppo_clip", 0.0, False): {"actor"},
    ("ppo_clip", 0.1, False): {"actor", "reference"},
    ("ppo_clip", 0.0, True): {"actor"},
    ("ppo_clip", 0.1, True): {"actor", "reference"},
    ("policy_gradient", 0.0, False): set[str](),
    ("policy_gradient", 0.1, False): {"reference"},
    ("policy_gradient", 0.0, True): {"actor"},
    ("policy_gradient", 0.1, True): {"actor", "reference"},
}


@pytest.mark.parametrize(("loss", "kl", "weighed"), FORWARDS)
def test_V18_log_probs_are_computed_where_somebody_reads_them(loss: str, kl: float, weighed: bool) -> None:
    """A flag skipped the forward of old log-probs for losses that need none, and importance weights, which do, read what was not there."""
    plan = pipeline(_recipe)(loss, kl, weighed)
    forwards = {
        node.title.removesuffix(".log_probs")
        for node in plan.graph.nodes
        if node.title.endswith(".log_probs") and node.id in plan.facts.needed
    }
    assert forwards == FORWARDS[loss, kl, weighed]


@pytest.mark.parametrize(
    ("loss", "weighed", "reader"), [("ppo_clip", False, "ppo_clip"), ("policy_gradient", True, "truncated_importance")]
)
def test_V18_a_hop_that_is_skipped_by_hand_is_missed_by_name(loss: str, weighed: bool, reader: str) -> None:
    """The same, with the flag: whoever still reads them is named before the launch."""
    found = refused(_recipe, loss=loss, kl=0.0, weighed=weighed, skip_old=True)
    assert (found.code, found.message) == ("RLF008", f"nothing makes `old_log_probs`, which `{reader}` reads")


def test_V18_a_hop_that_nobody_reads_may_be_skipped() -> None:
    """The same, where nobody reads them."""
    assert accepted(_recipe, loss="policy_gradient", kl=0.1, weighed=False, skip_old=True)
