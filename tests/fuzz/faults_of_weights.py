"""Mistakes with weights and versions: readings, owners, moves, the end of the loop, lag, temperature."""

from __future__ import annotations

from fault import Fault, Spot, calls, insert, number_of, trains
from loop_model import CORRECTIONS, Arg, Call, Column, Line, Program, Raw, Rows, Weights
from loop_writer import Choose

READINGS = {"current": ("served", "move"), "served": ("current", "move"), "move": ("current", "served")}


def _weight_spots(program: Program, *readings: str) -> list[Spot]:
    return [
        (line, arg)
        for line in calls(program)
        for arg in line.call.args
        if isinstance(arg.value, Weights) and arg.value.text.rpartition(".")[2] in readings
    ]


def wrong_reading(program: Program, choose: Choose) -> Fault | None:
    line, arg = choose.one(_weight_spots(program, *READINGS))
    feedback, _, reading = str(arg.value).rpartition(".")
    arg.value = Weights(f"{feedback}.{choose.one(READINGS[reading])}")
    return Fault(("RLF204",), line, text=str(arg.value))


def whole_feedback(program: Program, choose: Choose) -> Fault | None:
    line, arg = choose.one(_weight_spots(program, *READINGS))
    arg.value = Weights(str(arg.value).partition(".")[0])
    return Fault(("RLF204",), line, text=str(arg.value))


def not_owner(program: Program, choose: Choose) -> Fault | None:
    """Weights that live on another worker."""
    spots = [(line, arg) for line, arg in _weight_spots(program, "load()", "current") if line.what in ("ref", "taught", "values", "old")]
    feedbacks = {
        str(line.target): str(line.call.args[1].value).partition(".")[0] for line in program.body if line.what.startswith("feedback")
    }
    choices = [(line, arg, name) for line, arg in spots for name, owner in feedbacks.items() if not line.call.fn.startswith(f"{owner}.")]
    if not choices:
        return None
    line, arg, name = choose.one(choices)
    arg.value = Weights(f"{name}.current")
    return Fault(("RLF203",), line, text=str(arg.value))


def not_loader(program: Program, choose: Choose) -> Fault | None:
    """Frozen weights that another worker loaded."""
    spots = [(line, arg) for line, arg in _weight_spots(program, "load()") if line.what in ("ref", "taught")]
    if not spots:
        return None
    line, arg = choose.one(spots)
    arg.value = Weights("actor.load()")
    return Fault(("RLF203",), line, text=str(arg.value))


def read_after_move(program: Program, choose: Choose) -> Fault | None:
    old = next((line for line in program.lines("old")), None)
    if old is None:
        return None
    train = program.line("train:policy")
    mask = next(column for column in program.columns_before(old) if column.kind == "response_mask" and column.rows is _rows(old))
    stale = Line("own", Call(old.call.fn, list(old.call.args)), "stale")
    value = Column("stale", "old_log_probs", mask.rows)
    insert(program, train, stale, Line("own", Call("report_log_probs", [Arg("log_probs", value), Arg("response_mask", mask)])))
    return Fault(("RLF202",), stale, text="policy.current", also=(train,))


def _rows(line: Line) -> Rows:
    return next(arg.value.rows for arg in line.call.args if isinstance(arg.value, Column))


def moved_twice(program: Program, choose: Choose) -> Fault | None:
    train = choose.one(trains(program))
    again = Line("own", Call(train.call.fn, list(train.call.args)), "again")
    insert(program, train, again)
    return Fault(("RLF201",), again, text=str(train.call.args[0].value), also=(train,))


def never_closed(program: Program, choose: Choose) -> Fault | None:
    close = choose.one([line for line in program.body if line.what.startswith("close:")])
    name = close.what.partition(":")[2]
    close.text = "pass"
    return Fault(("RLF301",), program.line(f"feedback:{name}"))


def closed_twice(program: Program, choose: Choose) -> Fault | None:
    close = choose.one([line for line in program.body if line.what.startswith("close:")])
    again = Line("own", close.call)
    insert(program, close, again)
    return Fault(("RLF201",), again, also=(close,))


def crossed(program: Program, choose: Choose) -> Fault | None:
    """A feedback is closed with the next version of another."""
    closes = [line for line in program.body if line.what.startswith("close:") and line.what != "close:policy"]
    spots = [(close, train) for close in closes for train in trains(program) if train.what[6:] != close.what[6:]]
    spots = [(close, train) for close, train in spots if program.body.index(train) < program.body.index(close)]
    if not spots:
        return None
    close, train = choose.one(spots)
    close.call.args[0].value = Raw(str(train.target))
    return Fault(("RLF302",), close)


def unsynced(program: Program, choose: Choose) -> Fault | None:
    """The last sync is left out: its engine serves version 0 for ever."""
    close = program.line("close:policy")
    call = close.call.args[0].value
    if not isinstance(call, Call):
        return None
    engine = str(call.arg("engine").value)
    close.call.args[0].value = call.arg("weights").value
    served = tuple(
        line
        for line in program.body
        if line.call.fn in (f"{engine}.rollout", f"{engine}.rollout_tree", f"{engine}.rollout_turns", f"{engine}.evaluate")
    )
    return Fault(("RLF304",), close, primary=served, also=(close,))


def lag_uncorrected(program: Program, choose: Choose) -> Fault | None:
    feedback = program.line("feedback:policy")
    if number_of(feedback, "max_lag") != 0 and any(arg.param == "max_lag" for arg in feedback.call.args):
        return None
    if program.lines("anchor_on_rollout") or _corrections(program):
        return None
    feedback.call.args = [arg for arg in feedback.call.args if arg.param != "max_lag"]
    feedback.call.args.append(Arg("max_lag", Raw(choose.one(["1", "3"])), keyword=True))
    return Fault(("RLF307",), feedback, primary=(program.line("train:policy"),), also=(feedback,))


def correction_forgotten(program: Program, choose: Choose) -> Fault | None:
    feedback, corrected = program.line("feedback:policy"), _corrections(program)
    if not corrected or not any(arg.param == "max_lag" and str(arg.value) != "0" for arg in feedback.call.args):
        return None
    corrected[0].text = str(corrected[0].call.arg("advantages").value)
    return Fault(("RLF307",), corrected[0], primary=(program.line("train:policy"),))


def _corrections(program: Program) -> list[Line]:
    return [line for name in CORRECTIONS for line in program.lines(name)]


def of_another_policy(program: Program, choose: Choose) -> Fault | None:
    """A loss that is not made for rows of others."""
    train = next((line for line in program.lines("train:pupil")), None)
    if train is None:
        return None
    objective = train.call.arg("objective")
    objective.value = Raw(str(objective.value).replace("distill", "imitate"))
    return Fault(("RLF307",), train, also=(program.line("feedback:pupil"), program.line("rollout")))


def temperature(program: Program, choose: Choose) -> Fault | None:
    """Of a worker whose log-probs meet others: the engine that samples, a reference or teacher that a loss compares with."""
    read = {"reference": "kl_penalty(0.1)", "teacher": "distill"}
    text = "\n".join(map(str, program.body))
    names = [line.what[7:] for line in program.body if line.what.startswith("worker:")]
    names = [name for name in names if name == "engine" or (name in read and read[name] in text)]
    line = program.line(f"worker:{choose.one(names)}")
    line.call.args = [arg for arg in line.call.args if arg.param != "temperature"]
    line.call.args.append(Arg("temperature", Raw("0.3"), keyword=True))
    return Fault(("RLF123",), line, primary=tuple(program.body), also=(line,))
