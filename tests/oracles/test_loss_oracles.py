"""Losses and their gradients against the numbers of other projects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from peer_numbers import MASK, given, peer

from operators.loss import kl_penalty, ppo_clip, value_clip


def token_mean(loss: Any, log_probs: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
    terms: torch.Tensor = loss(SimpleNamespace(log_probs=log_probs), SimpleNamespace(response_mask=MASK, **rows))
    return terms.sum() / MASK.sum()


def test_ppo_clip_value_and_gradient_agree_also_at_a_log_ratio_of_25() -> None:
    log_probs = given("log_prob").requires_grad_()
    value = token_mean(ppo_clip(0.2, 0.2), log_probs, old_log_probs=given("old_log_prob"), advantages=given("advantages"))
    value.backward()
    torch.testing.assert_close(value.detach(), peer("openrlhf/policy/ppo/loss"), rtol=1e-6, atol=0)
    torch.testing.assert_close(log_probs.grad, peer("openrlhf/policy/ppo/grad_log_prob"), rtol=1e-5, atol=1e-8)


def test_ppo_clip_gradient_agrees_with_a_second_peer_where_it_bounds_no_ratio() -> None:
    log_probs = given("log_prob").requires_grad_()
    advantages = given("advantages")[:, :1].expand(MASK.shape)  # that peer's advantage is a scalar a row
    token_mean(ppo_clip(0.2, 0.2), log_probs, old_log_probs=given("old_log_prob"), advantages=advantages).backward()
    moderate = (given("log_prob") - given("old_log_prob")).abs() < 20
    expected = peer("trl/policy/dapo/token/beta0.0/grad_log_prob")
    torch.testing.assert_close(log_probs.grad[moderate], expected[moderate], rtol=1e-5, atol=1e-7)


def test_kl_penalty_value_and_gradient_agree_below_the_peers_bound_of_10() -> None:
    log_probs = given("log_prob").requires_grad_()
    rows = SimpleNamespace(response_mask=MASK, ref_log_probs=given("ref_log_prob"))
    terms = kl_penalty(1.0)(SimpleNamespace(log_probs=log_probs), rows)
    terms.sum().backward()
    compared = MASK & (peer("verl/kl/k3/mat") < 10)
    assert int(compared.sum()) > 290
    torch.testing.assert_close(terms.detach()[compared], peer("verl/kl/k3/mat")[compared], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(log_probs.grad[compared], peer("verl/kl/k3/grad_log_prob")[compared], rtol=1e-5, atol=1e-6)


def test_value_clip_agrees() -> None:
    forward = SimpleNamespace(values=given("vpreds"))
    rows = SimpleNamespace(response_mask=MASK, values=given("values"), returns=given("returns"))
    loss, clip_fraction = peer("verl/value_loss/0.2").tolist()
    assert abs(float(value_clip(0.2)(forward, rows).sum() / MASK.sum()) - loss) < 1e-6 * loss
    assert abs(float(value_clip(0.2).metrics(forward, rows)["clip_fraction"].sum() / MASK.sum()) - clip_fraction) < 1e-6
