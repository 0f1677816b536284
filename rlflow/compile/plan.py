"""A checked pipeline: the graph, what the passes found out, and how long they took.

plan = grpo(kl=0.01)                 traced and checked, or CheckFailed
plan.replace("grpo", rloo)           the same with one operator replaced, checked again
Plan.from_json(plan.to_json()) == plan
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import msgspec
from msgspec import structs

from ..errors import UsageError
from ..language.diagnostic import CheckFailed, Diagnostic
from .evaluate import Peak, evaluate
from .facts import Facts
from .ir import Dim, Graph, decode, encode
from .lag import gaps_of, refused
from .peak import live_bytes, peaks
from .see import see
from .views import DroppedView, EdgeView, FeedbackView, FieldView, OperatorView, StateView, Views

SCHEMA = 2  # of the JSON: one more whenever an old plan can no longer be read, or would be understood otherwise
Swaps = Mapping[str, Callable[..., Any]]  # node name -> what replaces its operator


class _Head(msgspec.Struct):
    """What tells the version of a plan, whatever else is in it."""

    schema: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a pipeline function returns. Plain data, apart from what `replace` needs to trace again."""

    graph: Graph
    facts: Facts
    warnings: tuple[Diagnostic, ...] = ()
    suppressed: tuple[Diagnostic, ...] = ()  # by comments in the source
    timings_ms: dict[str, float] = {}
    schema: int = SCHEMA

    def replace(self, name: str, other: Callable[..., Any]) -> Plan:
        """The same pipeline with the operator of node `name` replaced; traced and checked again.

        `other`: an operator, a partial of one, or a plain function of operators. Its parameters are bound by name: to what the call
        gives, else to the latest earlier field of that name on the same rows (`graph.replaced` says which).
        Raises UsageError when no node has that name, CheckFailed when the result is refused.
        """
        rebuild: Callable[[Swaps], Plan] | None = vars(self).get("_rebuild")
        if not callable(other):
            raise UsageError(f"`{name}` can be replaced by an operator or a function of operators, got {other!r}")
        if isinstance(other, partial) and other.args:
            raise UsageError(f"`{name}` is replaced by parameter name: give {other!r} its arguments by keyword")
        if rebuild is None:
            raise UsageError("a plan that was read from a file cannot be traced again: call the pipeline, and replace there")
        return rebuild({name: other})

    @cached_property
    def views(self) -> Views:
        """All of the following, by name; what `rlflow explain --json` prints."""
        return see(self.graph, self.facts)

    @property
    def fields(self) -> tuple[FieldView, ...]:
        """Every field where it is made, with its writer, readers, birth and death."""
        return self.views.fields

    @property
    def operators(self) -> tuple[OperatorView, ...]:
        """Every call, with what it reads, writes and frees."""
        return self.views.operators

    @property
    def edges(self) -> tuple[EdgeView, ...]:
        """What crosses from process to process."""
        return self.views.edges

    @property
    def feedbacks(self) -> tuple[FeedbackView, ...]:
        """Every back edge."""
        return self.views.feedbacks

    @property
    def state(self) -> tuple[StateView, ...]:
        """What lives across steps: all of it."""
        return self.views.state

    @property
    def dropped(self) -> DroppedView:
        """What is left out, and why."""
        return self.views.dropped

    def scheduled(self, *, watermark: int = 0, queue: int = 0, oversample: int = 0) -> Plan:
        """The same plan with `facts.gaps` for this schedule. watermark: trajectories in flight, 0 is as many as max_lag lets in.

        queue: batches formed ahead of the one in training. oversample: prompts sampled beyond those that batches have seats for.
        Raises CheckFailed where these ask for more lag than a feedback allows.
        """
        gaps = gaps_of(self.graph, self.facts, watermark=watermark, queue=queue, oversample=oversample)
        facts = structs.replace(self.facts, gaps=gaps)
        if found := refused(self.graph, facts):
            raise CheckFailed([*found, *self.warnings], self.suppressed, self.timings_ms)
        plan = structs.replace(self, facts=facts)
        vars(plan)["_rebuild"] = vars(self).get("_rebuild")
        return plan

    @property
    def live_bytes(self) -> dict[str, dict[str, Dim]]:
        """Call -> the pool, and the process that runs it -> bytes of columns that they may hold meanwhile."""
        return {self.graph.nodes[node].name: sizes for node, sizes in live_bytes(self.graph, self.facts).items()}

    @property
    def peaks(self) -> dict[str, tuple[tuple[str, Dim], ...]]:
        """By process, and for the pool: the calls at which it may hold the most bytes, as polynomials in the sizes."""
        return peaks(self.graph, self.facts)

    def peak(self, **sizes: int) -> dict[str, Peak]:
        """The most bytes of columns that each process, and the pool, hold at once: `plan.peak(S=1024, Q=128, text=200)`.

        sizes: by the letters of the plan; `text`: bytes of a text, for every text that has no `text(NAME)` of its own. Raises UsageError.
        """
        return evaluate(self.graph, self.facts, sizes)

    def to_json(self) -> bytes:
        """The whole plan; equal plans give equal bytes."""
        return encode(self)

    @staticmethod
    def from_json(data: bytes) -> Plan:
        """The inverse of `to_json`. Raises UsageError for a plan of another schema, msgspec.ValidationError for what is no plan."""
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema != SCHEMA:
            raise UsageError(f"this plan is of schema {schema}, rlflow reads schema {SCHEMA}: make it again from its pipeline")
        return decode(data, Plan)

    def explain(self) -> str:
        """The field map as text: `rlflow explain`."""
        show = import_module("rlflow.show.explain")  # by name: what shows plans builds on this package, not the other way round
        text: str = show.explain(self)
        return text

    def dump(self, name: str) -> str:
        """What one pass found out, as text: `--dump infer`."""
        from .dump import dump

        return dump(self, name)
