"""Tensors as a loss reads them: the forward and the rows of a micro-batch, and an error with the fix for what is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlflow.engines.train.denominators import Counts, whole_counts
from rlflow.engines.train.distributed import Ranks
from rlflow.errors import UsageError
from rlflow.language.loss import Loss

__all__ = ["Given", "Lacking", "Parts", "alone", "counts_of", "refuse_no_loss", "required"]


class Lacking(UsageError, AttributeError):
    """A loss reads what was not given. (An AttributeError too: `hasattr` is to say no.)"""


class Given:
    """Fields by name. of: whose they are, for the error about one that is not there."""

    def __init__(self, of: str, help: str, fields: Mapping[str, Tensor]) -> None:
        self._of, self._help = of, help
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Lacking(f"the loss reads `{name}` of the {self._of}, which was not given: {self._help.format(name=name)}")


@dataclass(frozen=True)
class Parts:
    """What the engine's functions read of an objective."""

    losses: tuple[Any, ...]
    parts: tuple[tuple[Any, ...], ...]
    counts: tuple[Mapping[str, int], ...] = ()


def alone() -> Ranks:
    """A group of one rank."""
    return Ranks(0, 1, rendezvous="", device=torch.device("cpu"), timeout_s=1)


def counts_of(loss: Loss[Any, Any], of_ranks: Sequence[Iterable[Any]]) -> tuple[Counts, Parts]:
    """The counts of one mini-batch over all ranks, as the engine takes them, and the objective of the first rank."""
    objectives = [Parts((loss,), (tuple(rows),)) for rows in of_ranks]
    words: list[Any] = []
    for objective in objectives:
        whole_counts(objective, [loss], _Told(words))  # type: ignore[arg-type]  # it only exchanges words
    (counts,) = whole_counts(objectives[0], [loss], _Told(words[: len(objectives)], words))  # type: ignore[arg-type]
    return counts, objectives[0]


class _Told:
    """Ranks in one process, one after the other: hears what each says; then, given what all have said, tells it."""

    def __init__(self, heard: list[Any], told: list[Any] | None = None) -> None:
        self._heard, self._told = heard, told

    def exchange(self, word: Any, what: str) -> list[Any]:
        if self._told is not None:
            return self._told
        self._heard.append(word)
        return [word]


def refuse_no_loss(loss: object) -> None:
    """Raise UsageError for what is no loss object."""
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise UsageError(f"{loss.__name__} is a class of losses: give one of them, {loss.__name__}(...)")
    if not isinstance(loss, Loss):
        raise UsageError(f"{loss!r} is no loss: give an object of a class that derives from rlflow.Loss")


def required(**given: Tensor | None) -> dict[str, Tensor]:
    """Those that were given. Raises UsageError for what is no tensor."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise UsageError(f"{name} is a {type(value).__name__}, not a tensor: torch.as_tensor({name})")
    return {name: value for name, value in given.items() if value is not None}
