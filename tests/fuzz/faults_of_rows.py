"""Mistakes with rows: other rows, another order of row operators, numbers that do not divide."""

from __future__ import annotations

from collections.abc import Iterator

from fault import Fault, calls, field_spots, fields_of, insert, number_of
from loop_model import Arg, Call, Column, Line, Program, Raw, Rows, Whole, accepts, parted
from loop_writer import Choose


def wrong_rows(program: Program, choose: Choose) -> Fault | None:
    """The same field, before a row operator that the other arguments went through."""
    spots: list[tuple[Line, Arg, Column, Rows]] = []
    for line, arg in field_spots(program):
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


def late_group(program: Program, choose: Choose) -> Fault | None:
    spots = [line for line in program.lines("shard") if "uid" in fields_of(line)]
    if not spots:
        return None
    shard = choose.one(spots)
    fields = fields_of(shard)
    counted = Line("own", Call("length_of", [Arg("response_mask", fields["response_mask"])]), "counted")
    value = Column("counted", "quality", fields["uid"].rows)
    ranked = Line("own", Call("rank_quality", [Arg("quality", value), Arg("uid", fields["uid"])]), "late_ranks")
    insert(program, shard, counted, ranked)
    return Fault(("RLF501",), ranked, also=(shard,))


def late_filter(program: Program, choose: Choose) -> Fault | None:
    form = program.line("form_batch")
    fields, whole = fields_of(form), str(form.target)
    graded = Line("own", Call("length_of", [Arg("response_mask", fields["response_mask"])]), "lengths")
    value = Column("lengths", "quality", fields["uid"].rows)
    kept = Line("own", Call("keep_good", [Arg("rows", Raw(whole)), Arg("quality", value), Arg("uid", fields["uid"])]), "few")
    insert(program, form, graded, kept)
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


def _shards_of(program: Program, line: Line) -> list[Line]:
    """The shards behind a row operator."""
    found: list[Line] = []
    for shard in program.lines("shard"):
        rows: Rows | None = shard.makes[0].rows
        mine = line.makes[0].rows
        if rows is not mine and rows in [*shard.makes[0].rows.lineage()] and mine in [*shard.makes[0].rows.lineage()]:
            found.append(shard)
    return found


def _ways(program: Program, shard: Line) -> int:
    worker = str(shard.call.arg("on").value)
    return number_of(program.line(f"worker:{worker}"), "dp") * number_of(shard, "mini_batches")


def _refused_cuts(program: Program, shards: list[Line], total: int) -> list[Line]:
    """Of each shard the first call on the way to it, itself included, that cannot cut so many rows evenly."""
    found: list[Line] = []
    for shard in shards:
        way = list(shard.makes[0].rows.lineage())
        cuts = [(line, number_of(line, "mini_batches")) for line in program.lines("rebalance") if line.makes[0].rows in way]
        uneven = [line for line, ways in [*cuts, (shard, _ways(program, shard))] if total % ways]
        found += [line for line in uneven[:1] if line not in found]
    return found


def indivisible_pad(program: Program, choose: Choose) -> Fault | None:
    spots: list[tuple[Line, int, list[Line]]] = []
    for pad in program.lines("pad"):
        size = pad.call.args[0].value.rows.size if isinstance(pad.call.args[0].value, Whole) else None
        for number in range(2, number_of(pad, "multiple") + 3):
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
    wrong = [dp for dp in (2, 3, 5, 7) if multiple % (dp * number_of(shard, "mini_batches"))]
    worker.call.arg("dp").value = Raw(str(choose.one(wrong)))
    return Fault(("RLF510",), worker, primary=(shard,), also=(worker,))


def indivisible_prompts(program: Program, choose: Choose) -> Fault | None:
    form = program.line("form_batch")
    shards = [shard for shard in program.lines("shard") if not any(rows.how == "pad" for rows in shard.makes[0].rows.lineage())]
    size = form.makes[0].rows.size
    if size is None or not shards:
        return None
    each = size // number_of(form, "prompts")
    wrong = [n for n in range(2, 70) if len(_refused_cuts(program, shards, n * each)) == 1]
    if not wrong:
        return None
    number = choose.one(wrong)
    form.call.arg("prompts").value = Raw(str(number))
    return Fault(("RLF510",), form, primary=tuple(_refused_cuts(program, shards, number * each)), also=(form,))


COUNTED = ("prompts", "n", "dp", "multiple", "pieces", "max_tokens", "mini_batches", "updates", "every")


def count_of_nothing(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line in calls(program) for call in _nested(line.call) for arg in call.args if arg.param in COUNTED]
    spots = [(line, arg) for line, arg in spots if isinstance(arg.value, Raw) and str(arg.value)[0].isdigit()]
    lag = [(line, arg) for line in calls(program) for arg in line.call.args if arg.param == "max_lag"]
    line, arg = choose.one([*spots, *lag])
    arg.value = Raw("-1" if arg.param == "max_lag" else choose.one(["0", "-2", "2.5"]))
    return Fault(("RLF015",), line, text=str(arg.value))


def _nested(call: Call) -> Iterator[Call]:
    yield call
    for arg in call.args:
        if isinstance(arg.value, Call):
            yield from _nested(arg.value)
