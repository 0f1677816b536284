"""One call of an operator inside a pipeline, made into one node: its arguments, sorted by kind, then its results."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, TypeVar, get_args, get_origin

from . import source, trace
from .absent import Absent
from .config import NotConfig, to_config
from .corrects import DIFFERENCES
from .counts import counts_of, is_count
from .denominator import uncounted, unweighed, weighed_by
from .diagnostic import Diagnostic, Label, shown
from .feedback import READINGS, Feedback, model_of
from .fits import misfit
from .hints import arguments_of
from .lacks import reader_of, refuse_anonymous, refuse_hole, refuse_lacking
from .loss import Loss, Micro, Objective, forward_of, from_forward_of, options_of, reads_of
from .miscount import foreign, no_fit
from .misplaced import wanted, weights_elsewhere
from .operator import WHOSE, Declaration
from .record import Record, field_of_record, labels, names_of, specs_of, values_of
from .results import result_of
from .source import Place, Ref
from .spec import Spec, optional
from .trace import Trace, Value, WeightsValue
from .traced import TracedNode, TracedUse, TracedWeights, WeightsArgument
from .units import Count, unit_of
from .worker import Worker


class CallTracer:
    """Fills one node and makes its results."""

    def __init__(self, current: Trace, node: TracedNode, declaration: Declaration) -> None:
        self.trace, self.node, self.declaration = current, node, declaration
        self.reads: dict[str, Spec] = {}  # what the losses of this call read of its record
        self.read_besides = {WHOSE} if declaration.least_kept else set[str]()  # fields of its record that only the run time reads
        self.always: set[str] = set()  # fields of records that it reads itself

    def run(self, bound: dict[str, Any]) -> Any:
        node = self.node
        bound.pop("self", None)
        if node.worker is not None:
            self.trace.adopt(node.worker, node.call)
        self.trace.nodes.append(node)
        for name, objective in ((n, v) for n, v in bound.items() if isinstance(v, Objective)):
            self._losses(name, objective)
        full = self._defaults(bound)
        node.order = tuple(full)
        if (moved := weights_elsewhere(self.declaration.hints, full)) is not None:
            self._mixed_up(full, *moved)
        else:
            for name, value in full.items():
                self._argument(name, value)
        self._from_forward()
        return result_of(self, full)

    def refuse(
        self,
        code: str,
        message: str,
        *,
        where: Place | None = None,
        label: str = "",
        related: tuple[Label, ...] = (),
        notes: tuple[str, ...] = (),
        help: str | None = None,
    ) -> None:
        """The call is wrong: its results are poisoned, the trace goes on."""
        self.node.failed = True
        where = where or self.node.call.place
        self.trace.diagnostics.append(
            Diagnostic(code=code, message=message, where=where, label=label, related=related, notes=notes, help=help)
        )

    def mention(self, arguments: Iterable[tuple[int | str, Any]]) -> None:
        """Fields that a refused call was given: they are not dead, only the call is wrong."""
        here = source.parameter_ref(self.declaration.fn, "")
        for name, value in arguments:
            for param, one in _fields(str(name), value):
                self.node.uses.append(TracedUse(param, trace.field_of(one), None, self.node.call.place, here, read=False))

    def mirrored(self, given: Iterable[Any]) -> dict[str, Any]:
        """Of a row operator that does not bind: the record that it was given, so that what is done with its result can be traced."""
        hint = self.declaration.hints.get("return")
        variable = get_args(hint)[0] if get_origin(hint) is Micro else hint
        param = next((n for n, h in self.declaration.hints.items() if h is variable and n != "return"), None)
        record = next((value for value in given if isinstance(value, Record)), None)
        return {} if param is None or record is None or not isinstance(variable, TypeVar) else {param: record}

    # --- arguments -------------------------------------------------------------------------------
    def _defaults(self, bound: dict[str, Any]) -> dict[str, Any]:
        """In the order of the signature, configuration that was not given included: the plan says what will run."""
        full: dict[str, Any] = {}
        for name, parameter in self.declaration.signature.parameters.items():
            if name in bound:
                full[name] = bound[name]
            elif parameter.default is not parameter.empty:
                full[name] = parameter.default
        return full

    def _losses(self, param: str, objective: Objective[Any, Any]) -> None:
        at = source.argument(self.node.call, param, self.declaration.positions.get(param))
        losses: tuple[Loss[Any, Any], ...] = objective.losses
        if not losses:
            self.refuse("RLF011", f"`{self.node.title}` is given no loss", help="name at least one: `micro.loss(ppo_clip())`")
        for other in (loss for loss in losses if not isinstance(loss, Loss)):
            named = f"the class `{other.__name__}`" if isinstance(other, type) else shown(other)
            help = f"make one: `{other.__name__}()`" if isinstance(other, type) else None
            self.refuse("RLF005", f"`{self.node.title}` is given {named} for a loss", where=at, label="no loss", help=help)
        losses = tuple(loss for loss in losses if isinstance(loss, Loss))
        self.node.losses += losses
        yielded = get_args(self.declaration.hints.get(param))[:1]
        for loss in losses:
            if yielded and isinstance(yielded[0], type) and (lacks := sorted(forward_of(loss).keys() - set(names_of(yielded[0])))):
                self.refuse(
                    "RLF001",
                    f"the forward of `{self.node.title}` has no field `{lacks[0]}`, which `{type(loss).__name__}` reads",
                    where=at,
                    label=f"it yields `{yielded[0].__name__}`",
                    help="train it on a worker whose forward yields it",
                )
            self._options(loss, at)
            self.reads |= reads_of(loss)
            self.read_besides |= set(weighed_by(loss))
            for found in (*uncounted(loss), *unweighed(loss, type(objective.rows))):
                self.refuse(found.code, found.message, where=at, label=found.label, related=found.declared, help=found.help)
            if loss.active and not loss.split_invariant:
                self._depends_on_cut(loss, at)
            if unknown := set(loss.corrects) - set(DIFFERENCES):
                there_are = ", ".join(DIFFERENCES)
                self.refuse("RLF013", f"`{type(loss).__name__}` corrects {min(unknown)!r}; there are {there_are}", where=at)

    def _depends_on_cut(self, loss: Loss[Any, Any], at: Place) -> None:
        found = Diagnostic(
            code="RLF530",
            message=f"the gradient of `{type(loss).__name__}` depends on how rows are cut",
            where=at,
            label=loss.depends_on_cut or "it says split_invariant = False",
            notes=("dp, micro-batch size, packing and row order then change what is trained, and not only how fast",),
            help="make it of the whole mini-batch (`first_pass`, `statistic`), or take the cut for an option and ignore this here",
            severity="warning",
        )
        self.trace.diagnostics.append(found)

    def _options(self, loss: Loss[Any, Any], at: Place) -> None:
        cls = type(loss)
        hints = options_of(cls)  # type: ignore[arg-type]  # mypy takes the __hash__ of its instances for its own
        for name, value in vars(loss).items():
            self._fits(name, cls.__name__, hints.get(name), value, at, source.attribute_ref(cls, name))
        units = {name: unit for name, hint in hints.items() if (unit := unit_of(hint)) is not None}
        for wrong in foreign(units, vars(loss)):
            self.node.failed = True
            declared = labels(source.attribute_ref(cls, wrong.name), f"counts {wrong.wanted}")
            self.trace.diagnostics.append(no_fit(wrong, cls.__name__, at, declared))

    def _from_forward(self) -> None:
        """Marks fields that the forward of a single pass may stand in for: every loss that reads one says so, and nothing else reads it."""
        passes, losses = self.declaration.from_forward, [loss for loss in self.node.losses if loss.active]
        if passes is None or self.node.config.get(passes) != 1:
            return
        for use in self.node.uses:
            field = use.param.partition(".")[2]
            sources = {from_forward_of(loss).get(field) for loss in losses if field in reads_of(loss)}
            if use.read and len(sources) == 1 and field not in self.always:
                use.forward = sources.pop()

    def _argument(self, name: str, value: Any) -> None:
        hint, spec = self.declaration.hints.get(name), self.declaration.specs.get(name)
        at = source.argument(self.node.call, name, self.declaration.positions.get(name))
        here = source.parameter_ref(self.declaration.fn, name)
        match value:
            case Objective():
                self._record(name, value.rows, get_args(hint)[1], at)
            case Micro():
                self.mention([(name, value)])
                self.refuse(
                    "RLF005",
                    f"`{name}` of `{self.node.title}` is a record or an objective, got micro-batches",
                    where=at,
                    related=labels(here),
                    help="`micro.loss(...)` is what `train` takes",
                )
            case Record():
                self._record(name, value, hint, at)
            case Feedback():
                self._whole_feedback(name, value, hint, at)
            case WeightsValue():
                self._weights(name, trace.weights_of(value), hint, at)
            case Absent() | None if spec is not None and optional(hint) is not None:
                self.node.config[name] = None  # `values: Values | None = None`: the operator can do without
            case Absent():
                refuse_hole(self, name, value, at, here)
            case Value():
                self._field(name, value, hint, at)
            case _ if spec is not None:
                message = f"`{name}` of `{self.node.title}` is a field, got {shown(value)}"
                self.refuse("RLF005", message, where=at, label="no field", related=labels(here))
            case _ if (takes := wanted(hint)) is not None:
                message = f"`{name}` of `{self.node.title}` takes {takes}, got {shown(value)}"
                self.refuse("RLF005", message, where=at, related=labels(here))
            case _:
                self._config(name, value, at)

    def _field(self, name: str, value: Value, hint: Any, at: Place) -> None:
        spec, here = self.declaration.specs.get(name), source.parameter_ref(self.declaration.fn, name)
        field = trace.field_of(value)
        if spec is not None:
            self.node.uses.append(TracedUse(name, field, spec, at, here))
            return
        self.mention([(name, value)])
        if (takes := wanted(hint)) is not None:
            message = f"`{name}` of `{self.node.title}` takes {takes}, got the field `{field.name}`"
            self.refuse("RLF005", message, where=at, label=f"no {takes.removeprefix('a ').removeprefix('an ')}", related=labels(here))
            return
        self.refuse(
            "RLF002",
            f"parameter `{name}` of `{self.node.title}` has no field type",
            where=at,
            label=f"`{field.name}` is a field",
            related=labels(here),
            help="annotate the parameter with an alias that has dtype and shape",
        )

    def _mixed_up(self, given: dict[str, Any], takes: str, holds: str) -> None:
        """Weights where something else belongs, and something else in their place."""
        at, meant = (source.argument(self.node.call, name, self.declaration.positions.get(name)) for name in (holds, takes))
        self.mention([*given.items()])
        self.refuse(
            "RLF122",
            f"the arguments of `{self.node.title}` are in another order: its weights are `{takes}`",
            where=at,
            label=f"weights, given as `{holds}`",
            related=(Label(meant, f"given as `{takes}`"), *labels(source.parameter_ref(self.declaration.fn, takes))),
            help=f"`{self.node.title}({arguments_of(self.declaration.signature)})`",
        )

    def _config(self, name: str, value: Any, at: Place) -> None:
        if name in (self.declaration.serves, "on" if self.declaration.rows == "shard" else None) and not isinstance(value, Worker):
            here = source.parameter_ref(self.declaration.fn, name)
            message = f"`{name}` of `{self.node.title}` is a worker, got {shown(value)}"
            self.refuse("RLF005", message, where=at, label="no worker", related=labels(here))
            return
        try:
            self.node.config[name] = to_config(value, partial(self.trace.adopt, call=self.node.call))
        except NotConfig as error:
            self.refuse(
                "RLF010", f"`{name}` of `{self.node.title}` is configuration: {error}", where=at, label="cannot be kept in the plan"
            )
            return
        if isinstance(value, Count) and name in self.declaration.units:
            declared = labels(source.parameter_ref(self.declaration.fn, name), f"counts {self.declaration.units[name]}")
            for found in foreign({name: self.declaration.units[name]}, {name: value}):
                self.node.failed = True
                self.trace.diagnostics.append(no_fit(found, self.node.title, at, declared))
        least = counts_of(self.declaration).get(name)
        if least is not None and not is_count(value, least):
            self.node.failed = True
            position = self.declaration.positions.get(name)
            self.trace.refuse_count(self.node.call, self.node.title, name, position, value, least)
        elif value is not self.declaration.signature.parameters[name].default:
            self._fits(name, self.node.title, self.declaration.hints.get(name), value, at, source.parameter_ref(self.declaration.fn, name))

    def _fits(self, name: str, title: str, hint: Any, value: object, at: Place, declared: Ref) -> None:
        """An option has a value of its type."""
        if (wrong := misfit(hint, value)) is not None:
            self.refuse("RLF004", f"`{name}` of `{title}` {wrong}", where=at, related=labels(declared))

    def _weights(self, name: str, weights: TracedWeights, hint: Any, at: Place) -> None:
        wanted = READINGS.get(get_origin(hint) or hint)
        if wanted is None:
            here = source.parameter_ref(self.declaration.fn, name)
            self.refuse("RLF005", f"`{name}` of `{self.node.title}` takes no weights, got `{weights.name}`", where=at, related=labels(here))
            return
        self.node.weights.append(WeightsArgument(name, weights, wanted, at))
        self._model(name, weights, model_of(hint), at)

    def _model(self, name: str, weights: TracedWeights, wanted: type | None, at: Place) -> None:
        """The weights of a reward model are no policy's."""
        given: type | None = weights.model
        elsewhere = weights.owner is not self.node.worker and weights.reading in ("frozen", "current", "move")  # RLF203 tells
        if elsewhere or given is None or wanted is None or issubclass(given, wanted) or issubclass(wanted, given):
            return
        if self.told((given, wanted)):
            return  # a `load` that names another model shows in every call
        of = source.parameter_ref(weights.writer.declaration.fn, "") if weights.writer and weights.writer.declaration else None
        self.refuse(
            "RLF005",
            f"`{name}` of `{self.node.title}` takes the weights of a `{wanted.__name__}`, got those of a `{given.__name__}`",
            where=at,
            label=f"`{weights.name}` is of a `{given.__name__}`",
            related=(*labels(source.parameter_ref(self.declaration.fn, name)), *(labels(of, "loaded as one") if of else ())),
            help=f"if it is of any kind, let its type be `Weights[W]`; else pass the weights of a `{wanted.__name__}`",
        )

    def _whole_feedback(self, name: str, feedback: Feedback[Any], hint: Any, at: Place) -> None:
        """`actor.train(policy, ...)`: which version is meant? The trace goes on with the one that the parameter takes."""
        reading = READINGS.get(get_origin(hint) or hint)
        if reading == "any":
            reading = "current" if self.trace.feedback(feedback).init.owner is self.node.worker else "served"
        given = f"`{name}` of `{self.node.title}`"
        if reading is None:
            here = source.parameter_ref(self.declaration.fn, name)
            self.refuse("RLF005", f"{given} takes no weights, got the feedback `{feedback.name}`", where=at, related=labels(here))
            return
        one = {"next": "what its train call returns", "frozen": "what a worker loads: `actor.load()`"}
        self.refuse(
            "RLF204",
            f"{given} takes weights as {reading}, got the feedback `{feedback.name}` itself",
            where=at,
            label="which version of it?",
            help=f"pass {one.get(reading, f'`{source.text(at)}.{reading}`')}",
        )
        if reading not in one:
            self._weights(name, trace.weights_of(getattr(feedback, reading)), hint, at)

    def _record(self, name: str, record: Record, hint: Any, at: Place) -> None:
        generic = isinstance(hint, TypeVar)
        wanted = (hint.__bound__ or Record) if generic else hint
        here = source.parameter_ref(self.declaration.fn, name)
        if not (isinstance(wanted, type) and issubclass(wanted, Record)):
            self.mention([(name, record)])
            objective = get_origin(hint) is Objective
            takes = "losses on micro-batches" if objective else "no record"
            self.refuse(
                "RLF005",
                f"`{name}` of `{self.node.title}` takes {takes}, got a `{type(record).__name__}`",
                where=at,
                related=labels(here),
                help="`micro_pack(..., max_tokens=...).loss(...)`, of rows that `shard` cut"
                if objective
                else field_of_record(record, name, at),
            )
            return
        self.node.records[name] = type(record)
        self.always |= specs_of(wanted).keys()
        reads, given = specs_of(wanted) | self.reads, values_of(record)
        refuse_lacking(self, [n for n in reads if n not in given], name, type(record), wanted, at)
        if self.declaration.least_kept and not isinstance(given.get(WHOSE), Value):
            refuse_anonymous(self, type(record), at)
        for field, value in given.items():
            spec = reads.get(field)
            declared = source.attribute_ref(reader_of(self.node.losses, field, wanted), field)
            if isinstance(value, Absent):
                if spec is not None:
                    refuse_hole(self, field, value, at, declared)
            elif isinstance(value, Value) and (spec is not None or generic):
                read = spec is not None or field in self.read_besides
                use = TracedUse(f"{name}.{field}", trace.field_of(value), spec, at, declared, read=read)
                self.node.uses.append(use)

    def told(self, mistake: Hashable) -> bool:
        """True from the second time on. The call is refused every time."""
        self.node.failed = True
        if mistake in self.trace.told:
            return True
        self.trace.told.add(mistake)
        return False


def _fields(name: str, value: Any) -> list[tuple[str, Value]]:
    """The fields in an argument: itself, or those of its record."""
    record = value.rows if isinstance(value, Micro | Objective) else value
    given = {name: value} if not isinstance(record, Record) else {f"{name}.{n}": v for n, v in values_of(record).items()}
    return [(param, one) for param, one in given.items() if isinstance(one, Value)]
