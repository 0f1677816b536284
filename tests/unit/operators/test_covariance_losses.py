"""clip_cov and kl_cov: which tokens are held back, and that neither order nor cut says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from evaluated import forward_of, rows_of, terms_of, with_statistic

from operators.loss import clip_cov, kl_cov, ppo_clip
from operators.loss.covariance import _mixed


def example(**more: Any) -> tuple[Any, Any]:
    """The docstring's four tokens and one outside the mask: covariances 3, 3, -3, -3."""
    forward = forward_of(log_probs=[[-1.0, -3.0, 99.0], [-3.0, -1.0, 99.0]])
    rows = rows_of(
        response_mask=[[1, 1, 0], [1, 1, 0]],
        advantages=[[3.0, -3.0, 1e9], [3.0, -3.0, 1e9]],
        old_log_probs=[[-1.0, -3.0, 5.0], [-3.0, -1.0, 5.0]],
        **more,
    )
    return forward, rows


def test_clip_cov_drops_one_of_the_tokens_within_the_bounds() -> None:
    forward, rows = example()
    terms = terms_of(clip_cov(), forward, rows)
    terms.sum().backward()
    assert terms[1].tolist() == [-3.0, 3.0, 0.0]
    assert sorted(terms[0].tolist()) in ([-3.0, 0.0, 0.0], [0.0, 0.0, 3.0])
    assert (forward.log_probs.grad == terms).all()


def test_clip_cov_drops_nothing_where_no_covariance_is_within_the_bounds() -> None:
    forward, rows = example()
    assert terms_of(clip_cov(cov_low=3.5), forward, rows).tolist() == [[-3.0, 3.0, 0.0], [-3.0, 3.0, 0.0]]


def test_clip_cov_does_not_draw_what_is_clipped_already() -> None:
    """The first token's ratio is e, clipped at 1.2: so the second is the only one to draw."""
    forward, rows = example()
    rows.old_log_probs[0, 0] = -2.0
    terms = terms_of(clip_cov(), forward, rows)
    assert terms[0].tolist() == pytest.approx([-3.6, 0.0, 0.0])


def test_clip_cov_drops_as_many_as_its_share() -> None:
    forward, rows = example()
    assert terms_of(clip_cov(cov_ratio=0.5), forward, rows)[0].tolist() == [0.0, 0.0, 0.0]


def test_clip_cov_that_drops_nothing_is_ppo_clip() -> None:
    forward, rows = example()
    rows.old_log_probs[0] -= 1.0
    assert terms_of(clip_cov(0.1, 0.3, cov_low=1e9), forward, rows).tolist() == ppo_clip(0.1, 0.3)(forward, rows).tolist()


def test_kl_cov_by_hand() -> None:
    forward = forward_of(log_probs=[[-1.0, -3.0]])
    rows = rows_of(response_mask=[[1, 1]], advantages=[[1.0, -1.0]], old_log_probs=[[-1.1, -3.2]])
    terms = terms_of(kl_cov(cov_ratio=0.5), forward, rows)
    terms.sum().backward()
    plain, held = ([-1.1051709, 1.2214028], [-1.0051709, 1.4214028])
    assert terms[0].tolist() in (pytest.approx([held[0], plain[1]]), pytest.approx([plain[0], held[1]]))
    assert forward.log_probs.grad[0].tolist() in (pytest.approx([-0.1051709, 1.2214028]), pytest.approx([-1.1051709, 2.2214028]))


def test_kl_cov_takes_the_largest_covariances() -> None:
    forward = forward_of(log_probs=[[-1.0, -2.0, -3.0, -6.0]])
    advantages = [[1.0, 1.0, 0.0, -2.0]]  # means 0, -3: covariances 2, 1, 0, 6
    rows = rows_of(response_mask=[[1, 1, 1, 1]], advantages=advantages, old_log_probs=[[-2.0, -3.0, -4.0, -7.0]])
    held = lambda share: with_statistic(kl_cov(cov_ratio=share), forward, rows).statistics()["held"][0].tolist()  # noqa: E731
    assert held(0.25) == [0, 0, 0, 1]
    assert held(0.5) == [1, 0, 0, 1]
    assert held(0.75) == [1, 1, 0, 1]


@pytest.mark.parametrize("loss", [clip_cov(cov_ratio=0.1, cov_low=0.0), kl_cov(cov_ratio=0.1)])
def test_neither_order_nor_ties_say_which_tokens_are_held(loss: Any) -> None:
    """Twelve rows of six equal tokens: all covariances are ties, and still each order of the rows holds the same tokens."""
    b, width = 12, 6
    uid, traj_uid, leaf = torch.arange(b) // 4 + 2**40, torch.arange(b) % 4 // 2, torch.arange(b) % 2
    signs = torch.tensor([1.0, -1.0]).repeat(b, width // 2).double()
    fields = {"advantages": signs, "old_log_probs": signs - 2, "uid": uid, "traj_uid": traj_uid, "leaf": leaf}
    held = []
    for seed in range(3):
        order = torch.randperm(b, generator=torch.Generator().manual_seed(seed))
        shuffled = {name: x[order] for name, x in fields.items()}
        forward = forward_of(log_probs=(signs - 2)[order].tolist())
        rows = with_statistic(loss, forward, rows_of(response_mask=torch.ones(b, width), **shuffled))
        held.append(rows.statistics()["held"][order.argsort()])
    assert held[0].sum() == 7
    assert (held[0] == held[1]).all()
    assert (held[0] == held[2]).all()


def test_a_mini_batch_without_a_token_holds_nothing() -> None:
    for loss in (clip_cov(), kl_cov()):
        forward = forward_of(log_probs=[[-1.0]])
        terms = terms_of(loss, forward, rows_of(response_mask=[[0]]))
        terms.sum().backward()
        assert terms.tolist() == [[0.0]]
        assert forward.log_probs.grad.tolist() == [[0.0]]


def test_held_tokens_are_reported() -> None:
    forward, rows = example()
    loss = clip_cov(cov_ratio=0.5)
    found = loss.metrics(forward, with_statistic(loss, forward, rows))
    assert found["held_fraction"].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert not any(value.requires_grad for value in found.values())


def test_names_are_those_of_splitmix64() -> None:
    """The first output of its reference implementation for the seeds 0 and 1234567, as signed numbers."""
    first = [0xE220A8397B1DCDAF, 0x599ED017FB08FC85]
    assert _mixed(torch.tensor([0, 1234567])).tolist() == [x - 2**64 if x >= 2**63 else x for x in first]
