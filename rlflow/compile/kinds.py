"""Is an argument of the kind that its parameter declares: dtype, number of axes, role?"""

from __future__ import annotations

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


class Kinds:
    """Judges the arguments of one node one by one; two role errors that undo each other become one."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.found: dict[str, Diagnostic] = {}  # parameter → what is wrong
        self.roles: list[tuple[Use, Role, Role]] = []  # wrong role: use, wanted, got

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
        self.roles.append((use, want, got))
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
        """What is wrong, by parameter. A swap stands under both of its parameters."""
        for i, (a, want_a, got_a) in enumerate(self.roles):
            for b, want_b, got_b in self.roles[i + 1 :]:
                alone = self.found[a.param].code == self.found[b.param].code == "RLF121"
                if alone and want_a.accepts(got_b) and want_b.accepts(got_a):
                    self.found[a.param] = self.found[b.param] = self._swapped((a, want_a, got_a), (b, want_b, got_b))
        return self.found

    def _swapped(self, one: tuple[Use, Role, Role], two: tuple[Use, Role, Role]) -> Diagnostic:
        (a, want_a, got_a), (b, want_b, got_b) = one, two
        name_a, name_b = (self.graph.fields[u.field].name for u in (a, b))
        return Diagnostic(
            code="RLF122",
            message=f"`{a.param}` and `{b.param}` of `{self.node.title}` look swapped",
            where=a.at,
            label=f"`{name_a}` is {got_a}, `{a.param}` wants {want_a}",
            related=(Label(b.at, f"`{name_b}` is {got_b}, `{b.param}` wants {want_b}"),),
            help=f"`{_name(a)}={self._given(b)}, {_name(b)}={self._given(a)}`",
        )

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
