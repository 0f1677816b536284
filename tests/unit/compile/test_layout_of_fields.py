"""How columns lie, row by row or packed; and that no pipeline can take positions of one after its layout changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_loops import filtered, penalised
from start import Start
from vocabulary import micro_pack, shard

from rlflow import CheckFailed, Plan, pipeline

TRAINED = ("input_ids", "response_mask", "old_log_probs", "ref_log_probs", "advantages")


def layouts(plan: Plan, writer: str) -> dict[str, str]:
    node = next(n for n in plan.graph.nodes if n.name == writer)
    return {plan.graph.fields[out].name: plan.facts.layout[out] for out in node.outs}


@pytest.mark.parametrize(
    ("writer", "expected"),
    [
        ("dataset", {"prompt_ids": "ragged", "uid": "dense", "answer": "dense"}),
        ("exact_match", {"token_level_scores": "ragged", "is_correct": "dense"}),
        ("pad", dict.fromkeys(TRAINED, "ragged")),
        ("shard", dict.fromkeys(TRAINED, "ragged")),
        ("micro_pack", dict.fromkeys(TRAINED, "packed")),
    ],
)
def test_layouts(writer: str, expected: dict[str, str]) -> None:
    assert layouts(penalised(), writer) == expected


def test_a_filter_leaves_columns_as_they_lie() -> None:
    assert layouts(filtered(), "keep_mixed")["uid"] == "dense"
    assert layouts(filtered(), "keep_mixed")["input_ids"] == "ragged"


def packed(start: Start) -> Any:
    return micro_pack(shard(start.rows(), on=start.actor), max_tokens=64)


@pytest.mark.parametrize(
    "slicing",
    [
        lambda s: s.ready.rollout_log_probs[:, :3],
        lambda s: s.ready.rollout_log_probs[:, -0:],
        lambda s: s.ready.rollout_log_probs[-3:],
        lambda s: s.ready.rollout_log_probs.narrow(1, 0, 3),
        lambda s: s.ready.rollout_log_probs.flip(1),
        lambda s: packed(s).rows.old_log_probs[:3],
        lambda s: list(packed(s).rows.old_log_probs),
        lambda s: len(s.ready.rollout_log_probs),
        lambda s: s.ready.rollout_log_probs.shape[1],
    ],
)
def test_S1_positions_cannot_be_taken_of_a_field(slicing: Callable[[Start], object]) -> None:
    """Log-probs of the prompt were returned as those of the answer: `[:n]`, written for left-aligned rows, on right-aligned ones."""

    @pipeline
    def loop() -> None:
        slicing(Start())

    with pytest.raises(CheckFailed) as refused:
        loop()
    assert [d.code for d in refused.value.diagnostics if d.severity == "error"] == ["RLF007"]


@pytest.mark.parametrize("slicing", [lambda s: s.ready[:3], lambda s: packed(s).rows[:3]])
def test_S1_nor_of_a_record(slicing: Callable[[Start], object]) -> None:
    """The same, of all fields at once."""

    @pipeline
    def loop() -> None:
        slicing(Start())

    with pytest.raises(CheckFailed, match="RLF001"):
        loop()


def test_S1_nor_of_micro_batches() -> None:
    @pipeline
    def loop() -> None:
        packed(Start())[0]

    with pytest.raises(TypeError, match="'Micro' object is not subscriptable"):
        loop()
