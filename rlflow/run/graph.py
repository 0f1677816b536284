"""The plan as the run time reads it: which nodes run where, and where a field was really made.

stream   data set, dispatch, rollout and the row operators behind it     in the rollout process, a trajectory at a time
hops     operators before boarding that look at whole groups            on the host, when a group has landed
batch    between form_batch and the cut                                   on the host or on a worker
index    pad, rebalance, shard, micro_pack                                numbers only, in the controller
train    on micro-batches                                                 on every rank of its worker
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from ..compile.ir import Field, Node, Use, Worker
from ..compile.plan import Plan
from ..compile.transport import handed
from ..data.column import Column
from ..errors import UsageError
from ..language.body import has_body, place_of
from ..language.config import resolve

X = TypeVar("X")


class GraphView:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph, self.facts = plan, plan.graph, plan.facts
        self.needed = [node for node in self.graph.nodes if node.operator is not None and node.id in self.facts.needed]

    def check_runnable(self) -> None:
        """Raises UsageError, before anything is started, for a graph that this run time cannot run."""
        self._check_bodies()
        _ = (self.form, self.dispatch, self.source, self.sampler, self.tokens)
        self._check_engine()
        self._check_workers()
        self._check_state()
        self._check_stream()
        for node in self.batch:
            scopes = {rows.scope for use in node.uses if (rows := self.facts.rows_of(use.field))}
            if not node.losses and scopes != {"batch"}:
                raise UsageError(f"`{node.name}` reads {sorted(scopes)} rows; the run time has no operators but training after `shard` yet")
        for node in self.needed:
            if self.evaluates(node) and not isinstance(node.params.get("every"), int):
                raise UsageError(f"`{node.name}` needs every=N, the number of versions between two of its runs; 0: it never runs")

    def _check_bodies(self) -> None:
        """What is called has a body. The operators of rows that are numbers only are not called, and the controller forms batches."""
        operators = [node for node in self.needed if node.operator is not None and node.index is None and node.rows != "form"]
        called = {node.title: resolve(node.operator or "") for node in operators}
        called |= {loss.name: resolve(loss.ref).__call__ for node in self.needed for loss in node.losses if loss.active}
        missing = [f"  {name}  {place_of(fn)}" for name, fn in called.items() if not has_body(fn)]
        if missing:
            told = f"`{self.graph.name}` can be checked, explained and drawn, but not run: these are declared without a body"
            raise UsageError("\n".join([told, *missing]))

    def _check_engine(self) -> None:
        """One engine samples, with all its replicas; it alone is synced and evaluated."""
        if not self.syncs:
            raise UsageError(f"nothing syncs new weights to an engine in `{self.graph.name}`: close the feedback with sync(...)")
        others = {node.fills: node for node in self.syncs} | {node.worker: node for node in self.sinks}
        for worker, node in others.items():
            if worker != self.engine.id:
                raise UsageError(f"`{node.name}` is about another engine than `{self.engine.name}`, which samples; a run has one engine")

    def _check_workers(self) -> None:
        """Ranks are CPU processes, one a data-parallel rank; engines alone have replicas."""
        for worker in self.graph.workers:
            if worker.replicas > 1 and worker.id != self.engine.id:
                asked = f"worker `{worker.name}` asks for replicas={worker.replicas}"
                raise UsageError(f"{asked}, and only what samples has replicas: use dp={worker.replicas}")
            wanted = [f"{axis}={size}" for axis in ("tp", "pp", "cp") if (size := getattr(worker, f"{axis}_size")) > 1]
            wanted += [] if worker.devices is None else [f"the devices `{self.graph.devices[worker.devices].name}`"]
            if wanted:
                raise UsageError(
                    f"worker `{worker.name}` asks for {' and '.join(wanted)}; a run starts its workers as CPU processes, dp of them: "
                    "leave that out to run here (check, explain and graph work with it)"
                )

    def _check_state(self) -> None:
        """Checkpoints are written by workers."""
        for node in self.needed:
            kept = next((one.name for one in node.state if one.in_checkpoint), None)
            if kept is not None:
                raise UsageError(
                    f"`{node.name}` declares `{kept}` as part of the checkpoint, and a run saves what workers keep: "
                    "keep it on a worker, or declare it with in_checkpoint=False, to begin anew"
                )

    def saved(self, worker: str) -> frozenset[str]:
        """What a worker writes into a checkpoint, by name."""
        return frozenset(kept.name for kept in self.facts.state if kept.owner == worker and kept.in_checkpoint)

    def _check_stream(self) -> None:
        """A trajectory is finished before its group is looked at."""
        groups = {node.id: node for node in self.hops}
        for node in self.stream:
            behind = self._behind(node) & groups.keys()
            if behind:
                raise UsageError(
                    f"`{node.name}` runs on single trajectories as they land, but reads what `{groups[min(behind)].name}` makes of whole "
                    f'groups: declare it per="group", or call it after `{self.form.name}`'
                )

    # --- fields -------------------------------------------------------------------------------------------------------------------
    def role(self, field: int) -> str | None:
        """The kind of role that a field's alias declares."""
        declared = self.graph.origin(field).declared
        return declared.role.kind if declared is not None and declared.role is not None else None

    def seen(self, node: Node, columns: Mapping[int, X]) -> dict[int, X]:
        """What `node` is handed of columns that are filed under the fields of their writers."""
        origins = {use.field: self.graph.origin(use.field).id for use in node.uses}
        return {field: columns[origin] for field, origin in origins.items() if origin in columns}

    def writers(self, node: Node) -> set[int]:
        """The nodes whose columns `node` is handed."""
        return {self.graph.origin(use.field).node for use in self.handed[node.id]}

    @cached_property
    def handed(self) -> dict[int, tuple[Use, ...]]:
        """What each call is brought: the fields that it reads."""
        return {node.id: handed(self.graph, self.facts, node) for node in self.needed}

    def _behind(self, node: Node) -> set[int]:
        """Every node that this one depends on, itself included."""
        found: set[int] = set()
        todo = [node.id]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += [self.graph.fields[use.field].node for use in self.graph.nodes[at].uses]
        return found

    # --- nodes --------------------------------------------------------------------------------------------------------------------
    @cached_property
    def form(self) -> Node:
        return self._one((n for n in self.needed if n.rows == "form"), "form_batch")

    @cached_property
    def dispatch(self) -> Node:
        return self._one((n for n in self.needed if n.rows == "expand" and n.id in self._before_form), "dispatch")

    def _one(self, nodes: Iterable[Node], what: str) -> Node:
        found = list(nodes)
        if len(found) != 1:
            raise UsageError(f"a run needs exactly one `{what}` in the pipeline, `{self.graph.name}` has {len(found)}")
        return found[0]

    @cached_property
    def _before_form(self) -> set[int]:
        return self._behind(self.form)

    @cached_property
    def datasets(self) -> list[Node]:
        """Where prompts come from: stream operators that are handed nothing."""
        return [n for n in self.needed if n.per != "run" and not n.uses and not n.weights and n.outs]

    @cached_property
    def source(self) -> Node:
        """The data set that is trained on."""
        return self._one((n for n in self.datasets if n.id in self._before_form), "dataset")

    @cached_property
    def stream(self) -> list[Node]:
        """What runs once a trajectory, in order."""
        return [n for n in self.needed if n.id in self._before_form and n.rows != "form" and n.per == "row"]

    @cached_property
    def hops(self) -> list[Node]:
        """Operators of whole groups before the batch is formed, in order."""
        return [n for n in self.needed if n.id in self._before_form and n.rows != "form" and n.per == "group"]

    @cached_property
    def sampler(self) -> Node:
        """The operator that samples: one row a leaf."""
        return self._one((n for n in self.stream if n.worker is not None), "rollout")

    @cached_property
    def engine(self) -> Worker:
        """The rollout engine that samples."""
        worker = self.sampler.worker
        assert worker is not None  # that is how the sampler is known
        return self.graph.workers[worker]

    def hop(self, name: str) -> Node:
        return next(n for n in self.hops if n.name == name)

    def makes_block(self, hop: Node) -> bool:
        """Whether somebody reads what this operator makes."""
        return any(field in self.facts.read for field in hop.outs) and hop.rows != "filter"

    @cached_property
    def least_left(self) -> int:
        """The fewest trajectories of a group that filters before boarding may leave, by the last of them; 0: none takes a group apart."""
        return next((hop.least_kept for hop in reversed(self.hops) if hop.least_kept), 0)

    @cached_property
    def plan_id(self) -> str:
        """Of what row files hold: equal where the columns of two plans mean the same."""
        made = self.crossing | {field for node in self.hops for field in node.outs}
        said = [f"{field.id} {field.name} {field.declared and (field.declared.dtype, field.declared.shape)}" for field in self.graph.fields]
        return hashlib.blake2b("\n".join(said[i] for i in sorted(made)).encode(), digest_size=8).hexdigest()

    @cached_property
    def loads(self) -> list[Node]:
        return [n for n in self.needed if n.per == "run"]

    @cached_property
    def syncs(self) -> list[Node]:
        return [n for n in self.needed if n.serves is not None]

    def syncs_to(self, engine: int) -> list[Node]:
        return [n for n in self.syncs if n.fills == engine]

    def evaluates(self, node: Node) -> bool:
        """It samples beside the batch, every so many versions. A sink that reads the rows of the batch runs with it."""
        return node.sink and not any((rows := self.facts.rows_of(use.field)) and rows.scope == "batch" for use in node.uses)

    @cached_property
    def sinks(self) -> list[Node]:
        """The evaluations that are run: not those with every=0."""
        return [n for n in self.needed if self.evaluates(n) and n.params.get("every") != 0]

    def sinks_due(self, dues: Sequence[int], *, at_the_end: bool) -> list[Node]:
        """The evaluations that are due by these versions; at the end of a run all are."""
        return [node for node in self.sinks if at_the_end or any(due % node.params["every"] == 0 for due in dues)]

    @cached_property
    def batch(self) -> list[Node]:
        """What runs once a batch and is more than an index: scoring, rewards, advantages, training; in order."""
        early = {n.id for n in (*self.stream, *self.hops, *self.loads, *self.syncs, *self.datasets, self.form)}
        return [n for n in self.needed if n.id not in early and n.index is None and not self.evaluates(n)]

    @cached_property
    def index(self) -> dict[int, Node]:
        """The operators of rows that are numbers only, by the row set they make."""
        made: dict[int, Node] = {}
        for node in self.needed:
            if node.index is not None:
                made |= {self.facts.rows[out]: node for out in node.outs if out in self.facts.rows}
        return made

    # --- what the rollout process hands on -------------------------------------------------------------------------------------------
    @cached_property
    def _sampled(self) -> list[Field]:
        """The fields of the rollout operator: one row a leaf."""
        return [self.graph.fields[i] for i in self.sampler.outs]

    @cached_property
    def tokens(self) -> int:
        """The field whose length is the tokens of a row."""
        found = [f.id for f in self._sampled if self.role(f.id) == "tokens"]
        if not found:
            raise UsageError("the rollout operator makes no field of role `tokens`: the run cannot tell how long its rows are")
        return found[0]

    @cached_property
    def token_versions(self) -> int | None:
        """The field that says which version sampled each token (-1: none), if the rollout operator makes one."""
        found = [f.id for f in self._sampled if f.declared is not None and str(f.declared.role) == "member(token_version)"]
        return found[0] if found else None

    @cached_property
    def crossing(self) -> frozenset[int]:
        """Fields of the stream that an operator elsewhere reads."""
        stream = {node.id for node in self.stream}
        later = [*self.hops, *self.batch]
        read = {self.graph.origin(use.field) for node in later for use in self.handed[node.id]}
        return frozenset(field.id for field in read if field.node in stream)

    @cached_property
    def kept(self) -> frozenset[int]:
        """Fields that an operator reads, or that tell the controller how long rows are and who sampled them."""
        return self.facts.read | {self.tokens, *([] if self.token_versions is None else [self.token_versions])}

    # --- what is measured ------------------------------------------------------------------------------------------------------------
    def measure(self, made: Mapping[int, Column]) -> dict[str, float]:
        """Means over the rows of every f32 field: of the number of the row, or of the sum over its tokens."""
        found = {}
        for i, column in made.items():
            field = self.graph.fields[i]
            if column.dtype == "f32" and column.rows:
                found[f"{self.graph.nodes[field.node].name}/{field.name}"] = float(column.values.sum() / column.rows)
        return found

    @cached_property
    def means(self) -> frozenset[str]:
        """Every name that `measure` may give: those are means; what an operator reports itself are counts."""
        return frozenset(f"{node.name}/{self.graph.fields[i].name}" for node in self.needed for i in node.outs)

    @cached_property
    def reward_metric(self) -> str | None:
        """The measure that stands for the reward: the number a row of a raw reward, else the first raw reward."""
        return self._measure_of(self._raw_rewards[0]) if self._raw_rewards else None

    @cached_property
    def judged(self) -> int | None:
        """The field that says of each row how right it was: the number a row of a raw reward."""
        found = [field.id for field in self._raw_rewards if field.declared is not None and len(field.declared.shape) == 1]
        return found[0] if found else None

    def judgement(self, numbers: Mapping[str, float], rows: int) -> tuple[int, int]:
        """(tries, passes) of so many rows, by what was measured on them; (0, 0) where they were not judged."""
        mean = None if self.judged is None else numbers.get(self._measure_of(self.graph.fields[self.judged]))
        return (0, 0) if mean is None else (rows, round(mean * rows))

    def left(self, node: Node, made: Mapping[int, Column]) -> tuple[int, ...]:
        """Whose rows a filter that takes groups apart has left: the number of the trajectory of each row."""
        return tuple(next(iter(made.values())).values.tolist()) if node.least_kept else ()

    def scores(self, made: Mapping[int, Column]) -> tuple[float, ...]:
        """How right each row is, of the call that judges."""
        return tuple(made[self.judged].values.tolist()) if self.judged is not None and self.judged in made else ()

    @cached_property
    def _raw_rewards(self) -> list[Field]:
        """Those of one number a row first."""
        raw = [f for n in self.needed for i in n.outs if (f := self.graph.fields[i]).declared and str(f.declared.role) == "reward(raw)"]
        return sorted(raw, key=lambda f: len(f.declared.shape) if f.declared else 9)

    def _measure_of(self, field: Field) -> str:
        return f"{self.graph.nodes[field.node].name}/{field.name}"
