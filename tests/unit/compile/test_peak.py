"""Bytes that may be held while a call runs, against sums written down by hand."""

from __future__ import annotations

from random import Random

import pytest
from dead_hops import actor_loop, critic_loop
from small_loops import filtered, penalised

from pipelines.grpo import grpo
from pipelines.ppo import ppo
from rlflow import Plan
from rlflow.compile.bytes import ColumnBytes
from rlflow.compile.drops import reads
from rlflow.compile.ir import Dim, Spec
from rlflow.compile.peak import Live
from rlflow.errors import UsageError


def live(plan: Plan, call: str) -> dict[str, str]:
    return {process: str(size) for process, size in plan.live_bytes[call].items()}


def test_bytes_of_a_column() -> None:
    size = ColumnBytes()
    rows, tokens = Dim.letter("B"), Dim.letter("S")
    assert str(size(Spec("f32", (rows, tokens - 1)), "old")) == "-4*B + 4*B*S"
    assert str(size(Spec("flag", (Dim.of(512),)), "is_pad")) == "512"
    assert str(size(Spec("text", (rows,)), "answer")) == "B*text(answer)"
    assert str(size(Spec("text", (rows,)), "response")) == "B*text(response)"
    assert Dim.parse("B*text(answer) - 2") == rows * Dim.letter("text(answer)") - 2


# A trajectory's block: input_ids i64[S], response_mask flag[S - 1], uid i64, two texts: 9 S + 7 bytes and the texts, 8 P of them.
STREAM = "56*P + 72*P*S + 8*P*text(answer) + 8*P*text(response_text)"


@pytest.mark.parametrize(
    ("call", "held"),
    [
        ("engine.rollout", STREAM),
        ("exact_match", f"{STREAM} + 2048*S - 2048"),  # token_level_scores f32[512, S - 1]; is_correct is read by nobody
        ("shaping", f"{STREAM} + 4096*S - 4096"),  # the scores, and what is made of them
        ("grpo", f"{STREAM} + 4096*S - 4096"),  # the scores are gone: the shaped ones, and the advantages
        ("actor.log_probs", f"{STREAM} + 8192*S - 8192"),  # it waits for none of them, so all may be there, and the old log-probs
        ("actor.train", f"{STREAM} + 4096*S - 4096"),  # advantages, old log-probs
    ],
)
def test_the_pool_holds_what_is_still_to_be_read(call: str, held: str) -> None:
    assert live(penalised(), call)["pool"] == held


def test_training_unpacks_one_micro_batch_and_never_the_whole_batch() -> None:
    """input_ids i64[b2, S]; response_mask, old_log_probs, advantages, and log_probs of the forward over [b2, S - 1]: 8 S + 13 (S - 1)."""
    assert live(penalised(), "actor.train")["actor"] == "21*S*b2 - 13*b2"
    one, two = (grpo(prompts=prompts, max_tokens=4096).peak(S=512, Q=64, text=16, b=1024)["actor"] for prompts in (32, 320))
    assert one == two
    assert one.call == "actor.train"
    # 8 rows of 512 tokens: input_ids, position_ids i64[8, 512]; a flag and two f32 [8, 511], with log_probs of the forward; is_pad
    assert one.bytes == 8 * 512 * 16 + 8 * 511 * (1 + 4 + 4) + 8


def test_scoring_is_split_over_the_ranks() -> None:
    def bytes_of_scoring(dp: int) -> str:
        return live(grpo(max_lag=1, dp=dp), "actor.log_probs")["actor"]

    assert bytes_of_scoring(1) == "5376*S - 1024"  # 256 rows: ids and positions i64[S], a mask flag[S], results f32[S - 1]
    assert bytes_of_scoring(2) == "2688*S - 512"


def test_a_filter_before_the_batch_unpacks_one_group() -> None:
    assert live(filtered(), "keep_mixed")["host"] == "16*S + 16"  # 4 rows: scores f32[S - 1], and uid to show which are kept
    assert live(filtered(), "engine.rollout")["pool"].startswith("28*P + 36*P*S")


def test_an_evaluation_is_no_part_of_a_step() -> None:
    plan = penalised()
    assert {"engine.evaluate", "dataset#2"}.isdisjoint(plan.live_bytes)
    assert not any("P2" in size.letters for sizes in plan.live_bytes.values() for size in sizes.values())


def test_a_peak_that_another_covers_is_left_out() -> None:
    found = penalised().peaks
    assert [(call, str(size)) for call, size in found["pool"]] == [("actor.log_probs", f"{STREAM} + 8192*S - 8192")]
    assert [call for call, _ in found["actor"]] == ["actor.log_probs", "actor.train"]  # which is larger depends on b2


def test_a_peak_says_where_and_what() -> None:
    found = grpo(prompts=4, group_size=2).peak(S=100, Q=10, **{"text(answer)": 1, "text": 50})["pool"]
    assert (found.process, found.call) == ("pool", "shape_rewards")
    assert sum(share.bytes for share in found.shares) == found.bytes
    assert [(share.field, share.writer, share.bytes) for share in found.shares[:3]] == [
        ("input_ids", "engine.rollout", 8 * 100 * 8),
        ("position_ids", "engine.rollout", 8 * 100 * 8),
        ("token_level_scores", "integer_match", 8 * 99 * 4),
    ]
    assert {share.field: share.bytes for share in found.shares}["answer"] == 8
    assert {share.field: share.bytes for share in found.shares}["response_text"] == 8 * 50


def test_prompts_in_flight_follow_from_the_lag_unless_they_are_given() -> None:
    def block(max_lag: int, **sizes: int) -> int:
        shares = actor_loop(max_lag=max_lag, correction="truncated_importance").peak(S=100, Q=10, text=1, **sizes)["pool"].shares
        return next(share.bytes for share in shares if share.field == "input_ids")

    assert block(0) == 32 * 8 * 100 * 8
    assert block(2) == 3 * block(0)
    assert block(2, P=32) == block(0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"S": 10, "Q": 4, "text": 1, "sizes": 3}, "no size is called `sizes`; there are P, "),
        ({"S": 10, "Q": 4, "text": 1, "text(answr)": 3}, r"no size is called `text\(answr\)`; did you mean `text\(answer\)`"),
        ({"S": 10}, "peak bytes of `grpo` depend on Q, text: give Q=..., text=..."),
        ({"S": -1, "Q": 4, "text": 1}, "S=-1: a size is at least 0"),
    ],
)
def test_sizes_that_are_missing_or_unknown(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grpo().peak(**sizes)


@pytest.mark.parametrize("plan", [ppo(), grpo(kl=0.1, max_lag=1), critic_loop(updates=2), penalised(kl=0.1)], ids=lambda p: p.graph.name)
@pytest.mark.parametrize("seed", range(20))
def test_no_order_in_which_the_calls_of_a_batch_may_run_holds_more(plan: Plan, seed: int) -> None:
    """Calls start in any order that what they wait for allows, and overlap; a block is freed when its last reader has returned."""
    live, draw = Live(plan.graph, plan.facts), Random(seed)
    batch = [node for node in live.calls if plan.facts.scope(node) != "stream"]
    made_by = {node.id: {out for out in node.outs if out in plan.facts.last_by_worker} for node in batch}
    read_by = {node.id: set(reads(plan.graph, plan.facts, node)) for node in batch}
    earlier = {node.id: [other for other in batch if other.id < node.id] for node in batch}
    waits = {n.id: {m.id for m in earlier[n.id] if made_by[m.id] & read_by[n.id] or m.worker == n.worker is not None} for n in batch}
    running, done, held = set[int](), set[int](), set[int]()
    while len(done) < len(batch):
        ready = [node.id for node in batch if node.id not in running | done and waits[node.id] <= done]
        if ready and (not running or draw.random() < 0.5):
            started = draw.choice(ready)
            running.add(started)
            held |= made_by[started]
        else:
            ended = draw.choice(sorted(running))
            running.remove(ended)
            done.add(ended)
            blocks = [made for made in made_by.values() if all(node in done for node, read in read_by.items() if read & made)]
            held -= {field for made in blocks for field in made}
        latest = max((node for node in batch if made_by[node.id] & held), key=lambda node: node.id, default=None)
        if latest is not None:
            planned = {(one.writer, one.field) for one in live.pooled(latest)}
            assert {(plan.graph.writer(field).name, plan.graph.fields[field].name) for field in held} <= planned
    assert held == set()
