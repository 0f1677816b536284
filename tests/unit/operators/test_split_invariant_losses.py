"""P17 of every shipped loss, with its own average; with every average: tests/real/train/test_every_average.py."""

from __future__ import annotations

import pytest
from test_every_loss import EXAMPLES

from operators.loss import clip_cov, kl_cov, load_balancing
from rlflow.errors import UsageError
from rlflow.testing import assert_split_invariant

HOLDING = {"clip_cov": clip_cov(cov_ratio=0.1, cov_low=-5.0), "kl_cov": kl_cov(cov_ratio=0.1)}  # several tokens of a small batch
OF_EXPERTS = {"load_balancing", "router_z_loss"}  # of a router's logits: tests/unit/train/test_experts.py


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - OF_EXPERTS))
def test_P17_no_cut_changes_a_shipped_loss(name: str) -> None:
    assert_split_invariant(HOLDING.get(name, EXAMPLES[name]))


def test_P17_the_one_that_depends_on_the_cut_says_so() -> None:
    assert [name for name, loss in EXAMPLES.items() if not loss.split_invariant] == ["load_balancing"]
    with pytest.raises(UsageError, match=r"load_balancing says split_invariant = False: .* each expert"):
        assert_split_invariant(load_balancing(0.1))
