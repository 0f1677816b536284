"""What holds for every loss that is shipped: `EXAMPLES` has one of each, and a new one is missed here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from evaluated import forward_of, rows_of, terms_of, with_statistic

import operators.loss as shipped

NAN, INF = float("nan"), float("inf")
POLICY = {
    "ppo_clip": shipped.ppo_clip(dual_clip=3.0),
    "cispo": shipped.cispo(),
    "sapo": shipped.sapo(),
    "dppo": shipped.dppo(),
    "gpg": shipped.gpg(),
    "dro": shipped.dro(),
    "gspo": shipped.gspo(0.2, 0.2),
    "gmpo": shipped.gmpo(),
    "topr": shipped.topr(),
    "clip_cov": shipped.clip_cov(),
    "kl_cov": shipped.kl_cov(),
}
OTHERS = {
    "kl_penalty": shipped.kl_penalty(0.5),
    "opd": shipped.opd(),
    "entropy_bonus": shipped.entropy_bonus(0.1),
    "value_clip": shipped.value_clip(),
    "load_balancing": shipped.load_balancing(0.1),
    "router_z_loss": shipped.router_z_loss(0.1),
}
EXAMPLES: dict[str, Any] = {**POLICY, **OTHERS}
AGGREGATES: Any = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MASK = [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]]
INSIDE = torch.tensor(MASK).bool()


def inputs(junk: float = 0.0, distance: float = 0.1) -> tuple[Any, Any]:
    """Rows with a tool gap and one that is not trained; `junk` outside the mask. distance: of the two log-probs of a token."""
    fill = lambda inside: [[inside + 0.1 * t if m else junk for t, m in enumerate(row)] for row in MASK]  # noqa: E731
    forward = forward_of(log_probs=fill(-1.0), entropy=fill(1.5), values=fill(0.3))
    logits = torch.tensor(fill(0.3), dtype=torch.float64).unsqueeze(-1) * torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    forward.router = logits.requires_grad_()
    forward.router_logits, forward.experts_per_token = (forward.router, forward.router * 2), 2
    others = {name: fill(-1.0 - distance) for name in ("old_log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs")}
    return forward, rows_of(response_mask=MASK, advantages=fill(0.7), values=fill(0.2), returns=fill(0.9), **others)


def slopes(forward: Any) -> torch.Tensor:
    """The gradient to whatever the loss reads of the forward."""
    return next(x.grad for x in (forward.log_probs, forward.entropy, forward.values, forward.router) if x.grad is not None)  # type: ignore[no-any-return]


def again(loss: Any, **options: Any) -> Any:
    """The same loss with other options."""
    return type(loss)(**{**loss.__dict__, **options})


def test_every_shipped_loss_is_here() -> None:
    assert set(EXAMPLES) == set(shipped.__all__)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
def test_L17_junk_outside_the_mask_touches_no_shipped_loss(name: str, aggregate: str, junk: float) -> None:
    loss = again(EXAMPLES[name], aggregate=aggregate, constant=8.0)
    found = []
    for outside in (0.0, junk):
        forward, rows = inputs(outside)
        terms = terms_of(loss, forward, rows)
        terms.sum().backward()
        found.append((terms.detach(), slopes(forward)))
        assert (terms[~INSIDE] == 0).all()
        assert (slopes(forward)[~INSIDE] == 0).all()
        assert all(value.isfinite().all() for value in loss.metrics(forward, rows).values()) if hasattr(loss, "metrics") else True
    assert (found[0][0] == found[1][0]).all()
    assert (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_L17_nan_inside_the_mask_is_not_hidden(name: str) -> None:
    forward, rows = inputs()
    for x in (forward.log_probs, forward.entropy, forward.values, *forward.router_logits):
        x.data[0, 1] = NAN
    assert not terms_of(EXAMPLES[name], forward, rows).isfinite().all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_L18_every_shipped_loss_has_a_gradient(name: str) -> None:
    forward, rows = inputs()
    terms_of(EXAMPLES[name], forward, rows).sum().backward()
    assert (slopes(forward)[INSIDE] != 0).any()


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("distance", [25.0, -25.0, 500.0, -500.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_log_ratios_leave_every_shipped_loss_finite(name: str, distance: float, sign: float, dtype: torch.dtype) -> None:
    forward, rows = inputs(distance=distance)
    for x in (forward.log_probs, rows.old_log_probs, rows.rollout_log_probs, rows.ref_log_probs, rows.teacher_log_probs):
        x.data = x.data.to(dtype)
    rows.advantages.mul_(sign)
    terms = terms_of(EXAMPLES[name], forward, rows)
    terms.sum().backward()
    assert terms.isfinite().all()
    assert slopes(forward).isfinite().all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_L15_rows_that_are_all_masked_keep_every_shipped_loss_connected(name: str) -> None:
    forward, rows = inputs(NAN)
    rows.response_mask[:] = False
    terms = terms_of(EXAMPLES[name], forward, rows)
    terms.sum().backward()
    assert (terms == 0).all()
    assert (slopes(forward) == 0).all()


@pytest.mark.parametrize("name", sorted(set(POLICY) - {"dro", "kl_cov"}))  # those two also pull to the old policy
def test_without_an_advantage_a_policy_loss_moves_nothing(name: str) -> None:
    forward, rows = inputs()
    rows.advantages.zero_()
    terms = terms_of(POLICY[name], forward, rows)
    terms.sum().backward()
    assert (terms == 0).all()
    assert (slopes(forward) == 0).all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_metrics_of_every_shipped_loss_are_masked_and_without_gradient(name: str) -> None:
    loss = EXAMPLES[name]
    forward, rows = inputs(NAN)
    for value in loss.metrics(forward, with_statistic(loss, forward, rows)).values() if hasattr(loss, "metrics") else ():
        assert not value.requires_grad
        assert (value[~INSIDE] == 0).all()


@pytest.mark.parametrize("name", POLICY)
def test_what_the_forward_gives_is_what_the_loss_reads(name: str) -> None:
    """old_log_probs may be the forward's own: then the ratio is 1, and the loss the same as with them given."""
    loss = POLICY[name]
    expected = {} if name in ("gpg", "topr") else {"old_log_probs": "log_probs"}
    assert loss.from_forward == expected


@pytest.mark.parametrize("name", sorted(set(POLICY) - {"gpg", "topr", "gmpo", "dro"}))
def test_at_ratio_one_every_policy_loss_follows_the_policy_gradient(name: str) -> None:
    """-A ∇ log π: clipping, gates and truncation say nothing yet."""
    forward, rows = inputs(distance=0.0)
    loss = again(POLICY[name], aggregate="token-mean")
    terms_of(again(loss, cov_low=1e9) if name == "clip_cov" else loss, forward, rows).sum().backward()
    torch.testing.assert_close(slopes(forward), -rows.advantages.where(INSIDE, 0.0))
