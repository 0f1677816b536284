"""An operator called as the plain function that it is: columns in, columns of the true lengths out."""

from __future__ import annotations

import pytest
import torch
from small_loop import interpreter_of, small

from rlflow.compile.ir import Node
from rlflow.data.batch import Block
from rlflow.data.column import Column
from rlflow.data.pool.arena import ShmArena
from rlflow.data.pool.shm import ShmPool
from rlflow.errors import DataError
from rlflow.run.graph import GraphView
from rlflow.run.interpret import Interpreter, block_of, fetch
from rlflow.run.messages import Source

VIEW, INTERPRETER = interpreter_of(small(bonus=0.5))


def node(name: str, view: GraphView = VIEW) -> Node:
    return next(n for n in view.needed if n.name == name)


def field(name: str, of: str, view: GraphView = VIEW) -> int:
    return next(i for i in node(of, view).outs if view.graph.fields[i].name == name)


def used(by: str, columns: dict[str, Column]) -> dict[int, Column]:
    """Columns under the fields that `by` knows them as, by parameter."""
    return {use.field: columns[use.param] for use in node(by).uses if use.param in columns}


MASK = Column.ragged("flag", [[False, True, True], [True]])
JUDGED = {"response_text": Column.texts(["drei ü/0", "x"]), "answer": Column.texts(["drei ü", "x"]), "response_mask": MASK}


def test_a_record_comes_back_as_columns_cut_to_each_row() -> None:
    by = "judge"
    made, _ = INTERPRETER.run(node(by), used(by, JUDGED), version=0)
    assert made[field("token_level_scores", by)].to_list() == [[0.0, 1.5, 1.5], [0.5]]  # not padded to three
    assert made[field("is_correct", by)].to_list() == [1.0, 0.0]


def test_a_field_comes_back_under_its_target() -> None:
    by = "shape_rewards"
    scores = Column.ragged("f32", [[1.0], [2.0, 3.0]])
    made, numbers = INTERPRETER.run(node(by), used(by, {"token_level_scores": scores}), version=0)
    assert [column.to_list() for column in made.values()] == [[[1.0], [2.0, 3.0]]]
    assert numbers == {}


def test_weights_are_handed_over_as_a_handle_of_the_version_asked_for() -> None:
    columns = used("actor.log_probs", {"uid": Column.scalars("i64", [3, 4]), "response_mask": MASK})
    made, _ = INTERPRETER.run(node("actor.log_probs"), columns, version=6)
    assert next(iter(made.values())).to_list() == [[0.0, 3.0, 3.0], [4.0]]


def test_leaves_of_one_trajectory_get_their_lengths_from_the_attention_mask() -> None:
    prompt = {
        "prompts.prompt_ids": Column.ragged("i64", [[10, 11]]),
        "prompts.uid": Column.scalars("i64", [5]),
        "prompts.traj_uid": Column.scalars("i64", [0]),
        "prompts.answer": Column.texts(["a"]),
    }
    made, _ = INTERPRETER.run(VIEW.sampler, used("engine.rollout", prompt), version=2)
    assert made[field("input_ids", "engine.rollout")].to_list() == [[10, 11, 7], [10, 11, 7, 7]]
    assert made[field("token_versions", "engine.rollout")].to_list() == [[-1, 2], [-1, 3, 3]]
    assert made[field("answer", "engine.rollout")].to_list() == ["a", "a"]


def test_what_nobody_reads_is_not_converted() -> None:
    prompt = {"prompts.prompt_ids": [[1]], "prompts.uid": [5], "prompts.traj_uid": [0]}
    columns = used("engine.rollout", {
        "prompts.prompt_ids": Column.ragged("i64", prompt["prompts.prompt_ids"]),
        "prompts.uid": Column.scalars("i64", [5]), "prompts.traj_uid": Column.scalars("i64", [0]), "prompts.answer": Column.texts(["a"]),
    })  # fmt: skip
    made, _ = INTERPRETER.run(VIEW.sampler, columns, version=2)
    names = {VIEW.graph.fields[i].name for i in made}
    assert {"responses", "leaf", "version_tag"}.isdisjoint(names)
    assert {"input_ids", "rollout_log_probs"} <= names  # the one is read, the other measured


def test_a_list_of_arrays_is_ragged_as_it_stands() -> None:
    made, _ = INTERPRETER.run(VIEW.source, {}, version=0)
    assert made[field("prompt_ids", VIEW.source.name)].to_list() == [[10, 11], [20], [30, 31, 32]]


def test_a_node_that_trains_is_given_its_micro_batches_and_says_what_it_measured() -> None:
    ragged = {name: Column.ragged("i64", [[1, 2], [3, 4], [5, 6], [7, 8, 9]]) for name in ("input_ids", "position_ids")}
    ragged |= {name: Column.ragged("f32", [[1.0], [2.0], [3.0], [4.0, 5.0]]) for name in ("old_log_probs", "advantages")}
    mask = Column.ragged("flag", [[True], [True], [True], [True, True]])
    columns = ragged | {"response_mask": mask, "is_pad": Column.scalars("flag", [False] * 4), "uid": Column.scalars("i64", [1, 1, 2, 2])}
    train = node("actor.train")
    made, numbers = INTERPRETER.run(
        train, used("actor.train", {f"objective.{k}": v for k, v in columns.items()}), version=4, cuts=((1, 2), (1,))
    )
    assert (made, numbers) == ({}, {"loss": 0.25})
    objective = INTERPRETER.workers[train.worker or 0].given[-1]  # type: ignore[attr-defined]
    assert [[micro.input_ids.tolist() for micro in mini] for mini in objective.parts] == [[[[1, 2]], [[3, 4], [5, 6]]], [[[7, 8, 9]]]]
    assert objective.parts[1][0].advantages.tolist() == [[4.0, 5.0]]
    assert [type(loss).__name__ for loss in objective.losses] == ["ppo_clip"]


def test_a_result_of_another_width_is_refused_with_the_operator_and_the_field() -> None:
    judge = node("judge")
    broken = Interpreter(VIEW, INTERPRETER.workers)

    def too_short(**given: object) -> object:
        scores = type("Scores", (), {})()
        scores.token_level_scores, scores.is_correct = torch.zeros(2, 2), torch.zeros(2)
        return scores

    object.__setattr__(broken._ready(judge), "function", too_short)
    with pytest.raises(
        DataError, match=r"result of `judge`: `token_level_scores` is declared f32\[B, S - 1\], which is \[2, 3\] here; got \[2, 2\]"
    ):
        broken.run(judge, used("judge", JUDGED), version=0)


def test_a_block_has_one_count_of_rows() -> None:
    with pytest.raises(DataError, match=r"columns of \[1, 2\] rows"):
        block_of({1: Column.scalars("i64", [1]), 2: Column.scalars("i64", [1, 2])})


# --- fetch ----------------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def pool() -> object:
    with ShmArena.create(["host"], 1 << 20) as arena:
        pool = ShmPool.attach(arena.handle(), lane="host")
        yield pool
        pool.close()


def stored(pool: ShmPool) -> Source:
    """Two trajectories of one leaf each, in blocks of their own."""
    ids = [field(name, "engine.rollout") for name in ("input_ids", "response_mask", "is_pad", "uid")]

    def block(tokens: list[int], uid: int) -> Block:
        mask = Column.ragged("flag", [[True] * (len(tokens) - 1)])
        columns = [Column.ragged("i64", [tokens]), mask, Column.scalars("flag", [False]), Column.scalars("i64", [uid])]
        return block_of(dict(zip(ids, columns, strict=True)))

    return Source(VIEW.sampler.id, (pool.put(block([1, 2, 3], 8)), pool.put(block([4, 5], 9))))


def by_name(columns: dict[int, Column]) -> dict[str, list[object]]:
    return {VIEW.graph.fields[i].name: column.to_list() for i, column in columns.items()}


def test_blocks_are_joined_in_order(pool: ShmPool) -> None:
    fetched = by_name(fetch(VIEW, node("actor.train"), stored(pool), pool))
    assert fetched["input_ids"] == [[1, 2, 3], [4, 5]]
    assert fetched["uid"] == [8, 9]


def test_rows_are_taken_by_number_and_pad_rows_made(pool: ShmPool) -> None:
    source = stored(pool)
    fetched = by_name(fetch(VIEW, node("actor.train"), Source(source.node, source.keys, (1, -2, 0)), pool))
    assert fetched["input_ids"] == [[4, 5], [0, 0], [1, 2, 3]]
    assert fetched["response_mask"] == [[True], [False], [True, True]]  # a pad row: one position, not trained
    assert fetched["is_pad"] == [False, True, False]
    assert fetched["uid"] == [9, -2, 8]  # a group of its own


def test_only_what_the_operator_reads_is_fetched(pool: ShmPool) -> None:
    fetched = fetch(VIEW, node("actor.log_probs"), stored(pool), pool)
    assert set(by_name(fetched)) == {"response_mask", "uid"}
