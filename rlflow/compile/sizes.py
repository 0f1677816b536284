"""Binds the letters of a signature to sizes of the graph, and says which argument does not fit.

A letter takes the size that most of the arguments say. When two disagree and no third decides, neither is accused.

    entropy_bonus(advantages: f32[B, R], entropies: f32[B, R])   R = S - 1
        advantages f32[512, S - 1]  says S = S        a tie: "`advantages` and `entropies` disagree"
        entropies  f32[512, S]      says S = S + 1
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ..language.diagnostic import Diagnostic, Label
from ..language.record import labels
from .facts import Facts
from .ir import Dim, Graph, Node, Use
from .kinds import refuse


class Equation(NamedTuple):
    use: Use
    axis: int
    want: Dim  # in letters of the signature
    got: Dim  # in letters of the graph


def bind(graph: Graph, facts: Facts, node: Node, uses: list[Use], letters: dict[str, Dim]) -> dict[str, Diagnostic]:
    """Fills `letters`; returns what does not fit, by parameter."""
    equations = [
        Equation(use, axis, want, got)
        for use in uses
        if use.declared
        for axis, (want, got) in enumerate(zip(use.declared.shape, facts.specs[use.field].shape, strict=True))
    ]
    votes = _solve(equations, letters)
    return _check(graph, facts, node, equations, letters, votes)


def _solve(equations: list[Equation], letters: dict[str, Dim]) -> dict[str, list[tuple[Use, Dim]]]:
    """Rounds: in each, every letter that stands alone in some equation gets the size that most arguments say."""
    votes: dict[str, list[tuple[Use, Dim]]] = {}
    while True:
        said: dict[str, list[tuple[Use, Dim]]] = {}
        for use, _, want, got in equations:
            unknown = want.letters - letters.keys()
            if len(unknown) == 1 and want.terms.get((letter := min(unknown),)) == 1 and _linear(want, letter):
                value = got if want.single else got - (want - Dim.letter(letter)).put(letters)
                if (use, value) not in said.setdefault(letter, []):
                    said[letter].append((use, value))
        if not said:
            return votes
        for letter, each in said.items():
            letters[letter] = Counter(value for _, value in each).most_common(1)[0][0]  # the first said, on a tie
        votes |= said


def _linear(dim: Dim, letter: str) -> bool:
    return sum(letter in monomial for monomial in dim.terms) == 1


def _check(
    graph: Graph, facts: Facts, node: Node, equations: list[Equation], letters: dict[str, Dim], votes: dict[str, list[tuple[Use, Dim]]]
) -> dict[str, Diagnostic]:
    found: dict[str, Diagnostic] = {}
    for equation in equations:
        use, _, want, got = equation
        if use.param in found or not want.letters <= letters.keys() or want.put(letters) == got:
            continue
        other = _tie(want, votes, use)
        if other is None:
            found[use.param] = _mismatch(graph, facts, node, equation, letters, votes)
        elif other.param not in found:
            twin = next(e for e in equations if e.use is other and e.want == want)
            found[use.param] = found[other.param] = _disagree(graph, facts, node, equation, twin)
    return found


def _tie(want: Dim, votes: dict[str, list[tuple[Use, Dim]]], use: Use) -> Use | None:
    """The other argument, when exactly two spoke for the letter of `want` and they differ only in what they say."""
    for letter in want.letters:
        spoke = votes.get(letter, [])
        if len(spoke) == 2 and len({value for _, value in spoke}) == 2 and use in (spoke[0][0], spoke[1][0]):
            other = spoke[0][0] if spoke[1][0] == use else spoke[1][0]
            same = other.declared and other.declared.shape.index(want) if other.declared and want in other.declared.shape else None
            return other if same is not None and other is not use else None
    return None


def _disagree(graph: Graph, facts: Facts, node: Node, equation: Equation, other: Equation) -> Diagnostic:
    a, b = other.use, equation.use
    (name_a, spec_a), (name_b, spec_b) = ((graph.fields[use.field].name, facts.specs[use.field]) for use in (a, b))
    return Diagnostic(
        code="RLF103",
        where=b.at,
        message=f"`{a.param}` and `{b.param}` of `{node.title}` disagree on axis {equation.axis}: {other.got} and {equation.got}",
        label=f"`{name_b}` is {spec_b}",
        related=(Label(a.at, f"`{name_a}` is {spec_a}"), *labels(b.declaration, f"declared {b.declared}")),
        notes=_off_by(name_b, equation.got, other.got, f"`{name_a}`"),
    )


def _mismatch(
    graph: Graph, facts: Facts, node: Node, equation: Equation, letters: dict[str, Dim], votes: dict[str, list[tuple[Use, Dim]]]
) -> Diagnostic:
    use, axis, want, got = equation
    need, name, spec = want.put(letters), graph.fields[use.field].name, facts.specs[use.field]
    related: list[Label] = []
    for letter in sorted(want.letters):
        by = next((u for u, value in votes.get(letter, []) if value == letters[letter] and u is not use), None)
        if by is not None:
            so = "" if str(letters[letter]) == letter else f", so {letter} = {letters[letter]}"
            related.append(Label(by.at, f"`{graph.fields[by.field].name}` is {facts.specs[by.field]}{so}"))
    return refuse(
        "RLF103",
        f"axis {axis} of `{use.param}` in `{node.title}` must be {need}, got {got}",
        use,
        f"`{name}` is {spec}",
        f"declared {use.declared}",
        related=tuple(related),
        notes=_off_by(name, got, need, "it should be"),
    )


def _off_by(name: str, got: Dim, need: Dim, than: str) -> tuple[str, ...]:
    off = (got - need).number
    if off is None:
        return ()
    length = "longer" if off > 0 else "shorter"
    return (f"`{name}` is {abs(off)} {length} than {than}; a next-token field has R = S - 1 positions",)
