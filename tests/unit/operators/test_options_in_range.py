"""Numbers that are options: outside of their range they are refused where they are given, by name and value, with what to give."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import operators.advantage as advantage
import operators.loss as losses
from operators.options import above, finite, within
from operators.shaping import kl_in_reward, overlong_penalty
from rlflow.errors import UsageError

REWARDS = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
GIVEN = {"token_level_rewards": REWARDS, "response_mask": torch.ones(2, 2, dtype=torch.bool)}
GROUP = {**GIVEN, "uid": torch.tensor([7, 7])}
CRITIC = {**GIVEN, "values": torch.zeros(2, 2)}


def refused(said: str) -> Any:
    return pytest.raises(UsageError, match=re.escape(said))


def test_both_ends_of_a_range_are_in_it() -> None:
    within("f", 0, 1, a=0, b=1.0)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, "0.5", None, True, torch.tensor(0.5)])
def test_what_is_no_number_of_the_range_is_refused(value: Any) -> None:
    with refused(f"f: a is {value!r}; give a number from 0 to 1"):
        within("f", 0, 1, a=value)


def test_a_range_may_have_no_upper_end() -> None:
    within("f", 0, math.inf, a=math.inf)
    with refused("f: a is -2.0; give a number from 0 up"):
        within("f", 0, math.inf, a=-2.0)


def test_above_does_not_include_its_bound() -> None:
    above("f", 1, a=1.5)
    with refused("f: a is 1; give a number above 1"):
        above("f", 1, a=1)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_finite_numbers_may_be_negative(value: float) -> None:
    finite("f", a=-1e30)
    with refused(f"f: a is {value!r}; give a finite number"):
        finite("f", a=value)


@pytest.mark.parametrize(
    ("loss", "options", "said"),
    [
        ("ppo_clip", {"clip_low": -0.2}, "clip_low is -0.2"),
        ("ppo_clip", {"clip_high": math.nan}, "clip_high is nan"),
        ("ppo_clip", {"dual_clip": 1.0}, "dual_clip is 1.0"),
        ("gspo", {"clip_low": -1e-4}, "clip_low is -0.0001"),
        ("gmpo", {"clip_high": -0.4}, "clip_high is -0.4"),
        ("cispo", {"clip_high": -2.0}, "clip_high is -2.0"),
        ("sapo", {"tau_neg": 0.0}, "tau_neg is 0.0"),
        ("dppo", {"low": -0.1}, "low is -0.1"),
        ("dppo", {"ratio_cap": 0.0}, "ratio_cap is 0.0"),
        ("dro", {"beta": 0.0}, "beta is 0.0"),
        ("clip_cov", {"cov_ratio": 2.0}, "cov_ratio is 2.0"),
        ("clip_cov", {"cov_low": math.nan}, "cov_low is nan"),
        ("kl_cov", {"cov_ratio": -0.1}, "cov_ratio is -0.1"),
        ("kl_cov", {"kl_coef": math.inf}, "kl_coef is inf"),
        ("kl_penalty", {"beta": -0.1}, "beta is -0.1"),
        ("kl_penalty", {"beta": math.inf}, "beta is inf"),
        ("opd", {"coef": math.nan}, "coef is nan"),
        ("entropy_bonus", {"coef": math.nan}, "coef is nan"),
        ("load_balancing", {"coef": math.inf}, "coef is inf"),
        ("router_z_loss", {"coef": math.nan}, "coef is nan"),
        ("value_clip", {"clip": -1.0}, "clip is -1.0"),
    ],
)
def test_a_loss_refuses_an_option_out_of_range(loss: str, options: dict[str, float], said: str) -> None:
    with refused(f"{loss}: {said}; give a"):
        getattr(losses, loss)(**options)


@pytest.mark.parametrize(
    ("estimator", "given", "options", "said"),
    [
        ("grpo", GROUP, {"epsilon": -1.0}, "epsilon is -1.0"),
        ("grpo", GROUP, {"epsilon": "x"}, "epsilon is 'x'"),
        ("grpo_passk", GROUP, {"epsilon": math.nan}, "epsilon is nan"),
        ("maxrl", GROUP, {"epsilon": -1e-6}, "epsilon is -1e-06"),
        ("gae", CRITIC, {"gamma": 2.0}, "gamma is 2.0"),
        ("gae", CRITIC, {"lam": -0.5}, "lam is -0.5"),
        ("reinforce", GIVEN, {"gamma": math.nan}, "gamma is nan"),
        ("reinforce_plus_plus", GIVEN, {"gamma": 1.5}, "gamma is 1.5"),
        ("gigpo", {**GROUP, "step_states": torch.ones(2, 2, dtype=torch.int64)}, {"gamma": -1.0}, "gamma is -1.0"),
        ("gigpo", {**GROUP, "step_states": torch.ones(2, 2, dtype=torch.int64)}, {"step_weight": math.inf}, "step_weight is inf"),
    ],
)
def test_an_estimator_refuses_an_option_out_of_range(estimator: str, given: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with refused(f"{estimator}: {said}; give a"):
        getattr(advantage, estimator)(**given, **options)


def test_gpg_refuses_a_way_of_counting_that_there_is_not() -> None:
    with refused("gpg: counted is 'all'; use scored, comparable"):
        advantage.gpg(**GROUP, counted="all")  # type: ignore[arg-type]


def test_shaping_refuses_a_penalty_that_would_pay() -> None:
    with refused("overlong_penalty: penalty is -1.0; give a number from 0 up"):
        overlong_penalty(**GIVEN, limit=2, buffer=1, penalty=-1.0)
    with refused("kl_in_reward: beta is -0.1; give a number from 0 up"):
        kl_in_reward(**GIVEN, old_log_probs=REWARDS, ref_log_probs=REWARDS, beta=-0.1)
