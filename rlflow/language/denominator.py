"""What a loss may be divided by: the engine divides, so it must be able to count.

tokens, rows              counted from the masks that every training forward reads; rows are those with a trained token
trajectories, groups      counted by keys, which the loss must read: a field that nobody reads is not brought to the trainer
a number above 0          itself

How much a row weighs (`Loss.row_weight`) asks for keys of the record that is trained on, whatever record the loss names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from . import source
from .aggregate import NORM, Aggregated, faults_of
from .diagnostic import Label
from .fits import misfit
from .loss import Loss, options_of, rows_of
from .record import Record, labels, names_of

KEYS: dict[str, tuple[str, ...]] = {"tokens": (), "rows": (), "trajectories": ("uid", "traj_uid"), "groups": ("uid",)}
WEIGHED: dict[str, tuple[str, ...]] = {"row": (), "trajectory": ("uid", "traj_uid"), "group": ("uid", "traj_uid")}


class Uncounted(NamedTuple):
    """Why a loss cannot be divided."""

    code: str
    message: str
    label: str
    declared: tuple[Label, ...]
    help: str


def uncounted(loss: Loss[Any, Any]) -> Iterator[Uncounted]:
    """Nothing, for a denominator that the engine can count."""
    if not loss.active:
        return
    name, wanted, record = type(loss).__name__, loss.denominator, rows_of(loss)
    declared = _declared(type(loss))
    if isinstance(loss, Aggregated) and loss.aggregate == NORM:
        for fault in faults_of(loss):
            help = "a number that no batch changes, say the longest answer that is sampled: `constant=512`"
            yield Uncounted("RLF013", f"`{name}` has nothing to divide by: {fault}", "a constant is an option", (), help)
    if not _is_one(wanted):
        message = f"`{name}` is divided by {wanted!r}, which nobody counts"
        help = f"a denominator is one of {', '.join(KEYS)}, or a number above 0"
        yield Uncounted("RLF013", message, "the engine sums the terms and divides", declared, help)
        return
    for key in KEYS.get(str(wanted), ()):
        if key not in names_of(record):
            message = f"`{record.__name__}` has no field `{key}`, by which the {wanted} of `{name}` are counted"
            yield Uncounted("RLF001", message, f"divided by its {wanted}", declared, f"give `{record.__name__}` the field `{key}`")


def unweighed(loss: Loss[Any, Any], record: type[Record]) -> Iterator[Uncounted]:
    """Nothing, for rows that the engine can weigh as the loss asks. record: what is trained on."""
    name, wanted = type(loss).__name__, loss.row_weight
    if not loss.active:
        return
    declared = options_of(type(loss)).get("row_weight")  # type: ignore[arg-type]  # mypy takes the __hash__ of its instances for its own
    if wanted not in WEIGHED and misfit(declared, wanted) is None:  # else its type has told already
        message, help = f"`{name}` weighs rows by {wanted!r}, which nobody knows", f"a row weight is one of {', '.join(WEIGHED)}"
        yield Uncounted("RLF013", message, "the engine weighs the terms", (), help)
    if missing := [key for key in weighed_by(loss) if key not in names_of(record)]:
        lacking = " and ".join(f"`{key}`" for key in missing)
        message = f"`{record.__name__}` has no {lacking}, by which `{name}` weighs rows"
        yield Uncounted("RLF001", message, f'row_weight="{wanted}"', (), f"give `{record.__name__}` the fields `uid` and `traj_uid`")


def weighed_by(loss: Loss[Any, Any]) -> tuple[str, ...]:
    """The fields of the record in training that the engine reads to weigh its rows."""
    return WEIGHED.get(loss.row_weight, ()) if loss.active else ()


def _is_one(wanted: object) -> bool:
    number = isinstance(wanted, int | float) and not isinstance(wanted, bool) and wanted > 0
    return number or (isinstance(wanted, str) and wanted in KEYS)


def _declared(cls: type[Loss[Any, Any]]) -> tuple[Label, ...]:
    getter = getattr(cls.denominator, "fget", None)  # a class may hold a plain attribute in its place
    return () if getter is None or cls.denominator is Loss.denominator else labels(source.parameter_ref(getter, ""))
