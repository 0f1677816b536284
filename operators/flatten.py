"""A trajectory is a tree of turns; a row of the batch is one of its leaves.

    S ── A1 ── U2 ── A2        leaf 0: S A1 U2 A2    trains A1 A2
           └── U3 ── A3        leaf 1: S A1 U3 A3    trains A3: A1 is trained once, in the first leaf that holds it

One leaf, with what each column holds (S system, U user or tool, A the model's own tokens):

    input_ids:          [S, U1, A1, U2, A2]
    responses:          [   U1, A1, U2, A2]   = input_ids[1:]
    response_mask:      [   0,  1,  0,  1 ]   1 only on the model's own tokens, the first time they occur
    rollout_log_probs:  [   0,  lp, 0,  lp]   0 wherever the mask is 0
    token_versions:     [  -1,  v, -1,  w ]   of the weights that sampled a trained token; -1 wherever the mask is 0
    step_states:        [   0,  s,  0,  t ]   of the environment when the token's turn began; 0 wherever the mask is 0
    step_rewards:       [   0,  0,  0,  r ]   what a turn was given, at its last token; 0 wherever the mask is 0
    position_ids:       [0, 1,  2,  3,  4 ]

Only ids: what is trained is what was sampled, never text that was encoded again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlflow.errors import DataError

__all__ = ["Row", "Turn", "chain", "flatten"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One node of the tree: tokens that were either sampled by the model (own) or given to it.

    log_probs: of each own token under the weights that sampled it, natural log; None for a turn that is not own.
    versions: of those weights, for each own token; empty: nobody knows (-1).
    state: a number of the environment's state when an own turn began; 0: nobody knows. reward: what it was given for an own turn.
    parent: number of the turn that it follows in the list given to `flatten`; None for the root.
    """

    tokens: Sequence[int]
    own: bool
    log_probs: Sequence[float] | None = None
    versions: Sequence[int] = ()
    state: int = 0
    reward: float = 0.0
    parent: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One leaf, without padding. S tokens, R = S - 1."""

    leaf: int  # 0, 1, ... in the order of the turns given
    path: tuple[int, ...]  # numbers of its turns, root first
    input_ids: npt.NDArray[np.int64]  # [S]
    attention_mask: npt.NDArray[np.bool_]  # [S], True
    position_ids: npt.NDArray[np.int64]  # [S], 0 .. S - 1
    responses: npt.NDArray[np.int64]  # [R]
    response_mask: npt.NDArray[np.bool_]  # [R]
    rollout_log_probs: npt.NDArray[np.float32]  # [R]
    token_versions: npt.NDArray[np.int32]  # [R]
    step_states: npt.NDArray[np.int64]  # [R]
    step_rewards: npt.NDArray[np.float32]  # [R]


def chain(turns: Iterable[Turn]) -> list[Turn]:
    """Turns of a trajectory that never forks: each follows the one before it."""
    return [replace(turn, parent=number - 1 if number else None) for number, turn in enumerate(turns)]


def flatten(turns: Sequence[Turn]) -> list[Row]:
    """The leaf rows of one trajectory, in the order of their last turns.

    `turns` lists parents before children and has one root. A row starts with a token that is not the model's own, since
    nothing before it could predict it. A turn that was stopped before its first token (no tokens) trains nothing.
    Raises DataError for a tree that is none, for own tokens without exactly one finite log-prob each (or with versions for some of
    them only), and for a row without tokens.
    """
    _check_tree(turns)
    for number, turn in enumerate(turns):
        _check_turn(number, turn)
    inner = {turn.parent for turn in turns}
    leaves = [number for number in range(len(turns)) if number not in inner]
    trained: set[int] = set()
    rows = []
    for leaf, last in enumerate(leaves):
        path = _path(turns, last)
        rows.append(_row(turns, leaf, path, [turns[n].own and n not in trained for n in path]))
        trained.update(path)
    return rows


def _path(turns: Sequence[Turn], last: int) -> tuple[int, ...]:
    path = [last]
    while (parent := turns[path[-1]].parent) is not None:
        path.append(parent)
    return tuple(reversed(path))


def _row(turns: Sequence[Turn], leaf: int, path: tuple[int, ...], trains: list[bool]) -> Row:
    input_ids = _joined([turns[n].tokens for n in path], np.int64)
    if not input_ids.size:
        raise DataError(f"leaf {leaf} (turns {list(path)}) has no tokens; a trajectory starts with a prompt of at least one token")
    if turns[first := next(n for n in path if len(turns[n].tokens))].own:
        raise DataError(f"leaf {leaf} starts with the model's own token {input_ids[0]}, unpredicted; put a prompt before turn {first}")
    mask = _joined([[train] * len(turns[n].tokens) for n, train in zip(path, trains, strict=True)], np.bool_)
    log_probs = _joined([_log_probs(turns[n], train) for n, train in zip(path, trains, strict=True)], np.float32)
    versions = _joined([_versions(turns[n], train) for n, train in zip(path, trains, strict=True)], np.int32)
    states = _joined([[turns[n].state * train] * len(turns[n].tokens) for n, train in zip(path, trains, strict=True)], np.int64)
    rewards = _joined([_rewards(turns[n], train) for n, train in zip(path, trains, strict=True)], np.float32)
    return Row(
        leaf=leaf,
        path=path,
        input_ids=input_ids,
        attention_mask=np.ones(input_ids.size, np.bool_),
        position_ids=np.arange(input_ids.size, dtype=np.int64),
        responses=input_ids[1:].copy(),
        response_mask=mask[1:],
        rollout_log_probs=log_probs[1:],
        token_versions=versions[1:],
        step_states=states[1:],
        step_rewards=rewards[1:],
    )


def _log_probs(turn: Turn, train: bool) -> Sequence[float]:
    return turn.log_probs if train and turn.log_probs is not None else [0.0] * len(turn.tokens)


def _versions(turn: Turn, train: bool) -> Sequence[int]:
    return turn.versions if train and len(turn.versions) else [-1] * len(turn.tokens)


def _rewards(turn: Turn, train: bool) -> Sequence[float]:
    return [0.0] * (len(turn.tokens) - 1) + [turn.reward * train] if len(turn.tokens) else []


def _joined(parts: Sequence[Sequence[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.asarray(part, dtype=dtype) for part in parts]) if parts else np.empty(0, dtype)


def _check_tree(turns: Sequence[Turn]) -> None:
    if not turns:
        raise DataError("a trajectory without turns has no row; drop it with a reason instead")
    for number, turn in enumerate(turns):
        if (turn.parent is None) != (number == 0):
            raise DataError(f"turn {number} has parent {turn.parent}; the root, and only it, comes first and has none")
        if turn.parent is not None and not 0 <= turn.parent < number:
            raise DataError(f"turn {number} follows turn {turn.parent}; give parents before their children")


def _check_turn(number: int, turn: Turn) -> None:
    if not turn.own:
        if turn.log_probs is not None or len(turn.versions):
            raise DataError(f"turn {number} has log-probs or versions but is not the model's own; they would be dropped")
        return
    if len(turn.versions) not in (0, len(turn.tokens)):
        raise DataError(
            f"turn {number} has {len(turn.tokens)} own tokens and versions for {len(turn.versions)}; the engine says all or none"
        )
    if turn.log_probs is None or len(turn.log_probs) != len(turn.tokens):
        given = "none" if turn.log_probs is None else str(len(turn.log_probs))
        raise DataError(f"turn {number} has {len(turn.tokens)} own tokens and log-probs for {given}; the engine gives one a token")
    wrong = [(i, lp) for i, lp in enumerate(turn.log_probs) if not math.isfinite(lp)]
    if wrong:
        raise DataError(f"turn {number}: log-prob of token {wrong[0][0]} is {wrong[0][1]}; a token that was sampled has a finite one")
