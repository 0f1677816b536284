"""Step by step within an episode: gigpo compares whole episodes of a prompt, and the steps that began in the same state.

    row of one uid     turn 1            turn 2
    0                  in state 5, G=1   in state 8, G=1       the two turns in state 5 are compared with each other,
    1                  in state 5, G=0   in state 9, G=0       those in 8 and 9 were alone there
    step_states        5 5 . . 8 8 8     one number a trained token: the state in which its turn began; 0: nobody knows

A turn is a run of trained tokens; it ends where the mask does, or where the state changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlflow import operator
from rlflow.data.dtypes import Array

from ..fields import ResponseMask, StepRewards, StepStates, TokenRewards, TrajUid, Uid
from ..options import finite, within
from ..ragged import Tokens, segment_sums
from ..records import Advantage
from .groups import EXTREMES, Groups, fill, nonzero, numbered_pairs
from .scan import suffix_sums

EPSILON = 2.0**-23  # of float32: returns that differ by less were discounted and added up in another order, no more


@operator(per="group", least_group=2, ragged=True)
def gigpo(
    token_level_rewards: TokenRewards,
    response_mask: ResponseMask,
    uid: Uid,
    step_states: StepStates,
    step_rewards: StepRewards | None = None,
    *,
    traj_uid: TrajUid | None = None,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    scale_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Advantage:
    """Episode advantage plus `step_weight` times that of the step, on each token of the step.

        episode   (s - μ) / (σ + ε) over the trajectories of the uid, as grpo
        step      (G - μ) / (σ + ε) over the steps of the uid that began in the same state, G = Σ_k γ^k r_{turn+k}

    Feng et al. 2025, GiGPO (arXiv:2505.10978), sections 4.1 to 4.3; `scale_by_std=False` is its F_norm = 1. r: what `step_rewards` hold
    of a turn, without them what token_level_rewards do. A step alone in its state, in one that nobody knows (0), or of a trajectory alone
    in its group, adds 0; so do steps whose G are equal. A state visited again by the same trajectory is another step in it.
    `returns` repeat the advantages.

        one uid, γ = 0.5, two turns each, all four begin in state 7 and 8; rewards 0, 1 | 0, 0, F_norm = 1: episodes ±0.5;
        G = 0.5, 1 | 0, 0: steps ±0.25 in state 7, ±0.5 in 8; advantages 0.75, 1 | -0.75, -1
    """
    within("gigpo", 0, 1, gamma=gamma)
    within("gigpo", 0, math.inf, epsilon=epsilon)
    finite("gigpo", step_weight=step_weight)
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    tokens = groups.tokens
    given = ("token_level_rewards", token_level_rewards) if step_rewards is None else ("step_rewards", step_rewards)
    turns = Turns.find(tokens, tokens.read("step_states", step_states), tokens.finite(*given), gamma)
    episode = groups.scores - groups.mean()
    if scale_by_std:
        episode = episode / nonzero(groups.deviation() + epsilon)
    episode = np.where(groups.comparable(), episode, 0.0)
    step = turns.advantage(groups.group, scale_by_std, epsilon)
    step[groups.members[groups.group][turns.row] < 2] = 0
    x = tokens.each(episode) + step_weight * np.repeat(step, turns.lengths)
    return Advantage(advantages=tokens.write(x), returns=tokens.write(x))


@dataclass(frozen=True)
class Turns:
    """The turns of a batch, row after row."""

    row: Array  # i64[turns]
    lengths: Array  # i64[turns]: trained tokens
    state: Array  # i64[turns]
    returns: Array  # f64[turns]: discounted over the turns of the row that follow

    @classmethod
    def find(cls, tokens: Tokens, states: Array, rewards: Array, gamma: float) -> Turns:
        """states, rewards: [trained tokens]."""
        at = np.flatnonzero(tokens.mask)
        begins = np.ones(len(at), np.bool_)
        begins[1:] = (at[1:] != at[:-1] + 1) | (states[1:] != states[:-1])
        begins[tokens.starts[:-1][tokens.counts > 0]] = True
        first = np.flatnonzero(begins)
        lengths = np.diff(first, append=len(at))
        row = tokens.each(np.arange(tokens.rows))[first]
        returns = suffix_sums(segment_sums(rewards, lengths), np.bincount(row, minlength=tokens.rows), gamma)
        return cls(row, lengths, states[first], returns)

    def advantage(self, group: Array, scale_by_std: bool, epsilon: float) -> Array:
        """f64[turns]. group: i64[B]."""
        known = self.state != 0
        of = numbered_pairs(group[self.row], np.where(known, self.state, 0))
        low, high = (fill(len(of), start, at, of, self.returns, known) for start, at in EXTREMES)
        count = np.maximum(np.bincount(of), 1)
        centred = self.returns - (np.bincount(of, self.returns) / count)[of]
        if scale_by_std:
            deviation = np.sqrt(np.bincount(of, centred**2) / np.maximum(count - 1, 1))[of]
            centred = centred / nonzero(deviation + epsilon)
        return np.where(known & (high - low > EPSILON * np.maximum(np.abs(high), np.abs(low)))[of], centred, 0.0)
