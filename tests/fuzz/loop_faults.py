"""One mistake in a loop that is right: what a user gets wrong, where, and which code says so.

Each function looks for the places where its mistake can be made in this loop, makes it at one of them (in place), and returns what was
broken; None where the loop has no such place. Whether a change *is* a mistake is decided here, by the model, never by the compiler.

    fields     dropped_argument  dropped_field  left_out  dropped_base  swapped  mixed_up  wrong_dtype  wrong_axes  wrong_role  off_by_one
    rows       wrong_rows  late_group  late_filter  wrong_order  not_cut  not_formed
    weights    wrong_reading  whole_feedback  not_owner  read_after_move  moved_twice  never_closed  closed_twice  crossed  unsynced
    numbers    indivisible_pad  indivisible_ranks  indivisible_prompts  count_of_nothing
    versions   lag_uncorrected  correction_forgotten  of_another_policy  temperature
    names      misspelt_field  misspelt_keyword  same_name
    python     number_for_field  record_for_field  arithmetic  branch  not_config  no_loss  dead_call  idle_worker
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from loop_maker import Choose
from loop_model import KINDS, OPS, RECORDS, Arg, Call, Column, Line, Program, Raw, Rows, Weights, Whole, accepts, parted


@dataclass
class Fault:
    """What was broken. line: the mutated one; primary: where the error stands, when that is another; text: what its place reads."""

    codes: tuple[str, ...]
    line: Line
    primary: tuple[Line, ...] = ()
    text: str | None = None
    also: tuple[Line, ...] = ()  # lines that the message names besides
    severity: str = "error"


Breaker: TypeAlias = Callable[[Program, Choose], Fault | None]
Spot: TypeAlias = tuple[Line, Arg]


def _calls(program: Program) -> Iterator[Line]:
    return (line for line in program.body if line.text is None)


def _field_spots(program: Program, *, records: bool = True) -> list[Spot]:
    """Arguments that are fields."""
    return [
        (line, arg)
        for line in _calls(program)
        if records or not line.call.is_record
        for arg in line.call.args
        if arg.param in line.call.takes and isinstance(arg.value, Column)
    ]


def _pick(
    choose: Choose, spots: list[Spot], change: Callable[[Arg], None], codes: tuple[str, ...], *, at_call: bool = False
) -> Fault | None:
    """Break one of the arguments."""
    if not spots:
        return None
    line, arg = choose.one(spots)
    change(arg)
    return Fault(codes, line, text=str(line.call) if at_call else str(arg.value))


def _insert(program: Program, after: Line, *lines: Line) -> None:
    at = program.body.index(after) + 1
    program.body[at:at] = lines
    if program.helper and program.helper[1] is after:
        program.helper = (program.helper[0], lines[-1])


# --- fields -----------------------------------------------------------------------------------------------------------------
def dropped_argument(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in _field_spots(program, records=False) if not _optional(line, arg)]
    if not spots:
        return None
    line, arg = choose.one(spots)
    line.call.args.remove(arg)
    return Fault(("RLF004",), line, text=str(line.call))


def _optional(line: Line, arg: Arg) -> bool:
    op = OPS.get(line.call.fn.rpartition(".")[2])
    return op is not None and arg.param in op.optional


def dropped_field(program: Program, choose: Choose) -> Fault | None:
    spots = [spot for spot in _field_spots(program) if spot[0].call.is_record]
    line, arg = choose.one(spots)
    line.call.args.remove(arg)
    return Fault(("RLF004",), line)


def left_out(program: Program, choose: Choose) -> Fault | None:
    """`absent(...)` for a field that a training call reads."""
    spots = [(line, arg) for line, arg in _field_spots(program) if arg.param in line.reads]
    if not spots:
        return None
    line, arg = choose.one(spots)
    arg.value = Raw('absent("forgotten")')
    return Fault(("RLF008",), line, primary=(*line.readers, *program.lines("late")), also=(line,))


def dropped_base(program: Program, choose: Choose) -> Fault | None:
    """The record lacks what a loss reads."""
    line = next(line for line in program.body if line.reads)
    bases = [base for base in program.records[line.call.fn] if _only_of(program, line, base) & line.reads]
    if line.target is None or any(other.what == "late" for other in program.body) or not bases:
        return None
    base = choose.one(bases)
    lost = _only_of(program, line, base)
    program.records[line.call.fn].remove(base)
    line.call.args = [arg for arg in line.call.args if arg.param not in lost]
    return Fault(("RLF001",), line, primary=tuple(line.readers))


def _only_of(program: Program, line: Line, base: str) -> set[str]:
    others = {field for other in program.records[line.call.fn] if other != base for field in RECORDS.get(other, {})}
    return set(RECORDS.get(base, {})) - others if base in ("PpoRows", "ValueRows", "TeacherRows", "KlRows") else set()


def swapped(program: Program, choose: Choose) -> Fault | None:
    spots: list[tuple[Line, Arg, Arg]] = []
    for line in _calls(program):
        given = [arg for arg in line.call.args if arg.param in line.call.takes and isinstance(arg.value, Column)]
        for i, one in enumerate(given):
            for two in given[i + 1 :]:
                wants = line.call.takes[one.param], line.call.takes[two.param]
                kinds = one.value.kind, two.value.kind  # type: ignore[union-attr]
                if not accepts(wants[0], kinds[1]) and not accepts(wants[1], kinds[0]):
                    spots.append((line, one, two))
    if not spots:
        return None
    line, one, two = choose.one(spots)
    one.value, two.value = two.value, one.value
    return Fault(("RLF122",), line)


def mixed_up(program: Program, choose: Choose) -> Fault | None:
    """Three arguments, each in the place of the next."""
    spots: list[tuple[Line, list[Arg]]] = []
    for line in _calls(program):
        given = [arg for arg in line.call.args if arg.param in line.call.takes and isinstance(arg.value, Column)]
        takes = line.call.takes
        for three in combinations(given, 3):
            kinds = [arg.value.kind for arg in three if isinstance(arg.value, Column)]
            if not any(accepts(takes[arg.param], kind) for i, arg in enumerate(three) for j, kind in enumerate(kinds) if i != j):
                spots.append((line, list(three)))
    if not spots:
        return None
    line, (a, b, c) = choose.one(spots)
    a.value, b.value, c.value = b.value, c.value, a.value
    return Fault(("RLF122",), line)


def _replaced(program: Program, choose: Choose, fits: Callable[[str, str], bool], code: str, *, others: int = 0) -> Fault | None:
    """Another field of the same rows for an argument; `fits(wanted, given)` says which."""
    spots: list[tuple[Line, Arg, Column]] = []
    for line, arg in _field_spots(program):
        assert isinstance(arg.value, Column)
        rest = [a for a in line.call.args if a is not arg and isinstance(a.value, Column) and "S" in _lengths(a.value.kind)]
        if len(rest) < others:
            continue
        for column in program.columns_before(line):
            if column.rows is arg.value.rows and fits(line.call.takes[arg.param], column.kind):
                spots.append((line, arg, column))
    if not spots:
        return None
    line, arg, column = choose.one(spots)
    arg.value = column
    return Fault((code,), line, text=column.text if others != 1 else None)


def _lengths(kind: str) -> str:
    return KINDS[kind].axes.replace("R", "S")


def wrong_dtype(program: Program, choose: Choose) -> Fault | None:
    return _replaced(program, choose, lambda want, got: KINDS[want].dtype != KINDS[got].dtype, "RLF101")


def wrong_axes(program: Program, choose: Choose) -> Fault | None:
    def fits(want: str, got: str) -> bool:
        return KINDS[want].dtype == KINDS[got].dtype and len(KINDS[want].axes) != len(KINDS[got].axes)

    return _replaced(program, choose, fits, "RLF102")


def wrong_role(program: Program, choose: Choose) -> Fault | None:
    def fits(want: str, got: str) -> bool:
        same = KINDS[want].dtype == KINDS[got].dtype and len(KINDS[want].axes) == len(KINDS[got].axes)
        return same and not accepts(want, got) and KINDS[want].role != KINDS[got].role

    return _replaced(program, choose, fits, "RLF121")


def off_by_one(program: Program, choose: Choose) -> Fault | None:
    """[B, S] for [B, R], beside an argument that says what S is."""

    def fits(want: str, got: str) -> bool:
        return KINDS[want].role == KINDS[got].role and {KINDS[want].axes, KINDS[got].axes} == {"BS", "BR"}

    return _replaced(program, choose, fits, "RLF103", others=1)


# --- rows -------------------------------------------------------------------------------------------------------------------
def wrong_rows(program: Program, choose: Choose) -> Fault | None:
    """The same field, before a row operator that the other arguments went through."""
    spots: list[tuple[Line, Arg, Column, Rows]] = []
    for line, arg in _field_spots(program):
        assert isinstance(arg.value, Column)
        others = [a.value for a in line.call.args if a is not arg and isinstance(a.value, Column)]
        if len(others) < 2:
            continue
        for column in program.columns_before(line):
            if column.rows is not arg.value.rows and accepts(line.call.takes[arg.param], column.kind):
                spots.append((line, arg, column, arg.value.rows))
    if not spots:
        return None
    codes = sorted({parted(column.rows, rows) for _, _, column, rows in spots})
    wanted = choose.one(codes)  # so that the rare ones come up as often
    line, arg, column, _ = choose.one([spot for spot in spots if parted(spot[2].rows, spot[3]) == wanted])
    arg.value = column
    return Fault((wanted,), line, text=column.text)


def _record_of(program: Program, line: Line) -> dict[str, Column]:
    """The fields that a row operator hands on."""
    return {column.text.rpartition(".")[2]: column for column in line.makes}


def late_group(program: Program, choose: Choose) -> Fault | None:
    spots = [line for line in program.lines("shard") if "uid" in _record_of(program, line)]
    if not spots:
        return None
    shard = choose.one(spots)
    fields = _record_of(program, shard)
    counted = Line("own", Call("length_of", [Arg("response_mask", fields["response_mask"])]), "counted")
    value = Column("counted", "quality", fields["uid"].rows)
    ranked = Line("own", Call("rank_quality", [Arg("quality", value), Arg("uid", fields["uid"])]), "late_ranks")
    _insert(program, shard, counted, ranked)
    return Fault(("RLF501",), ranked, also=(shard,))


def late_filter(program: Program, choose: Choose) -> Fault | None:
    form = program.line("form_batch")
    fields, whole = _record_of(program, form), str(form.target)
    graded = Line("own", Call("length_of", [Arg("response_mask", fields["response_mask"])]), "lengths")
    value = Column("lengths", "quality", fields["uid"].rows)
    kept = Line("own", Call("keep_good", [Arg("rows", Raw(whole)), Arg("quality", value), Arg("uid", fields["uid"])]), "few")
    _insert(program, form, graded, kept)
    return Fault(("RLF503",), kept, also=(form,))


def _feeds(program: Program, first: str, second: str) -> list[tuple[Line, Line]]:
    """Pairs of row operators, where the second is given what the first one returns and nobody else is."""
    found: list[tuple[Line, Line]] = []
    for one in program.lines(first):
        users = [line for line in program.body if any(str(arg.value).partition(".")[0] == one.target for arg in line.call.args)]
        if len(users) == 1 and users[0].what == second:
            found.append((one, users[0]))
    return found


def wrong_order(program: Program, choose: Choose) -> Fault | None:
    """Two row operators change places: the one that now comes second, or first, is refused."""
    pairs = [*_feeds(program, "rebalance", "shard"), *_feeds(program, "shuffle", "shard")]
    if not pairs:
        return None
    one, two = choose.one(pairs)
    one.call, two.call = two.call, one.call
    one.call.args[0].value, two.call.args[0].value = two.call.args[0].value, one.call.args[0].value
    return Fault(("RLF502",), two, also=(one,))


def padded_after_balancing(program: Program, choose: Choose) -> Fault | None:
    pairs = _feeds(program, "pad", "rebalance")
    if not pairs:
        return None
    one, two = choose.one(pairs)
    one.call, two.call = two.call, one.call
    one.call.args[0].value, two.call.args[0].value = two.call.args[0].value, one.call.args[0].value
    return Fault(("RLF502", "RLF510"), two, primary=(one, two), also=(one,))


def not_cut(program: Program, choose: Choose) -> Fault | None:
    """Micro-batches of the whole batch: the shard is skipped."""
    pairs = _feeds(program, "shard", "micro_pack")
    if not pairs:
        return None
    shard, micro = choose.one(pairs)
    micro.call.args[0].value = shard.call.args[0].value
    return Fault(("RLF502",), micro, text=str(micro.call.args[0].value))


def not_formed(program: Program, choose: Choose) -> Fault | None:
    """The stream goes on as if it were a batch."""
    form = program.line("form_batch")
    form.text = str(form.call.args[0].value)
    users = tuple(line for line in program.body if line.what in ("pad", "rebalance", "shuffle", "shard", "report", "gae", "whiten"))
    return Fault(("RLF502",), form, primary=users)


# --- weights ----------------------------------------------------------------------------------------------------------------
READINGS = {"current": ("served", "move"), "served": ("current", "move"), "move": ("current", "served")}


def _weight_spots(program: Program, *readings: str) -> list[Spot]:
    return [
        (line, arg)
        for line in _calls(program)
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
    _insert(program, train, stale, Line("own", Call("report_log_probs", [Arg("log_probs", value), Arg("response_mask", mask)])))
    return Fault(("RLF202",), stale, text="policy.current", also=(train,))


def _rows(line: Line) -> Rows:
    return next(arg.value.rows for arg in line.call.args if isinstance(arg.value, Column))


def _trains(program: Program) -> list[Line]:
    return [line for line in program.body if line.what.startswith("train:")]


def moved_twice(program: Program, choose: Choose) -> Fault | None:
    train = choose.one(_trains(program))
    again = Line("own", Call(train.call.fn, list(train.call.args)), "again")
    _insert(program, train, again)
    return Fault(("RLF201",), again, text=str(train.call.args[0].value), also=(train,))


def never_closed(program: Program, choose: Choose) -> Fault | None:
    close = choose.one([line for line in program.body if line.what.startswith("close:")])
    name = close.what.partition(":")[2]
    close.text = "pass"
    return Fault(("RLF301",), program.line(f"feedback:{name}"))


def closed_twice(program: Program, choose: Choose) -> Fault | None:
    close = choose.one([line for line in program.body if line.what.startswith("close:")])
    again = Line("own", close.call)
    _insert(program, close, again)
    return Fault(("RLF201",), again, also=(close,))


def crossed(program: Program, choose: Choose) -> Fault | None:
    """A feedback is closed with the next version of another."""
    trains = _trains(program)
    closes = [line for line in program.body if line.what.startswith("close:") and line.what != "close:policy"]
    spots = [(close, train) for close in closes for train in trains if train.what[6:] != close.what[6:]]
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


# --- numbers ----------------------------------------------------------------------------------------------------------------
def _shards_of(program: Program, line: Line) -> list[Line]:
    """The shards behind a row operator."""
    found: list[Line] = []
    for shard in program.lines("shard"):
        rows: Rows | None = shard.makes[0].rows
        mine = line.makes[0].rows
        if rows is not mine and rows in [*shard.makes[0].rows.lineage()] and mine in [*shard.makes[0].rows.lineage()]:
            found.append(shard)
    return found


def _number(line: Line, param: str) -> int:
    for arg in line.call.args:
        if arg.param == param:
            return int(eval(str(arg.value)))  # "2 * 6"
    return 1


def _ways(program: Program, shard: Line) -> int:
    worker = str(shard.call.arg("on").value)
    return _number(program.line(f"worker:{worker}"), "dp") * _number(shard, "mini_batches")


def _refused_cuts(program: Program, shards: list[Line], total: int) -> list[Line]:
    """Of each shard the first call on the way to it, itself included, that cannot cut so many rows evenly."""
    found: list[Line] = []
    for shard in shards:
        way = list(shard.makes[0].rows.lineage())
        cuts = [(line, _number(line, "mini_batches")) for line in program.lines("rebalance") if line.makes[0].rows in way]
        uneven = [line for line, ways in [*cuts, (shard, _ways(program, shard))] if total % ways]
        found += [line for line in uneven[:1] if line not in found]
    return found


def indivisible_pad(program: Program, choose: Choose) -> Fault | None:
    spots: list[tuple[Line, int, list[Line]]] = []
    for pad in program.lines("pad"):
        size = pad.call.args[0].value.rows.size if isinstance(pad.call.args[0].value, Whole) else None
        for number in range(2, _number(pad, "multiple") + 3):
            total = number if size is None else -(-size // number) * number
            failing = _refused_cuts(program, _shards_of(program, pad), total)
            if len(failing) == 1:
                spots.append((pad, number, failing))
    if not spots:
        return None
    pad, number, failing = choose.one(spots)
    pad.call.arg("multiple").value = Raw(str(number))
    return Fault(("RLF510",), pad, primary=tuple(failing), also=(pad,))


def indivisible_ranks(program: Program, choose: Choose) -> Fault | None:
    shard = choose.one(program.lines("shard"))
    worker = program.line(f"worker:{shard.call.arg('on').value}")
    rows = shard.call.args[0].value
    assert isinstance(rows, Whole)
    multiple = rows.rows.size or rows.rows.multiple
    wrong = [dp for dp in (2, 3, 5, 7) if multiple % (dp * _number(shard, "mini_batches"))]
    worker.call.arg("dp").value = Raw(str(choose.one(wrong)))
    return Fault(("RLF510",), worker, primary=(shard,), also=(worker,))


def indivisible_prompts(program: Program, choose: Choose) -> Fault | None:
    form = program.line("form_batch")
    shards = [shard for shard in program.lines("shard") if not any(rows.how == "pad" for rows in shard.makes[0].rows.lineage())]
    size = form.makes[0].rows.size
    if size is None or not shards:
        return None
    each = size // _number(form, "prompts")
    wrong = [n for n in range(2, 70) if len(_refused_cuts(program, shards, n * each)) == 1]
    if not wrong:
        return None
    number = choose.one(wrong)
    form.call.arg("prompts").value = Raw(str(number))
    return Fault(("RLF510",), form, primary=tuple(_refused_cuts(program, shards, number * each)), also=(form,))


COUNTED = ("prompts", "n", "dp", "multiple", "pieces", "max_tokens", "mini_batches", "updates", "every")


def count_of_nothing(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line in _calls(program) for call in _nested(line.call) for arg in call.args if arg.param in COUNTED]
    spots = [(line, arg) for line, arg in spots if isinstance(arg.value, Raw) and str(arg.value)[0].isdigit()]
    lag = [(line, arg) for line in _calls(program) for arg in line.call.args if arg.param == "max_lag"]
    line, arg = choose.one([*spots, *lag])
    arg.value = Raw("-1" if arg.param == "max_lag" else choose.one(["0", "-2", "2.5"]))
    return Fault(("RLF015",), line, text=str(arg.value))


def _nested(call: Call) -> Iterator[Call]:
    yield call
    for arg in call.args:
        if isinstance(arg.value, Call):
            yield from _nested(arg.value)


# --- versions ---------------------------------------------------------------------------------------------------------------
def lag_uncorrected(program: Program, choose: Choose) -> Fault | None:
    feedback = program.line("feedback:policy")
    if _number(feedback, "max_lag") != 0 and any(arg.param == "max_lag" for arg in feedback.call.args):
        return None
    if program.lines("anchor_on_rollout") or program.lines("truncated_importance"):
        return None
    feedback.call.args = [arg for arg in feedback.call.args if arg.param != "max_lag"]
    feedback.call.args.append(Arg("max_lag", Raw(choose.one(["1", "3"])), keyword=True))
    return Fault(("RLF307",), feedback, primary=(program.line("train:policy"),), also=(feedback,))


def correction_forgotten(program: Program, choose: Choose) -> Fault | None:
    feedback, corrected = program.line("feedback:policy"), program.lines("truncated_importance")
    if not corrected or not any(arg.param == "max_lag" and str(arg.value) != "0" for arg in feedback.call.args):
        return None
    corrected[0].text = str(corrected[0].call.arg("advantages").value)
    return Fault(("RLF307",), corrected[0], primary=(program.line("train:policy"),))


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


# --- names ------------------------------------------------------------------------------------------------------------------
def misspelt_field(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in _field_spots(program) if "." in str(arg.value)]
    line, arg = choose.one(spots)
    arg.value = Raw(choose.one([f"{arg.value}s", str(arg.value)[:-1]]))
    return Fault(("RLF001",), line, text=str(arg.value))


def misspelt_keyword(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line in _calls(program) for arg in line.call.args if arg.keyword and arg.param in line.call.takes]
    line, arg = choose.one(spots)
    arg.param += "s"
    return Fault(("RLF001", "RLF004"), line)


def same_name(program: Program, choose: Choose) -> Fault | None:
    workers = [line for line in program.body if line.what.startswith("worker:")]
    one, two = choose.order(range(len(workers)))[:2]
    first, second = workers[min(one, two)], workers[max(one, two)]
    second.call.args[0].value = first.call.args[0].value
    return Fault(("RLF003",), second, also=(first,))


# --- python -----------------------------------------------------------------------------------------------------------------
def number_for_field(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in _field_spots(program) if not _optional(line, arg)]
    value = choose.one(["0.0", "None", '"none"', "[1, 2]"])
    return _pick(choose, spots, lambda arg: setattr(arg, "value", Raw(value)), ("RLF005",))


def record_for_field(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in _field_spots(program) if "." in str(arg.value)]
    return _pick(choose, spots, lambda arg: setattr(arg, "value", Raw(str(arg.value).partition(".")[0])), ("RLF005",))


def arithmetic(program: Program, choose: Choose) -> Fault | None:
    line, arg = choose.one(_field_spots(program))
    arg.value = Raw(choose.one([f"{arg.value} * 2", f"{arg.value}[0]", f"{arg.value}.mean()", f"-{arg.value}"]))
    return Fault(("RLF007",), line)


def branch(program: Program, choose: Choose) -> Fault | None:
    line = choose.one([line for line in program.body if line.makes])
    column = choose.one(line.makes)
    test = Line("own", Call("", []), text=f"if {column}:\n    pass")
    _insert(program, line, test)
    return Fault(("RLF006",), test, text=column.text)


def not_config(program: Program, choose: Choose) -> Fault | None:
    names = ("limit", "per_token", "timeout_s", "beta", "prompts", "pieces")
    spots = [
        (line, arg) for line in _calls(program) for arg in line.call.args if arg.param in names and line.what not in ("record", "rollout")
    ]
    spots = [(line, arg) for line, arg in spots if isinstance(arg.value, Raw)]
    return _pick(choose, spots, lambda arg: setattr(arg, "value", Raw("lambda: 1")), ("RLF010", "RLF015"))


def no_loss(program: Program, choose: Choose) -> Fault | None:
    train = choose.one(_trains(program))
    objective = train.call.arg("objective")
    objective.value = Raw(str(objective.value).partition(".")[0] + ".loss()")
    return Fault(("RLF011",), train)


def dead_call(program: Program, choose: Choose) -> Fault | None:
    form = program.line("form_batch")
    dead = Line("own", Call("fluency", [Arg("response_text", _record_of(program, form)["response_text"])]), "unused")
    _insert(program, form, dead)
    return Fault(("RLF210",), dead, text=str(dead.call), severity="warning")


def idle_worker(program: Program, choose: Choose) -> Fault | None:
    worker = choose.one([line for line in program.body if line.what.startswith("worker:")])
    idle = Line("own", Call("Torch", [Arg("name", Raw('"spare"'))]), "spare")
    _insert(program, worker, idle)
    return Fault(("RLF210",), idle, text=str(idle.call), severity="warning")


FAULTS: tuple[Breaker, ...] = (
    dropped_argument, dropped_field, left_out, dropped_base, swapped, mixed_up, wrong_dtype, wrong_axes, wrong_role, off_by_one,
    wrong_rows, late_group, late_filter, wrong_order, padded_after_balancing, not_cut, not_formed,
    wrong_reading, whole_feedback, not_owner, not_loader, read_after_move, moved_twice, never_closed, closed_twice, crossed, unsynced,
    indivisible_pad, indivisible_ranks, indivisible_prompts, count_of_nothing,
    lag_uncorrected, correction_forgotten, of_another_policy, temperature,
    misspelt_field, misspelt_keyword, same_name,
    number_for_field, record_for_field, arithmetic, branch, not_config, no_loss, dead_call, idle_worker,
)  # fmt: skip


def break_loop(program: Program, choose: Choose, kinds: tuple[Breaker, ...] = FAULTS) -> tuple[str, Fault]:
    """One mistake of a random kind that this loop has a place for."""
    for kind in choose.order(kinds):
        fault = kind(program, choose)
        if fault is not None:
            return kind.__name__, fault
    raise AssertionError("every loop can be broken in some way")
