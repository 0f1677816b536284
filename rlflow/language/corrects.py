"""In what two log-probs of the same tokens can differ, and what rows may be. An operator or a loss says which of these it corrects for:
`corrects=`.

version       of the weights of one policy: rows sampled at k - lag, log-probs at k
temperature   of the distribution
top_p         where the distribution was cut, and made to sum to 1 again
engine        that computed them: a rollout engine and a trainer round differently
stale         of weights older than max_lag: a mask that corrects for it hides their tokens
policy        whose they are: of another feedback than the one that is trained; of rows, whoever sampled them, and however
"""

from __future__ import annotations

from typing import Literal, get_args

Difference = Literal["version", "temperature", "top_p", "engine", "stale", "policy"]
DIFFERENCES: tuple[Difference, ...] = get_args(Difference)
