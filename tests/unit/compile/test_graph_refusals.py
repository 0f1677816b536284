"""What is refused, and what is not, beyond the programs of tests/messages."""

from __future__ import annotations

import pytest
from start import Start
from vocabulary import (
    Advantages,
    B,
    Embedded,
    ModelRows,
    Policy,
    ResponseMask,
    Returns,
    Sample,
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
    grpo,
    imitate,
    micro_pack,
    pad,
    ppo_clip,
    shaping,
    shard,
    sync,
)

from rlflow import CheckFailed, Feedback, Served, Tensor, operator, pipeline


def test_a_worker_that_a_sync_fills_may_serve_what_it_owns() -> None:
    class Hybrid(Torch, Embedded):
        """Trains and samples."""

    @pipeline
    def loop(synced: bool) -> None:
        both = Hybrid("both")
        policy = Feedback("policy", init=both.load())
        ready = form_batch(both.rollout(policy.served, dispatch(dataset("train.parquet"), n=4)), prompts=4)
        score = exact_match(ready.response_text, ready.answer, ready.response_mask)
        old = both.log_probs(policy.current, ready.input_ids, ready.response_mask)
        advantages = grpo(shaping(score.token_level_scores), ready.response_mask, ready.uid).advantages
        rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=advantages)
        trained = both.train(policy.move, micro_pack(shard(rows, on=both), max_tokens=64).loss(ppo_clip()))
        if synced:
            policy.close(sync(trained, both))
        else:
            policy.close(trained)

    assert loop(True).warnings == ()
    with pytest.raises(CheckFailed) as refused:
        loop(False)
    assert [(d.code, d.help) for d in refused.value.diagnostics] == [("RLF304", "`policy.close(sync(trained, both))`")]


def test_a_record_that_is_padded_twice_is_padded_once() -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        rows = start.rows()
        one, two = pad(rows, multiple=2), pad(rows, multiple=2)
        start.finish(
            TrainRows(input_ids=one.input_ids, response_mask=one.response_mask, old_log_probs=two.old_log_probs, advantages=one.advantages)
        )

    with pytest.raises(CheckFailed, match="call `pad` once, and read both from its result"):
        loop()


def test_the_result_of_a_refused_call_closes_its_loop() -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        micro = micro_pack(shard(pad(start.rows(), multiple=2), on=start.actor), max_tokens=64)
        trained = start.actor.train(micro.loss(ppo_clip()))  # type: ignore[arg-type, call-arg]
        start.policy.close(sync(trained, start.engine))

    with pytest.raises(CheckFailed) as refused:
        loop()
    assert [d.code for d in refused.value.diagnostics] == ["RLF004"]


@pytest.mark.parametrize("arguments", [{"multipel": 2}, {}])
def test_what_follows_a_row_operator_that_does_not_bind_is_still_traced(arguments: dict[str, int]) -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        rows = pad(start.rows(), **arguments)
        micro = micro_pack(shard(rows, on=start.actor), max_tokens=64)
        start.policy.close(start.actor.train(start.policy.move, micro.loss(ppo_clip())))

    with pytest.raises(CheckFailed) as refused:
        loop()
    assert [d.code for d in refused.value.diagnostics] == ["RLF304", "RLF004"]


def test_rows_that_are_no_record_are_refused_and_end_the_trace() -> None:
    @pipeline
    def loop() -> None:
        start = Start()
        micro = micro_pack(shard(pad(start.advantages, multiple=2), on=start.actor), max_tokens=64)  # type: ignore[type-var]
        start.policy.close(start.actor.train(start.policy.move, micro.loss(ppo_clip())))  # type: ignore[arg-type, type-var]

    with pytest.raises(CheckFailed, match="`rows` of `pad` takes a record, got the field `advantages`"):
        loop()


@pytest.mark.parametrize("prompts", [0, 2.5, "many", lambda: 64])
def test_a_batch_of_no_number_of_prompts_is_refused_for_that_alone(prompts: int) -> None:
    @pipeline
    def loop() -> None:
        start = Start(prompts=prompts)
        start.finish(start.rows())

    with pytest.raises(CheckFailed) as refused:
        loop()
    assert [d.code for d in refused.value.diagnostics] == ["RLF010" if callable(prompts) else "RLF015"]


def test_a_size_that_several_fields_have_is_unbound_once() -> None:
    class Forgetful(Embedded):
        @operator(per="row", sizes={B: T})
        def rollout_turns(self, policy: Served[Policy], prompts: Trajectories) -> Sample: ...  # type: ignore[empty-body]

    @pipeline
    def loop() -> None:
        s = Start()
        s.sample = Forgetful("forgetful").rollout_turns(s.policy.served, s.prompt)
        s.finish(s.rows())

    with pytest.raises(CheckFailed) as found:
        loop()
    unbound = [d.message for d in found.value.diagnostics if d.code == "RLF110"]
    assert unbound == ["nothing binds S, a size of the result of `forgetful.rollout_turns`"]


def test_results_of_one_call_that_went_astray_together_are_one_mistake() -> None:
    class Judged(ModelRows):
        advantages: Advantages
        returns: Returns

    @pipeline
    def loop() -> None:
        s = Start()
        padded = pad(s.ready, multiple=16)
        score = exact_match(padded.response_text, padded.answer, padded.response_mask)
        adv = grpo(shaping(score.token_level_scores), padded.response_mask, padded.uid)
        rows = Judged(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, advantages=adv.advantages, returns=adv.returns)
        micro = micro_pack(shard(rows, on=s.actor), max_tokens=4096)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(imitate())), s.engine))

    with pytest.raises(CheckFailed) as found:
        loop()
    assert [d.code for d in found.value.diagnostics if d.severity == "error"] == ["RLF521"]


def test_what_is_read_of_a_refused_result_is_no_second_mistake() -> None:
    @operator(per="group")
    def untyped(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Tensor: ...  # type: ignore[empty-body]

    @pipeline
    def loop() -> None:
        s = Start()
        s.finish(s.rows(untyped(s.rewards, s.ready.response_mask, s.ready.uid).advantages))  # type: ignore[attr-defined]

    with pytest.raises(CheckFailed) as found:
        loop()
    assert [d.code for d in found.value.diagnostics if d.severity == "error"] == ["RLF002"]


def test_what_a_loop_does_again_and_again_is_told_once() -> None:
    @pipeline
    def loop() -> None:
        s = Start()
        for _ in range(3):
            shaping(s.score.token_level_scores)
        s.finish(s.rows())

    assert [d.code for d in loop().warnings] == ["RLF210"]
