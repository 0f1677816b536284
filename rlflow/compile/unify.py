"""Letters of a signature from the sizes of the arguments, by majority: plain functions on sizes, without a graph.

    want            got                  says
    S               512                  S = 512
    S - 1           R2 - 1               S = R2
    2*S             S2 - 1               nothing: no S makes it so
    P*G             512, with G = 8      P = 64
    P*G             512                  nothing yet: another argument has to tell one of them

The letters are those with which the most arguments fit. If two readings fit equally many, neither side is in the wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..language.dims import Dim, Monomial


class Equation(NamedTuple):
    """One axis of one argument."""

    param: str
    axis: int
    want: Dim  # in letters of the signature
    got: Dim  # in letters of the graph


class Vote(NamedTuple):
    equation: Equation
    value: Dim


class Reading(NamedTuple):
    """One way to read the letters."""

    letters: dict[str, Dim]
    votes: dict[str, list[Vote]]  # letter -> who said what, in order
    wrong: dict[str, Equation]  # argument that does not fit -> its first axis that does not
    open: dict[str, Equation]  # argument with letters that nothing tells -> its first such axis


class Verdict(NamedTuple):
    best: Reading
    rival: Reading | None  # fits as many arguments, and blames others


def unify(equations: Sequence[Equation], fixed: Mapping[str, Dim]) -> Verdict:
    """The reading that fits the most arguments, the first of them on a tie. fixed: letters that an integer parameter binds."""
    plain = _read(equations, fixed)
    if not plain.wrong:
        return Verdict(plain, None)
    readings = [plain]
    for param in dict.fromkeys(equation.param for equation in equations):  # what if this one is right?
        alone = _read([equation for equation in equations if equation.param == param], fixed)
        readings.append(_read(equations, {**fixed, **alone.letters}))
    best = min(readings, key=lambda reading: len(reading.wrong))
    equal = (reading for reading in readings if len(reading.wrong) == len(best.wrong))
    return Verdict(best, next((reading for reading in equal if reading.wrong.keys() != best.wrong.keys()), None))


def solve(want: Dim, got: Dim, letter: str, known: Mapping[str, Dim]) -> Dim | None:
    """The size of `letter` with which `want` is `got`; None where no size, or more than one, makes it so."""
    factor, rest = dict[Monomial, int](), dict[Monomial, int]()
    for monomial, k in want.terms.items():
        if letter not in monomial:
            rest[monomial] = k
        elif monomial.count(letter) == 1:
            factor[tuple(x for x in monomial if x != letter)] = k
        else:
            return None
    value: Dim | None = got - Dim(rest).put(known) if rest else got
    if value is not None and factor != {(): 1}:  # most often it is: R = S - 1
        value = value.over(Dim(factor).put(known))
    return None if value is None or (value.number or 0) < 0 else value


def _read(equations: Sequence[Equation], fixed: Mapping[str, Dim]) -> Reading:
    """Rounds: in each, every letter that is the only unknown one of some axis gets the size that most arguments say."""
    letters, votes = dict(fixed), dict[str, list[Vote]]()
    while said := _round(equations, letters):
        for letter, each in said.items():
            letters[letter] = Counter(vote.value for vote in each).most_common(1)[0][0]  # the first said, on a tie
        votes |= said
    wrong, unknown = dict[str, Equation](), dict[str, Equation]()
    for equation in equations:
        missing = equation.want.letters - letters.keys()
        if len(missing) > 1 or (missing and not _linear(equation.want, min(missing))):
            unknown.setdefault(equation.param, equation)
        elif missing or equation.want.put(letters) != equation.got:
            wrong.setdefault(equation.param, equation)
    return Reading(letters, votes, wrong, unknown)


def _round(equations: Sequence[Equation], letters: dict[str, Dim]) -> dict[str, list[Vote]]:
    said: dict[str, list[Vote]] = {}
    for equation in equations:
        unknown = equation.want.letters - letters.keys()
        if len(unknown) != 1:
            continue
        letter = min(unknown)
        value = equation.got if equation.want.single else solve(equation.want, equation.got, letter, letters)
        if value is not None and all(vote.equation.param != equation.param or vote.value != value for vote in said.get(letter, ())):
            said.setdefault(letter, []).append(Vote(equation, value))
    return said


def _linear(dim: Dim, letter: str) -> bool:
    return all(monomial.count(letter) <= 1 for monomial in dim.terms)
