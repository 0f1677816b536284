"""Do the fields of a call line up: are they about the same rows, in the same order? If not, the operator that parted them says why."""

from __future__ import annotations

from collections import Counter

from ..language.diagnostic import Diagnostic, Label
from ..language.source import argument_text, text
from .discipline import RULES
from .facts import Facts, RowSet
from .ir import Graph, Node, Use


def line_up(graph: Graph, facts: Facts, node: Node, uses: list[Use], row_sets: dict[str, RowSet]) -> dict[str, Diagnostic]:
    """Fills the row set of each row letter: that of most arguments. Returns the arguments on other rows, by parameter."""
    by_letter: dict[str, list[tuple[Use, RowSet]]] = {}
    for use in uses:
        if use.declared and (rows := facts.rows_of(use.field)) is not None:
            by_letter.setdefault(str(use.declared.shape[0]), []).append((use, rows))
    if node.result.kind in ("rows", "micro"):
        _with_record(facts, node, by_letter)
    found: dict[str, Diagnostic] = {}
    for letter, given in by_letter.items():
        common, agreeing = Counter(rows.id for _, rows in given).most_common(1)[0]
        row_sets[letter] = facts.rowsets[common]
        first = next(use for use, rows in given if rows.id == common)
        told: dict[tuple[int, int], Diagnostic] = {}  # results of one call that went astray together
        for use, rows in given:
            if rows.id != common:
                astray = rows.id, graph.origin(use.field).node
                if astray not in told:
                    told[astray] = _mismatch(graph, facts, node, first, use, outvoted=agreeing > 1)
                found[use.param] = told[astray]
    return found


def _with_record(facts: Facts, node: Node, by_letter: dict[str, list[tuple[Use, RowSet]]]) -> None:
    """A row operator moves its record as one: all fields of it, and what it judges them by, are about the same rows."""
    of = f"{node.result.param}."
    record = [(use, rows) for use in node.uses if use.param.startswith(of) and (rows := facts.rows_of(use.field)) is not None]
    if not record:
        return
    common = Counter(rows.id for _, rows in record).most_common(1)[0][0]
    same = (letter for letter, given in by_letter.items() if any(each.id == common for _, each in given))
    letter = next(same, next(iter(by_letter), "rows"))
    by_letter[letter] = [*record, *(pair for pair in by_letter.get(letter, []) if not pair[0].param.startswith(of))]


def _mismatch(graph: Graph, facts: Facts, node: Node, first: Use, second: Use, *, outvoted: bool) -> Diagnostic:
    """Blame the field that most others outvote, or of two the one that was left behind; name the operator that parted them."""
    a, b = (facts.rowsets[facts.rows[use.field]] for use in (first, second))
    above_a, above_b = list(facts.ancestors(a)), list(facts.ancestors(b))
    behind, ahead = (second, first) if b in above_a or a not in above_b else (first, second)
    old, new = (facts.rowsets[facts.rows[use.field]] for use in (behind, ahead))
    chain = list(facts.ancestors(new))
    parting = chain[chain.index(old) - 1] if old in chain else new
    by = graph.nodes[parting.made_by]
    if old not in chain and (twins := _twins(facts, old, new)) is not None:
        return _twice(graph, facts, node, (ahead, behind), (graph.nodes[twins[1]], graph.nodes[twins[0]]))
    code, message, note, help_ = REASONS[parting.how if old in chain else "other"]
    name_old, name_new = (graph.fields[use.field].name for use in (behind, ahead))
    fill = {"old": name_old, "new": name_new, "op": by.title, "was": old, "now": new, "a": old.size, "b": new.size}
    about_old = Label(behind.at, f"`{name_old}` is about {old}, {old.size} rows")
    about_new = Label(ahead.at, f"`{name_new}` is about {new}, {new.size} rows")
    blamed, other = (about_new, about_old) if outvoted and second is ahead else (about_old, about_new)
    if blamed is about_new and old in chain:
        help_ = "the other arguments did not go through `{op}`: give `{new}` as it was before"
    return Diagnostic(
        code=code,
        message=message.format(**fill) + f" in `{node.title}`",
        where=blamed.place,
        label=blamed.text,
        related=(other, Label(by.at, "the rows change here")),
        notes=(note.format(**fill),),
        help=help_.format(**fill),
    )


def _twins(facts: Facts, one: RowSet, two: RowSet) -> tuple[int, int] | None:
    """Two calls of one kind of row operator on the same rows, when these row sets parted there: their nodes."""
    a, b = ([*facts.ancestors(rows)] for rows in (one, two))
    common = next((rows for rows in a if rows in b), None)
    if common in (None, one, two):
        return None
    left, right = a[a.index(common) - 1], b[b.index(common) - 1]
    if left.how != right.how or left.how not in RULES or left.how in ("fresh", "expand"):
        return None
    return left.made_by, right.made_by


def _twice(graph: Graph, facts: Facts, node: Node, uses: tuple[Use, Use], calls: tuple[Node, Node]) -> Diagnostic:
    """Equal numbers say nothing: each call of a row operator makes rows of its own."""
    first, second = uses
    (name_a, rows_a), (name_b, rows_b) = ((graph.fields[u.field].name, facts.rowsets[facts.rows[u.field]]) for u in uses)
    one, two = calls
    return Diagnostic(
        code="RLF520",
        message=f"`{name_a}` and `{name_b}` have unrelated rows in `{node.title}`",
        where=second.at,
        label=f"`{name_b}` is about {rows_b}, {rows_b.size} rows",
        related=(
            Label(first.at, f"`{name_a}` is about {rows_a}, {rows_a.size} rows"),
            Label(one.at, f"`{one.title}` makes the rows of `{name_a}`"),
            Label(two.at, f"`{two.title}` makes the rows of `{name_b}`, for itself"),
        ),
        notes=("each call makes rows of its own, whatever their number: fields that belong together go through one",),
        help=_together(one, two),
    )


def _together(one: Node, two: Node) -> str:
    """One call: of the record that both were given, or of one that holds the fields of both."""
    if {use.field for use in one.uses} == {use.field for use in two.uses}:
        return f"call `{one.title}` once, and read both from its result"
    classes = [ref.rpartition(":")[2] for call in (one, two) for ref in call.records.values()]
    if len(set(classes)) < len(classes):
        return "make one of the other, or join them with an operator"
    given = [argument_text(call.at, call.result.param or "") or argument_text(call.at, 0) or "..." for call in (one, two)]
    both = f"Both({', '.join(f'**vars({name})' for name in given)})"
    return f"`class Both({', '.join(classes)}): ...`, and `{text(one.at).replace(given[0], both, 1)}` once for all"


REASONS = {  # how the rows parted → code, message, note, help
    "filter": (
        "RLF521",
        "`{old}` did not pass the filter that `{new}` passed",
        "`{op}` kept {b} of {a} rows; row i of one is no longer row i of the other",
        "put `{old}` in the record that `{op}` filters, and read it from its result",
    ),
    "permute": (
        "RLF521",
        "`{old}` is in another row order than `{new}`",
        "`{op}` reordered the rows; sizes agree, so nothing would have crashed",
        "put `{old}` in the record that `{op}` reorders, and read it from its result",
    ),
    "pad": (
        "RLF521",
        "`{old}` lacks the pad rows of `{new}`",
        "`{op}` added rows",
        "put `{old}` in the record that `{op}` pads, and read it from its result",
    ),
    "shard": (
        "RLF521",
        "`{old}` covers {was}, `{new}` only {now}",
        "after `{op}` each rank holds other rows; a list of the whole batch pairs with the wrong ones",
        "put `{old}` in the record that `{op}` cuts, and read it from its result",
    ),
    "pack": (
        "RLF521",
        "`{old}` covers {was}, `{new}` only {now}",
        "after `{op}` each micro-batch holds other rows",
        "put `{old}` in the record that `{op}` cuts",
    ),
    "form": (
        "RLF521",
        "`{old}` is still about {was}, `{new}` about {now}",
        "`{op}` chose rows out of the stream",
        "put `{old}` in the record that `{op}` forms the batch of",
    ),
    "expand": (
        "RLF520",
        "rows of `{old}` and `{new}` are not the same things",
        "`{op}` makes {b} rows out of {a}",
        "carry `{old}` along to the new rows in `{op}`",
    ),
    "fresh": (
        "RLF520",
        "rows of `{old}` and `{new}` are not the same things",
        "`{op}` makes {b} rows out of {a}",
        "carry `{old}` along to the new rows in `{op}`",
    ),
    "other": (
        "RLF520",
        "`{old}` and `{new}` have unrelated rows",
        "{a} rows and {b} rows of different origin",
        "make one of the other, or join them with an operator",
    ),
}
