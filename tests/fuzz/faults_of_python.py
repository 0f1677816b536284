"""Mistakes with names, and with what a pipeline function may do."""

from __future__ import annotations

from fault import Fault, calls, field_spots, fields_of, insert, is_optional, pick, trains
from loop_model import Arg, Call, Line, Program, Raw
from loop_writer import Choose


def misspelt_field(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in field_spots(program) if "." in str(arg.value)]
    line, arg = choose.one(spots)
    arg.value = Raw(choose.one([f"{arg.value}s", str(arg.value)[:-1]]))
    return Fault(("RLF001",), line, text=str(arg.value))


def misspelt_keyword(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line in calls(program) for arg in line.call.args if arg.keyword and arg.param in line.call.takes]
    line, arg = choose.one(spots)
    arg.param += "s"
    return Fault(("RLF001", "RLF004"), line)


def same_name(program: Program, choose: Choose) -> Fault | None:
    workers = [line for line in program.body if line.what.startswith("worker:")]
    one, two = choose.order(range(len(workers)))[:2]
    first, second = workers[min(one, two)], workers[max(one, two)]
    second.call.args[0].value = first.call.args[0].value
    return Fault(("RLF003",), second, also=(first,))


def number_for_field(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in field_spots(program) if not is_optional(line, arg)]
    value = choose.one(["0.0", "None", '"none"', "[1, 2]"])
    return pick(choose, spots, lambda arg: setattr(arg, "value", Raw(value)), ("RLF005",))


def record_for_field(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in field_spots(program) if "." in str(arg.value)]
    return pick(choose, spots, lambda arg: setattr(arg, "value", Raw(str(arg.value).partition(".")[0])), ("RLF005",))


def arithmetic(program: Program, choose: Choose) -> Fault | None:
    line, arg = choose.one(field_spots(program))
    arg.value = Raw(choose.one([f"{arg.value} * 2", f"{arg.value}[0]", f"{arg.value}.mean()", f"-{arg.value}"]))
    return Fault(("RLF007",), line)


def branch(program: Program, choose: Choose) -> Fault | None:
    line = choose.one([line for line in program.body if line.makes])
    column = choose.one(line.makes)
    test = Line("own", Call("", []), text=f"if {column}:\n    pass")
    insert(program, line, test)
    return Fault(("RLF006",), test, text=column.text)


def not_config(program: Program, choose: Choose) -> Fault | None:
    names = ("limit", "per_token", "timeout_s", "beta", "prompts", "pieces")
    spots = [
        (line, arg) for line in calls(program) for arg in line.call.args if arg.param in names and line.what not in ("record", "rollout")
    ]
    spots = [(line, arg) for line, arg in spots if isinstance(arg.value, Raw)]
    return pick(choose, spots, lambda arg: setattr(arg, "value", Raw("lambda: 1")), ("RLF010", "RLF015"))


def no_loss(program: Program, choose: Choose) -> Fault | None:
    train = choose.one(trains(program))
    objective = train.call.arg("objective")
    objective.value = Raw(str(objective.value).partition(".")[0] + ".loss()")
    return Fault(("RLF011",), train)


def dead_call(program: Program, choose: Choose) -> Fault | None:
    form = program.line("form_batch")
    dead = Line("own", Call("fluency", [Arg("response_text", fields_of(form)["response_text"])]), "unused")
    insert(program, form, dead)
    return Fault(("RLF210",), dead, text=str(dead.call), severity="warning")


def idle_worker(program: Program, choose: Choose) -> Fault | None:
    worker = choose.one([line for line in program.body if line.what.startswith("worker:")])
    idle = Line("own", Call("Torch", [Arg("name", Raw('"spare"'))]), "spare")
    insert(program, worker, idle)
    return Fault(("RLF210",), idle, text=str(idle.call), severity="warning")
