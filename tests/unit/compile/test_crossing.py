"""What crosses from process to process, which row plans are one, what lives on: against values written down by hand."""

from __future__ import annotations

import pytest
from small_loops import filtered, penalised
from start import Start
from vocabulary import Embedded, Torch, TrainRows, dataset, dispatch, exact_match, form_batch, micro_pack, ppo_clip, shaping, shard, sync
from vocabulary import grpo as grpo_advantage

from pipelines.grpo import grpo
from pipelines.parts import Options
from pipelines.ppo import ppo
from rlflow import Feedback, Plan, pipeline
from rlflow.compile.facts import Edge


def edge(plan: Plan, sender: str, receiver: str) -> Edge:
    return next(e for e in plan.facts.edges if (e.sender, e.receiver) == (sender, receiver))


def keyed(plan: Plan, sender: str, receiver: str) -> set[str]:
    return {plan.graph.fields[field].name for field in edge(plan, sender, receiver).keyed}


def test_a_column_crosses_where_it_is_read_and_nowhere_else() -> None:
    plan = grpo(kl=0.1)
    assert keyed(plan, "engine.rollout", "reference") == {"input_ids", "position_ids", "attention_mask"}
    assert keyed(plan, "engine.rollout", "host") == {"response_text", "answer", "response_mask", "uid", "traj_uid"}
    assert keyed(plan, "engine.rollout", "actor") == {"input_ids", "position_ids", "response_mask", "is_pad"}
    assert keyed(plan, "host", "actor") == {"advantages"}
    assert keyed(plan, "reference", "actor") == {"ref"}


def test_bytes_a_row_and_a_step() -> None:
    found = edge(grpo(), "engine.rollout", "actor")  # input_ids, position_ids i64[S], response_mask flag[S - 1], is_pad flag
    assert (str(found.row_bytes), str(found.step_bytes)) == ("17*S", "4352*S")  # 32 prompts x 8
    text = edge(grpo(), "engine.rollout", "host")
    assert {grpo().graph.fields[f].name for f in text.text} == {"response_text", "answer"}
    assert str(text.row_bytes) == "S + 15"  # response_mask flag[S - 1], uid and traj_uid i64


def test_pad_rows_do_not_cross() -> None:
    plan = penalised(dp=3)  # 512 rows are padded to 513
    assert str(edge(plan, "host", "actor").step_bytes) == "2048*S - 2048"


def test_rows_of_trees_are_as_many_as_the_run_finds() -> None:
    """As many on the stream as come into the batch: the filter before it asks for more."""
    plan = filtered(tree=True)
    kept = next(n for n in plan.graph.nodes if n.rows == "form").outs[0]
    rows = plan.facts.rowsets[plan.facts.rows[kept]].size
    assert rows.number is None
    assert edge(plan, "engine.rollout", "actor").step_bytes.letters == {str(rows), "S"}
    assert edge(plan, "engine.rollout", "host").step_bytes.letters == {str(rows), "S"}
    assert edge(plan, "engine.rollout", "controller").step_bytes.letters == {str(rows)}


def test_ranks_are_processes() -> None:
    assert keyed(penalised(dp=2, kl=0.1), "actor", "actor (other ranks)") == {"old"}
    assert all(e.receiver != "actor (other ranks)" for e in penalised(dp=1, kl=0.1).facts.edges)


def test_a_filter_is_sent_what_it_reads_and_one_column_more() -> None:
    """To see which rows it kept one is enough, and the narrowest will do."""
    assert keyed(filtered(), "engine.rollout", "host") == {"token_level_scores", "uid", "response_mask"}
    plan = filtered()
    keep = next(n for n in plan.graph.nodes if n.rows == "filter")
    from rlflow.compile.transport import handed

    assert [use.param for use in handed(plan.graph, plan.facts, keep)] == ["token_level_scores", "rows.uid"]


def test_M1_token_columns_never_go_through_the_controller() -> None:
    """What it is sent and sends grows with rows and calls, not with their length."""
    for plan in (grpo(kl=0.1, dp=2, mini_batches=2), ppo(), penalised(), filtered()):
        through = [e for e in plan.facts.edges if "controller" in (e.sender, e.receiver)]
        assert {e.sender for e in through} > {"controller"}
        assert all(not e.keyed and "S" not in e.step_bytes.letters for e in through)


@pytest.mark.parametrize("dp", [1, 2, 4])
def test_P13_a_call_is_64_bytes_a_row_and_4_KB(dp: int) -> None:
    plan = grpo(kl=0.1, max_lag=1, dp=dp)
    rows = 256
    calls = dict.fromkeys(plan.facts.site.values(), 0)
    for node in plan.graph.nodes:
        if node.id in plan.facts.needed and not node.is_record and node.per != "run" and node.index is None and node.rows != "form":
            calls[plan.facts.site[node.id]] += dp if node.worker is not None else 1
    for site in ("host", "actor", "reference"):
        both = edge(plan, "controller", site).step_bytes + edge(plan, site, "controller").step_bytes
        assert both.number is not None
        assert both.number <= calls[site] * (64 * rows + 4096)


def test_weights_go_from_their_owner_to_the_engine_once_a_step() -> None:
    found = edge(grpo(), "actor", "engine")
    assert (found.weights, str(found.step_bytes), found.inline) == ((0,), "4*N_actor", ("version",))
    assert str(edge(penalised(), "actor", "engine").step_bytes) == "weights_actor"  # that catalogue declares no size


def test_row_operators_without_a_call_between_are_one_plan() -> None:
    def names(plan: Plan) -> list[list[str]]:
        return [[plan.graph.nodes[n].name for n in chain] for chain in plan.facts.fused]

    assert names(grpo()) == [["pad", "rebalance", "shard", "micro_pack"]]
    assert names(ppo()) == [["pad", "rebalance", "shard", "micro_pack", "shard#2", "micro_pack#2"]]
    assert names(penalised()) == []  # its catalogue plans no rows


def test_all_that_lives_across_steps() -> None:
    plan = grpo(kl=0.1)
    assert [(s.owner, s.name, str(s.bytes), s.in_checkpoint) for s in plan.facts.state] == [
        ("actor", "weights", "4*N_actor", True),
        ("actor", "optimizer", "8*N_actor", True),
        ("actor", "rng", "5056", True),
        ("actor", "steps", "8", True),
        ("actor", "version", "8", True),
        ("actor", "published", "4*N_actor", False),
        ("engine", "replica", "4*N_engine", False),
        ("engine", "kv_cache", "KV_engine", False),
        ("reference", "weights", "4*N_reference", False),  # frozen: loaded again
        ("dataset", "position", "8", False),
        ("integer_match", "failed_in_a_row", "8", False),
    ]


def test_a_random_state_is_one_a_rank() -> None:
    assert [str(s.bytes) for s in ppo(Options(prompts=256, group_size=1, dp=2)).facts.state if s.name == "rng"] == ["10112", "10112"]


def test_a_worker_that_nothing_needs_holds_nothing() -> None:
    assert {s.owner for s in ppo().facts.state} == {"actor", "critic", "engine", "dataset", "integer_match"}
    assert {s.owner for s in penalised().facts.state} == {"policy"}  # a version that no worker of that catalogue declares


def test_rows_of_later_batches_wait_where_a_lag_lets_them() -> None:
    """22*S + 12 bytes a row: input_ids, position_ids i64[S], rollout_log_probs f32[S - 1], two masks and a flag, uid and traj_uid i64."""
    waiting = next(s for s in grpo(max_lag=2).facts.state if s.owner == "controller")
    assert (waiting.name, str(waiting.bytes), waiting.in_checkpoint) == ("waiting rows", "11264*S + 6144", False)  # 2 batches of 256 rows
    assert {s.owner for s in grpo(max_lag=0).facts.state} == {"actor", "engine", "dataset", "integer_match"}


def test_a_worker_that_samples_with_what_it_owns_sends_no_weights() -> None:
    class Hybrid(Torch, Embedded):
        """Trains and samples."""

    @pipeline
    def loop() -> None:
        s = Start()
        both = Hybrid("both")
        other = Feedback("other", init=both.load())
        sample = both.rollout(other.served, dispatch(dataset("train.parquet"), n=8))
        ready = form_batch(sample, prompts=64)
        score = exact_match(ready.response_text, ready.answer, ready.response_mask)
        adv = grpo_advantage(shaping(score.token_level_scores), ready.response_mask, ready.uid)
        old = both.log_probs(other.current, ready.input_ids, ready.response_mask)
        rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=adv.advantages)
        other.close(sync(both.train(other.move, micro_pack(shard(rows, on=both), max_tokens=64).loss(ppo_clip())), both))
        s.finish(s.rows())

    assert [e.sender for e in loop().facts.edges if e.weights] == ["actor"]
