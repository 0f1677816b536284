"""Rewards of length, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from operators.lengths import cosine_length, group_length
from operators.mixture import mixture
from operators.reward import integer_match, matches
from pipelines.grpo import grpo
from rlflow.errors import DataError


def rows_of(*lengths: int, width: int = 12) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def test_cosine_length_by_hand() -> None:
    mask = rows_of(5, 10, 2, 5, 0)
    right = torch.tensor([1.0, 1.0, 0.0, 0.5, 1.0])  # half a point is no right answer
    shaped = cosine_length(torch.zeros(5, 12), right, mask, max_tokens=10)
    wrong_of_2 = 0.0 + (-10.0 - 0.0) / 2 * (1 + math.cos(math.pi * 0.2))  # -9.0451
    assert shaped.sum(-1).tolist() == pytest.approx([1.5, -10.0, wrong_of_2, -5.0, 0.0], abs=1e-6)


def test_cosine_length_counts_trained_tokens_and_sits_at_the_last() -> None:
    mask = torch.tensor([[1, 0, 0, 1, 0]]).bool()  # two tokens, a tool between them
    shaped = cosine_length(torch.zeros(1, 5), torch.tensor([1.0]), mask, max_tokens=4, right=(3.0, 1.0))
    assert shaped[0].tolist() == pytest.approx([0, 0, 0, 2.0, 0])


def test_cosine_length_of_no_length_is_refused() -> None:
    with pytest.raises(DataError, match=r"cosine_length\(max_tokens=0\)"):
        cosine_length(torch.zeros(1, 1), torch.ones(1), rows_of(1, width=1), max_tokens=0)


def test_group_length_by_hand() -> None:
    #       group 7: lengths 2, 4, 6 right, 3 wrong            group 1: 1 wrong, 9 wrong
    mask, uid = rows_of(2, 1, 4, 9, 6, 3), torch.tensor([7, 1, 7, 1, 7, 7])
    right = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    shaped = group_length(torch.zeros(6, 12), right, mask, uid)
    assert shaped.sum(-1).tolist() == pytest.approx([0.5, 0.0, 0.0, -0.5, -0.5, 0.0])
    assert shaped.argmin(-1).tolist()[3:5] == [8, 5]  # at the last trained token


def test_group_length_is_weighed_and_added_to_the_score() -> None:
    scores = torch.zeros(2, 12)
    scores[0, 1] = 1.0
    shaped = group_length(scores, torch.tensor([1.0, 0.0]), rows_of(2, 6), torch.tensor([3, 3]), weight=0.2)
    assert shaped.sum(-1).tolist() == pytest.approx([1.1, -0.1])
    assert scores.sum() == 1.0


def test_group_length_of_equal_lengths_is_zero() -> None:
    shaped = group_length(torch.zeros(2, 12), torch.ones(2), rows_of(4, 4), torch.tensor([3, 3]))
    assert shaped.tolist() == torch.zeros(2, 12).tolist()


def test_a_row_without_a_trained_token_is_no_short_answer() -> None:
    shaped = group_length(torch.zeros(3, 12), torch.ones(3), rows_of(0, 4, 8), torch.tensor([3, 3, 3]))
    assert shaped.sum(-1).tolist() == pytest.approx([0.0, 0.5, -0.5])


@pytest.mark.parametrize("shape", [partial(cosine_length, max_tokens=4), group_length])
def test_a_length_goes_by_the_part_of_a_mixture_that_is_correct(shape: Callable[..., object]) -> None:
    mixed = mixture(format=(matches("[0-9]"), 0.1), correct=(integer_match, 1.0))
    graph = grpo(reward=mixed).replace("shape_rewards", shape).graph
    (node,) = [node for node in graph.nodes if node.name.endswith("_length")]
    (right,) = [graph.fields[use.field] for use in node.uses if use.param == "is_correct"]
    while right.source is not None:  # the record that the mixture puts together holds it under a name of its own
        right = graph.fields[right.source]
    assert graph.nodes[right.node].name == "integer_match"
