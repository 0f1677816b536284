"""Is an argument of the kind that its parameter declares: dtype, number of axes, role?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from ..language.diagnostic import Diagnostic, Label
from ..language.record import labels
from ..language.source import argument_text, text
from .ir import Graph, Node, Role, Spec, Use


def refuse(
    code: str,
    message: str,
    use: Use,
    label: str,
    because: str,
    *,
    related: tuple[Label, ...] = (),
    notes: tuple[str, ...] = (),
    help: str | None = None,
) -> Diagnostic:
    """A diagnostic at an argument, with its declaration as the second place."""
    return Diagnostic(
        code=code, message=message, where=use.at, label=label, related=(*labels(use.declaration, because), *related), notes=notes, help=help
    )


MOST_MIXED_UP = 6  # arguments whose orders are all tried


class Wrong(NamedTuple):
    """An argument that was refused."""

    use: Use
    want: Spec
    got: Spec

    def takes(self, other: Wrong) -> bool:
        """What was given there would fit here."""
        want, got = self.want, other.got
        role = want.role is None or want.role.accepts(got.role)
        return want.dtype == got.dtype and len(want.shape) == len(got.shape) and role


class Kinds:
    """Judges the arguments of one node one by one. Arguments that stand in each other's places are one mistake."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.found: dict[str, Diagnostic] = {}  # parameter → what is wrong
        self.wrong: list[Wrong] = []

    def check(self, use: Use, want: Spec, got: Spec) -> bool:
        """True if it fits."""
        what, name = f"`{use.param}` of `{self.node.title}`", self.graph.fields[use.field].name
        found: Diagnostic | None = None
        if want.dtype != got.dtype:
            found = refuse("RLF101", f"{what} is {want.dtype}, got {got.dtype}", use, f"`{name}` is {got}", f"declared {want}")
        elif len(want.shape) != len(got.shape):
            message = f"{what} has {_axes(len(want.shape))}, got {len(got.shape)}"
            found = refuse("RLF102", message, use, f"`{name}` is {got}", f"declared {want}")
        elif want.role and not want.role.accepts(got.role):
            found = self._role(use, want.role, got.role) if got.role else self._no_role(use, want.role)
        if found is not None:
            self.found[use.param] = found
            self.wrong.append(Wrong(use, want, got))
        return found is None

    def _no_role(self, use: Use, want: Role) -> Diagnostic:
        maker = self.graph.nodes[self.graph.origin(use.field).node]
        return refuse(
            "RLF121",
            f"`{use.param}` of `{self.node.title}` is {want}, got a field without a role",
            use,
            f"nothing says what `{self.graph.fields[use.field].name}` means",
            f"declared {want}",
            related=(Label(maker.at, "made here"),),
            help=f"annotate what `{maker.title}` returns with an alias that has a role, here `{want}`",
        )

    def _role(self, use: Use, want: Role, got: Role) -> Diagnostic:
        writer = self.graph.nodes[self.graph.origin(use.field).node]
        by = f", by `{writer.weights[0].name}` as {writer.weights[0].reading}" if writer.weights else ""
        return refuse(
            "RLF121",
            f"`{use.param}` of `{self.node.title}` is {want}, got {got}",
            use,
            f"`{self.graph.fields[use.field].name}` is {got}",
            f"declared {want}",
            related=(Label(writer.at, f"made here{by}"),),
            help=ROLE_HELP.get((str(want), str(got))),
        )

    def refused(self) -> dict[str, Diagnostic]:
        """What is wrong, by parameter. What is in another order stands under each of its parameters."""
        left = self.wrong
        for one, two in combinations(self.wrong, 2):
            if one in left and two in left and one.takes(two) and two.takes(one):
                left = [wrong for wrong in left if wrong not in (one, two)]
                self.found |= dict.fromkeys((one.use.param, two.use.param), self._swapped(one, two))
        if 2 < len(left) <= MOST_MIXED_UP:
            order = next((p for p in permutations(left) if all(a.takes(b) for a, b in zip(left, p, strict=True))), None)
            if order is not None:
                self.found |= dict.fromkeys((wrong.use.param for wrong in left), self._mixed_up(left, order))
        return self.found

    def _swapped(self, a: Wrong, b: Wrong) -> Diagnostic:
        return Diagnostic(
            code="RLF122",
            message=f"`{a.use.param}` and `{b.use.param}` of `{self.node.title}` look swapped",
            where=a.use.at,
            label=self._stands(a),
            related=(Label(b.use.at, self._stands(b)),),
            help=f"`{_name(a.use)}={self._given(b.use)}, {_name(b.use)}={self._given(a.use)}`",
        )

    def _mixed_up(self, given: list[Wrong], wanted: Sequence[Wrong]) -> Diagnostic:
        names = [f"`{wrong.use.param}`" for wrong in given]
        return Diagnostic(
            code="RLF122",
            message=f"{', '.join(names[:-1])} and {names[-1]} of `{self.node.title}` look mixed up",
            where=given[0].use.at,
            label=self._stands(given[0]),
            related=tuple(Label(wrong.use.at, self._stands(wrong)) for wrong in given[1:]),
            help=f"`{', '.join(f'{_name(a.use)}={self._given(b.use)}' for a, b in zip(given, wanted, strict=True))}`",
        )

    def _stands(self, wrong: Wrong) -> str:
        """In words that differ: roles, or dtypes and axes where these are wrong already."""
        want, got = wrong.want, wrong.got
        alike = want.dtype == got.dtype and len(want.shape) == len(got.shape)
        is_, asked = (got.role, want.role) if alike else (got, want)
        return f"`{self.graph.fields[wrong.use.field].name}` is {is_}, `{wrong.use.param}` wants {asked}"

    def _given(self, use: Use) -> str:
        """As the user wrote it: in the pipeline's own call, where that is a helper's and names the argument."""
        via = self.node.via
        return (argument_text(via, _name(use)) if via else None) or text(use.at)


def _name(use: Use) -> str:
    return use.param.rpartition(".")[2]


def _axes(n: int) -> str:
    return f"{n} axis" if n == 1 else f"{n} axes"


ROLE_HELP = {  # (wanted, got) → what to do
    ("log_prob(current)", "log_prob(served)"): (
        "score the rows again with `.current`, or anchor on the rollout in so many words: `anchor_on_rollout(...)`"
    ),
    ("log_prob(current)", "log_prob(frozen)"): (
        "pass the log-probs of the policy's `.current`; those of a frozen model are `ref_log_probs`"
    ),
    ("log_prob(served)", "log_prob(current)"): "these are the log-probs recorded while sampling: pass `rollout_log_probs`",
    ("log_prob(frozen)", "log_prob(current)"): "the reference is frozen: score with `reference.load()`",
    ("mask(response)", "mask(attention)"): (
        "it is 1 on prompts and on what tools and users say, which would then be trained: pass `response_mask`"
    ),
    ("log_prob(frozen)", "log_prob(teacher)"): (
        "a teacher is no reference: the penalty would pull towards it. Score with the frozen policy that training started from"
    ),
    (
        "log_prob(teacher)",
        "log_prob(frozen)",
    ): "these are a reference's: score the rows with the teacher",
    ("log_prob(teacher)", "log_prob(current)"): "the teacher is another, frozen model: score the rows with it",
    (
        "log_prob(current)",
        "log_prob(teacher)",
    ): "pass the log-probs of the policy's `.current`, not the teacher's",
    ("reward(raw)", "reward(shaped)"): "judge on the scores as the verifier gave them: pass `token_level_scores`",
    ("reward(shaped)", "reward(raw)"): "shape the scores first, if only by the identity: pass `token_level_rewards`",
}
