"""The sampler against torch.softmax and direct counting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlflow.engines.rollout.embedded.sampling import SamplingRows, gumbel_noise, select_tokens, truncate

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def rows(count: int, **given: Any) -> SamplingRows:
    values: dict[str, Any] = {
        "temperature": np.ones(count, np.float32),
        "greedy": np.zeros(count, np.bool_),
        "seed": np.arange(count, dtype=np.uint64),
        "step": np.zeros(count, np.int64),
        "top_k": np.zeros(count, np.int64),
        "top_p": np.ones(count, np.float32),
        "min_p": np.zeros(count, np.float32),
        "truncated": np.zeros(count, np.bool_),
        "masked_ids": [],
    }
    return SamplingRows(**(values | given))


def assert_drawn_from(tokens: np.ndarray[Any, Any], probs: torch.Tensor) -> None:
    """Pearson's chi-square within four standard deviations; the seeds are fixed, so it never flickers."""
    expected = len(tokens) * probs.numpy()
    seen = np.bincount(tokens, minlength=len(expected))
    possible = expected > 0
    assert seen[~possible].sum() == 0
    dof = possible.sum() - 1
    assert ((seen - expected)[possible] ** 2 / expected[possible]).sum() < dof + 4 * np.sqrt(2 * dof)


def test_draws_follow_the_softmax_over_seeds() -> None:
    tokens, _ = select_tokens(LOGITS.expand(20_000, -1), rows(20_000))
    assert_drawn_from(tokens, LOGITS.softmax(-1))


def test_draws_follow_the_softmax_over_the_steps_of_one_seed() -> None:
    given = rows(20_000, seed=np.full(20_000, 7, np.uint64), step=np.arange(20_000))
    assert_drawn_from(select_tokens(LOGITS.expand(20_000, -1), given)[0], LOGITS.softmax(-1))


def test_temperature_divides_the_logits() -> None:
    given = rows(20_000, temperature=np.full(20_000, 0.5, np.float32))
    tokens, log_probs = select_tokens(LOGITS.expand(20_000, -1), given)
    assert_drawn_from(tokens, (LOGITS * 2).softmax(-1))
    np.testing.assert_allclose(log_probs, (LOGITS * 2).log_softmax(-1)[tokens], atol=1e-6)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_p": 0.6}, [0, 1]),  # probabilities 0.56, 0.21, 0.13, 0.08, …: the second crosses 0.6
        ({"min_p": 0.2}, [0, 1, 2]),  # e^-1 and e^-1.5 of the largest are above 0.2, e^-2 is not
        ({"top_k": 2, "top_p": 0.95, "min_p": 0.01}, [0, 1]),
    ],
)
def test_truncated_draws_follow_the_renormalised_rest(cut: dict[str, float], kept: list[int]) -> None:
    given: dict[str, Any] = {"top_k": np.zeros(9000, np.int64), "top_p": np.ones(9000, np.float32), "min_p": np.zeros(9000, np.float32)}
    given = {name: np.full_like(array, cut.get(name, array[0])) for name, array in given.items()}
    tokens, log_probs = select_tokens(LOGITS.expand(9000, -1), rows(9000, truncated=np.ones(9000, np.bool_), **given))
    probs = torch.zeros(6)
    probs[kept] = LOGITS[kept].softmax(-1)
    assert_drawn_from(tokens, probs)
    np.testing.assert_allclose(log_probs, LOGITS.log_softmax(-1)[tokens], atol=1e-6)  # before truncation


def test_truncation_never_empties_a_row() -> None:
    flat = torch.zeros(1, 6).log_softmax(-1)
    kept = truncate(flat, torch.tensor([0]), torch.tensor([1e-9]), torch.tensor([1.0])).isfinite()
    assert kept.sum() >= 1


def test_only_the_rows_that_ask_are_truncated() -> None:
    given = rows(2, truncated=np.array([True, False]), top_k=np.array([1, 0]), seed=np.array([3, 3], np.uint64))
    free = [select_tokens(LOGITS[None], rows(1, seed=np.array([s], np.uint64)))[0][0] for s in range(50)]
    seed = next(s for s, token in enumerate(free) if token != 0)
    given = rows(2, truncated=np.array([True, False]), top_k=np.array([1, 0]), seed=np.full(2, seed, np.uint64))
    assert select_tokens(LOGITS.expand(2, -1), given)[0].tolist() == [0, free[seed]]


def test_greedy_rows_take_the_maximum_among_sampled_ones() -> None:
    given = rows(400, greedy=np.arange(400) % 2 == 0)
    tokens, _ = select_tokens(LOGITS.expand(400, -1), given)
    assert set(tokens[::2]) == {0}
    assert len(set(tokens[1::2])) > 3


def test_masked_ids_are_never_drawn_and_do_not_change_the_logprob() -> None:
    given = rows(3000, masked_ids=[(i, (0, 1)) for i in range(3000)])
    tokens, log_probs = select_tokens(LOGITS.expand(3000, -1), given)
    probs = torch.zeros(6)
    probs[2:] = LOGITS[2:].softmax(-1)
    assert_drawn_from(tokens, probs)
    np.testing.assert_allclose(log_probs, LOGITS.log_softmax(-1)[tokens], atol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    together, _ = select_tokens(logits, rows(50))
    order = np.random.default_rng(0).permutation(50)
    shuffled, _ = select_tokens(logits[order], rows(50, seed=order.astype(np.uint64)))
    assert shuffled.tolist() == together[order].tolist()


def test_nan_logits_show_in_the_logprob() -> None:
    _, log_probs = select_tokens(torch.tensor([[0.0, torch.nan], [0.0, 1.0]]), rows(2))
    assert np.isnan(log_probs).tolist() == [True, False]


def test_the_noise_is_standard_gumbel() -> None:
    noise = gumbel_noise(np.arange(500, dtype=np.uint64), np.zeros(500, np.int64), 400)
    assert abs(noise.mean() - 0.5772) < 0.01  # Euler's constant
    assert abs(noise.var() - np.pi**2 / 6) < 0.03
    assert np.isfinite(noise).all()


def test_the_noise_is_uncorrelated_over_seed_step_and_token() -> None:
    count = 100_000
    seeds = np.arange(count, dtype=np.uint64)
    here = gumbel_noise(seeds, np.zeros(count, np.int64), 2)
    later = gumbel_noise(seeds, np.ones(count, np.int64), 1)
    for a, b in ((here[:, 0], here[:, 1]), (here[:, 0], later[:, 0]), (here[:-1, 0], here[1:, 0])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(count)
