"""Workers on the same devices: who sleeps and wakes before which call, and what can take no turns."""

from __future__ import annotations

import pytest
from start import Start
from vocabulary import (
    Embedded,
    InputIds,
    KlTrainRows,
    Policy,
    ResponseMask,
    TokenScores,
    Torch,
    grpo,
    imitate,
    kl_penalty,
    micro_pack,
    pad,
    ppo_clip,
    shaping,
    shard,
    sync,
)

from rlflow import CheckFailed, Devices, Feedback, Plan, Served, operator, pipeline  # fmt: skip


class Judge(Embedded):
    """An engine that is also asked about rows of the batch."""

    @operator(per="row")
    def score(self, policy: Served[Policy], input_ids: InputIds, response_mask: ResponseMask) -> TokenScores: ...  # type: ignore[empty-body]


def sleeps(plan: Plan) -> list[str]:
    """`before CALL: ACTION PART of WORKER`, in order."""
    names = [worker.name for worker in plan.graph.workers]
    return [f"{plan.graph.nodes[s.before].name}: {s.action} {s.part} of {names[s.worker]}" for s in plan.facts.sleeps]


@pipeline
def together(apart: bool = False) -> None:
    s = Start(on=None if apart else Devices("gpus", count=8))
    s.finish(s.rows())


@pipeline
def with_reference() -> None:
    """Engine, actor and reference on the same devices; the penalty keeps the reference alive."""
    gpus = Devices("gpus", count=4)
    s = Start(on=gpus, dp=4)
    reference = Torch("reference", tp=4, on=gpus)
    ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
    rows = KlTrainRows(**vars(s.rows()), ref_log_probs=ref)
    micro = micro_pack(shard(pad(rows, multiple=4), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip(), kl_penalty(0.1))), s.engine))


@pipeline
def judged() -> None:
    """The engine is asked again after the actor had the devices, before any sync."""
    gpus = Devices("gpus", count=2)
    actor, engine = Torch("actor", dp=2, on=gpus), Judge("engine", on=gpus)
    s = object.__new__(Start)
    s.prompts, s.actor, s.engine = 64, actor, engine
    s.policy = Feedback("policy", init=actor.load())
    s.sample = _sampled(s)
    old = s.old()
    scores = engine.score(s.policy.served, s.ready.input_ids, s.ready.response_mask)
    adv = grpo(shaping(scores), s.ready.response_mask, s.ready.uid)
    rows = s.rows(adv.advantages)
    object.__setattr__(rows, "old_log_probs", old)
    s.finish(rows)


def _sampled(s: Start):  # type: ignore[no-untyped-def]
    from vocabulary import dataset, dispatch

    return s.engine.rollout(s.policy.served, dispatch(dataset("train.parquet"), n=8))


def test_engine_and_actor_take_turns_and_only_weights_are_held_by_both_in_a_sync() -> None:
    assert sleeps(together()) == [
        "engine.rollout: offload weights of actor",
        "engine.rollout: resume kv_cache of engine",
        "actor.log_probs: release kv_cache of engine",
        "actor.log_probs: release weights of engine",
        "actor.log_probs: onload weights of actor",
        "actor.train: onload optimizer of actor",
        "sync: offload optimizer of actor",
        "sync: resume weights of engine",
    ]


def test_workers_with_devices_of_their_own_do_not_sleep() -> None:
    assert sleeps(together(apart=True)) == []


def test_a_third_worker_has_its_turn_alone() -> None:
    plan = with_reference()
    assert plan.facts.ranks == {0: (0, 1, 2, 3), 1: (0,), 2: (0, 1, 2, 3)}
    assert sleeps(plan) == [
        "engine.rollout: offload weights of actor",
        "engine.rollout: resume kv_cache of engine",
        "reference.log_probs: release kv_cache of engine",
        "reference.log_probs: release weights of engine",
        "reference.log_probs: onload weights of reference",
        "actor.log_probs: offload weights of reference",
        "actor.log_probs: onload weights of actor",
        "actor.train: onload optimizer of actor",
        "sync: offload optimizer of actor",
        "sync: resume weights of engine",
    ]


@pytest.mark.parametrize("plan", [together(), with_reference(), judged()], ids=["together", "with_reference", "judged"])
def test_W4_after_a_wake_an_engine_serves_what_the_last_sync_brought(plan: Plan) -> None:
    """Weights that were thrown away come back by a sync and by nothing else; others are kept on the host."""
    filled = {node.id: node.params["engine"]["$worker"] for node in plan.graph.nodes if node.serves == "engine"}
    weights = [s for s in plan.facts.sleeps if s.part == "weights"]
    assert any(s.action == "release" for s in weights)
    for at, shift in enumerate(weights):
        again = next(s for s in [*weights[at + 1 :], *weights[: at + 1]] if s.worker == shift.worker)
        if shift.action == "release":
            assert (again.action, filled.get(again.before)) == ("resume", shift.worker)
        elif shift.action == "offload":
            assert again.action == "onload"


@pytest.mark.parametrize("plan", [together(), with_reference(), judged()], ids=["together", "with_reference", "judged"])
def test_room_is_made_before_it_is_taken(plan: Plan) -> None:
    for call in {s.before for s in plan.facts.sleeps}:
        takes = [s.action in ("resume", "onload") for s in plan.facts.sleeps if s.before == call]
        assert takes == sorted(takes)


def test_an_engine_that_is_asked_before_the_next_sync_keeps_its_weights_on_the_host() -> None:
    found = sleeps(judged())
    assert "actor.log_probs: offload weights of engine" in found
    assert "engine.score: onload weights of engine" in found
    assert "actor.train: release weights of engine" in found


def test_dead_calls_take_no_turn() -> None:
    @pipeline
    def loop() -> None:
        gpus = Devices("gpus", count=2)
        s = Start(on=gpus)
        reference = Torch("reference", on=gpus)
        ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
        s.finish(KlTrainRows(**vars(s.rows()), ref_log_probs=ref))

    assert not [text for text in sleeps(loop()) if "reference" in text]


def test_colocated_trainers_may_lag_when_the_engine_is_elsewhere() -> None:
    @pipeline
    def loop(shared: bool) -> None:
        gpus = Devices("gpus", count=2)
        actor, engine = Torch("actor", on=gpus), Embedded("engine", on=gpus if shared else None)
        critic = Torch("reference", on=gpus)
        policy = Feedback("policy", init=actor.load(), max_lag=1)
        s = object.__new__(Start)
        s.prompts, s.actor, s.engine, s.policy = 64, actor, engine, policy
        s.sample = _sampled(s)
        ref = critic.log_probs(critic.load(), s.ready.input_ids, s.ready.response_mask)
        rows = KlTrainRows(**vars(s.rows()), ref_log_probs=ref)
        micro = micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=4096)
        policy.close(sync(actor.train(policy.move, micro.loss(kl_penalty(0.1), imitate())), engine))

    assert sleeps(loop(False))
    with pytest.raises(CheckFailed, match="RLF402") as refused:
        loop(True)
    assert [d.code for d in refused.value.diagnostics] == ["RLF402"]


def test_D5_only_data_parallel_ranks_cut_rows() -> None:
    """16 ranks, 4 of them data-parallel: 4 × 128 = 512 rows divide, whatever the ranks behind each hold of the model."""

    @pipeline
    def loop(dp: int, tp: int) -> None:
        s = Start()
        twin = Torch("twin", dp=dp, tp=tp)
        other = Feedback("other", init=twin.load())
        other.close(twin.train(other.move, micro_pack(shard(s.rows(), on=twin), max_tokens=4096).loss(imitate())))
        s.finish(s.rows())

    assert loop(dp=4, tp=3).warnings == ()
    with pytest.raises(CheckFailed, match=r"512 rows do not divide by 12"):
        loop(dp=12, tp=1)
