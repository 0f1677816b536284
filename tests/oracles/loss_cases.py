"""Which numbers of other projects speak of which loss of ours: compared as they are, or by a convention that is named.

    COMPARED     key of a peer → our loss, our inputs, and a factor: value and gradient agree, at 1e-5
    everything else is in test_loss_oracles.py, each with a test that shows that the difference is that convention and nothing else

Conventions that make a factor:
    ROWS     a row without a trained token is no row: 21 of the 24 count. Some peers count all that are there.
    SUM      a peer that returns a sum, and folds the count into the advantages elsewhere
"""

from __future__ import annotations

from typing import Any, NamedTuple

from peer_numbers import MASK, given
from torch import Tensor

from operators.loss import cispo, dppo, dro, gmpo, gpg, gspo, ppo_clip, sapo

TOKENS, ROWS = int(MASK.sum()), int(MASK.any(-1).sum())
ALL_ROWS = ROWS / len(MASK)  # 21 / 24: theirs = ours · this
SUM = float(TOKENS)

ADVANTAGES, WEIGHTS = given("advantages"), given("rollout_is_weights")
LOG_RATIO = given("log_prob") - given("old_log_prob")
BEYOND = MASK & (LOG_RATIO.abs() > 20)  # two tokens, by 25.0 and 29.2


def row_mean(x: Tensor) -> Tensor:
    """Each token the mean of its row's trained tokens."""
    mean = x.where(MASK, 0.0).sum(-1, keepdim=True) / MASK.sum(-1, keepdim=True).clamp(min=1)
    return mean.expand(MASK.shape)


class Case(NamedTuple):
    loss: Any
    advantages: Tensor = ADVANTAGES
    factor: float = 1.0  # theirs / ours


def _verl() -> dict[str, Case]:
    cases = {}
    for aggregate in ("token-mean", "seq-mean-token-mean"):
        how: Any = {"aggregate": aggregate}
        losses = {
            "vanilla": ppo_clip(dual_clip=3.0, **how),
            "cispo": cispo(0.2, 0.2, **how),
            "dppo_tv": dppo("tv", ratio_cap=3.0, **how),
            "dppo_kl": dppo("kl", ratio_cap=3.0, **how),
            "gspo": gspo(0.2, 0.2, **how),
            "sapo": sapo(),  # it ignores the aggregation that it is given
            "gpg": gpg(**how),
        }
        for name, loss in losses.items():
            cases[f"verl/policy/{name}/{aggregate}/none"] = Case(loss)
            cases[f"verl/policy/{name}/{aggregate}/isw"] = Case(loss, ADVANTAGES * WEIGHTS)  # weights are not negative
        cases[f"verl/policy/dro/{aggregate}/none"] = Case(dro(0.1, **how))
        # it ignores the aggregation, divides by all rows, and takes the geometric mean of a row's weights
        geometric = row_mean((WEIGHTS + 1e-10).log()).exp()
        cases[f"verl/policy/geo_mean/{aggregate}/none"] = Case(gmpo(0.2, 0.2), factor=ALL_ROWS)
        cases[f"verl/policy/geo_mean/{aggregate}/isw"] = Case(gmpo(0.2, 0.2), ADVANTAGES * geometric, ALL_ROWS)
    return cases


def _openrlhf() -> dict[str, Case]:
    difference = given("old_log_prob") - given("rollout_log_prob")
    weight, of_row = difference.exp(), row_mean(difference).exp()
    return {
        "openrlhf/policy/ppo": Case(ppo_clip()),
        "openrlhf/policy/ppo_dual3": Case(ppo_clip(dual_clip=3.0)),
        "openrlhf/policy/ppo_seq": Case(ppo_clip(aggregate="seq-mean-token-mean")),
        "openrlhf/policy/tis_clip": Case(ppo_clip(), ADVANTAGES * weight.clamp(0, 2)),
        "openrlhf/policy/icepop": Case(ppo_clip(), ADVANTAGES * weight.where((weight >= 0.5) & (weight <= 5), 0.0)),
        "openrlhf/policy/seq_mask": Case(ppo_clip(), ADVANTAGES * weight.where((of_row >= 0.9) & (of_row <= 1.1), 0.0)),
    }


def _others() -> dict[str, Case]:
    a_row = ADVANTAGES[:, :1].expand(MASK.shape)  # trl has one advantage a row
    return {
        "areal/policy/token_cclip3": Case(ppo_clip(dual_clip=3.0)),
        "areal/policy/sequence": Case(gspo(0.2, 0.2, aggregate="token-mean"), row_mean(ADVANTAGES)),
        "skyrl/policy/regular": Case(ppo_clip(), factor=SUM),
        "skyrl/policy/dual_clip": Case(ppo_clip(dual_clip=3.0), factor=SUM),
        "skyrl/policy/gspo": Case(gspo(0.2, 0.2, aggregate="token-mean"), factor=SUM),
        "skyrl/policy/cispo": Case(cispo(0.0, 5.0), factor=SUM),
        "skyrl/policy/sapo": Case(sapo(aggregate="token-mean"), factor=SUM),
        "trl/policy/grpo/sequence/beta0.0": Case(gspo(0.2, 0.2), a_row, ALL_ROWS),
        "trl/policy/cispo/token/beta0.0": Case(cispo(), a_row),
        "trl/policy/sapo/token/beta0.0": Case(sapo(), a_row, ALL_ROWS),
    }


COMPARED: dict[str, Case] = {**_verl(), **_openrlhf(), **_others()}

# Peers that do not bound the log-ratio before exp: two tokens with a log-ratio of 25 and 29 are theirs alone.
UNBOUNDED: dict[str, Case] = {
    "areal/policy/token": Case(ppo_clip()),
    "trl/policy/grpo/token/beta0.0": Case(ppo_clip(aggregate="seq-mean-token-mean"), ADVANTAGES[:, :1].expand(MASK.shape), ALL_ROWS),
    "trl/policy/bnpo/token/beta0.0": Case(ppo_clip(), ADVANTAGES[:, :1].expand(MASK.shape)),
    "trl/policy/dapo/token/beta0.0": Case(ppo_clip(), ADVANTAGES[:, :1].expand(MASK.shape)),
    "trl/policy/dr_grpo/token/beta0.0": Case(
        ppo_clip(aggregate="seq-mean-token-sum-norm", constant=32.0), ADVANTAGES[:, :1].expand(MASK.shape), ALL_ROWS
    ),
}
EXPLAINED_POLICY = {
    *UNBOUNDED,
    "openrlhf/policy/gspo",
    "trl/policy/dapo/token/beta0.04",
    *(
        f"verl/policy/{name}/{aggregate}/{weights}"
        for name, variants in {"dro": ("isw",), "clip_cov": ("none", "isw"), "kl_cov": ("none", "isw")}.items()
        for aggregate in ("token-mean", "seq-mean-token-mean")
        for weights in variants
    ),
}
