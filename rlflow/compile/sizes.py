"""Binds the letters of a signature to sizes of the graph, and says which argument does not fit.

    entropy_bonus(advantages: f32[B, R], entropies: f32[B, R])   R = S - 1
        advantages f32[512, S - 1]  says S = S        a tie: "`advantages` and `entropies` disagree"
        entropies  f32[512, S]      says S = S + 1

Who is right is decided in unify.py; here it is put in words.
"""

from __future__ import annotations

from ..language.diagnostic import Diagnostic, Label
from ..language.record import labels
from .facts import Facts
from .ir import Dim, Graph, Node, Use
from .kinds import refuse
from .places import argument
from .unify import Equation, Reading, Vote, unify


def bind(graph: Graph, facts: Facts, node: Node, uses: list[Use], letters: dict[str, Dim]) -> dict[str, Diagnostic]:
    """Fills `letters`; returns what does not fit, by parameter."""
    equations = [
        Equation(use.param, axis, want, got)
        for use in uses
        if use.declared
        for axis, (want, got) in enumerate(zip(use.declared.shape, facts.specs[use.field].shape, strict=True))
    ]
    best, rival = unify(equations, letters)
    letters |= best.letters
    return _Words(graph, facts, node, uses).refused(best, rival) if best.wrong or best.open else {}


class _Words:
    """Messages about the sizes of one call."""

    def __init__(self, graph: Graph, facts: Facts, node: Node, uses: list[Use]) -> None:
        self.graph, self.facts, self.node = graph, facts, node
        self.uses = {use.param: use for use in uses}

    def refused(self, best: Reading, rival: Reading | None) -> dict[str, Diagnostic]:
        found = dict.fromkeys(best.open, self._unbound(next(iter(best.open.values())), best)) if best.open else {}
        if rival is not None:
            one = self._disagree(best, rival)
            return found | dict.fromkeys((*best.wrong, *rival.wrong), one)
        return found | {param: self._mismatch(equation, best) for param, equation in best.wrong.items()}

    def _name(self, param: str) -> str:
        return self.graph.fields[self.uses[param].field].name

    def _is(self, param: str) -> str:
        use = self.uses[param]
        return f"`{self._name(param)}` is {self.facts.specs[use.field]}"

    # --- two sides, and nobody to decide ------------------------------------------------------------------------------------------
    def _disagree(self, best: Reading, rival: Reading) -> Diagnostic:
        """One of each side: the later argument is the place, the earlier one the second place."""
        left = next(equation for param, equation in rival.wrong.items() if param not in best.wrong)
        right = self._opposite(left, best, rival)
        first, second = sorted((left, right), key=lambda e: list(self.uses).index(e.param))
        use = self.uses[second.param]
        others = [p for p in self.uses if p in {*best.wrong, *rival.wrong} - {first.param, second.param}]
        return Diagnostic(
            code="RLF103",
            where=use.at,
            message=f"`{first.param}` and `{second.param}` of `{self.node.title}` disagree on {self._about(first, second, best, rival)}",
            label=self._is(second.param),
            related=(
                Label(self.uses[first.param].at, self._is(first.param)),
                *(Label(self.uses[param].at, self._is(param)) for param in others),
                *labels(use.declaration, f"declared {use.declared}"),
            ),
            notes=_off_by(self._name(second.param), second.got, first.got, f"`{self._name(first.param)}`")
            if first.want == second.want
            else (),
        )

    @staticmethod
    def _opposite(left: Equation, best: Reading, rival: Reading) -> Equation:
        """Of the other side, the argument with the same declared size, or else one that speaks of the same letter."""
        others = [equation for param, equation in best.wrong.items() if param not in rival.wrong]
        same = [equation for equation in others if equation.want == left.want]
        near = [equation for equation in others if equation.want.letters & left.want.letters]
        return next(iter((*same, *near, *others)))

    @staticmethod
    def _about(first: Equation, second: Equation, best: Reading, rival: Reading) -> str:
        if first.want == second.want:
            where = f"axis {first.axis}" if first.axis == second.axis else f"{first.want}"
            return f"{where}: {first.got} and {second.got}"
        letter = next(
            (x for x in sorted(first.want.letters | second.want.letters) if best.letters.get(x) != rival.letters.get(x)),
            "their sizes",
        )
        return f"{letter}: {first.want} is {first.got} in one and {second.want} is {second.got} in the other"

    # --- one against the others ---------------------------------------------------------------------------------------------------
    def _mismatch(self, equation: Equation, reading: Reading) -> Diagnostic:
        use, need = self.uses[equation.param], equation.want.put(reading.letters)
        message = f"axis {equation.axis} of `{use.param}` in `{self.node.title}` must be {need}, got {equation.got}"
        unknown = sorted(equation.want.letters - reading.letters.keys())
        if unknown:
            message += f": no {unknown[0]} makes it so"
        return refuse(
            "RLF103",
            message,
            use,
            self._is(use.param),
            f"declared {use.declared}",
            related=tuple(label for letter in sorted(equation.want.letters) for label in self._said(letter, use.param, reading)),
            notes=_off_by(self._name(use.param), equation.got, need, "it should be"),
        )

    def _said(self, letter: str, against: str, reading: Reading) -> tuple[Label, ...]:
        """Who gave the letter its size."""
        if letter in self.node.bound:
            return (Label(argument(self.node, self.node.bound_by[letter]), f"{letter} = {self.node.bound[letter]}"),)
        votes: list[Vote] = reading.votes.get(letter, [])
        by = next((v.equation.param for v in votes if v.value == reading.letters[letter] and v.equation.param != against), None)
        if by is None:
            return ()
        so = "" if str(reading.letters[letter]) == letter else f", so {letter} = {reading.letters[letter]}"
        return (Label(self.uses[by].at, self._is(by) + so),)

    def _unbound(self, equation: Equation, reading: Reading) -> Diagnostic:
        use, missing = self.uses[equation.param], sorted(equation.want.letters - reading.letters.keys())
        names = " and ".join(missing)
        return refuse(
            "RLF110",
            f"nothing binds {names}: axis {equation.axis} of `{use.param}` in `{self.node.title}` is {equation.want}, one size for both",
            use,
            self._is(use.param),
            f"declared {use.declared}",
            help=f"let another argument tell {missing[0]} alone, or bind it: `{missing[0].lower()}: Annotated[int, {missing[0]}]`",
        )


def _off_by(name: str, got: Dim, need: Dim, than: str) -> tuple[str, ...]:
    off = (got - need).number
    if off not in (1, -1):
        return ()
    tokens = "; a next-token field has R = S - 1 positions" if need.letters else ""
    return (f"`{name}` is 1 {'longer' if off > 0 else 'shorter'} than {than}{tokens}",)
