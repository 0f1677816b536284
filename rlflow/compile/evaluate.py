"""Peak bytes for given sizes: `plan.peak(S=1024, Q=128, text=200)`.

What follows from the plan is put in, unless it is given:

    P        prompts x (max_lag + 1) + s        prompts in flight
    K        as many as before the filter        it may drop none
    B2       as many as are in flight            of a batch whose rows only the run knows
    padded   the next multiple
    b        rows of one rank                    of its mini-batches together
    b2       max_tokens // the longest row       of one micro-batch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ..errors import UsageError
from ..language.diagnostic import nearest
from .bytes import is_text
from .facts import Facts, RowSet
from .ir import Dim, Graph, Node
from .peak import POOL, Held, Live

TEXT = "text"  # of every text that is not given a size of its own


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one column adds."""

    field: str
    writer: str
    bytes: int


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a process holds, at which call, and what it is, largest first."""

    process: str  # "pool": the columns that all of them share
    bytes: int
    call: str
    shares: tuple[Share, ...]


def evaluate(graph: Graph, facts: Facts, sizes: Mapping[str, int]) -> dict[str, Peak]:
    """Process -> its peak. Raises UsageError for a size that the plan does not have, and for one that it needs and was not given."""
    live = Live(graph, facts)
    held = [(node, process, list(columns)) for node in live.calls for process, columns in _held(live, node)]
    values = _values(graph, facts, {letter for *_, columns in held for one in columns for letter in one.bytes.letters}, sizes)
    largest: dict[str, Peak] = {}
    for node, process, columns in held:
        shares = tuple(Share(field=one.field, writer=one.writer, bytes=_number(one.bytes, values)) for one in columns)
        size = sum(share.bytes for share in shares)
        if process not in largest or size > largest[process].bytes:
            largest[process] = Peak(process=process, bytes=size, call=node.name, shares=tuple(sorted(shares, key=lambda s: -s.bytes)))
    return largest


def _held(live: Live, node: Node) -> Iterator[tuple[str, Iterator[Held]]]:
    yield POOL, live.pooled(node)
    yield live.facts.site[node.id], live.unpacked(node)


def _number(size: Dim, values: Mapping[str, int]) -> int:
    found = size.put({letter: Dim.of(values[letter]) for letter in size.letters}).number
    assert found is not None, f"{size} has no value"
    return found


# --- sizes ----------------------------------------------------------------------------------------------------------------------------
def _values(graph: Graph, facts: Facts, asked: set[str], given: Mapping[str, int]) -> dict[str, int]:
    """A value for each letter that is asked for, and for those that they follow from."""
    texts = {letter for letter in asked if is_text(letter)}
    known = asked | {letter for rows in facts.rowsets for letter in rows.size.letters}
    _refuse_unknown(given, known | ({TEXT} if texts else set()), asked)
    values = {letter: size for letter, size in given.items() if letter != TEXT}
    if TEXT in given:
        values |= dict.fromkeys(texts - values.keys(), given[TEXT])
    for rows in facts.rowsets:
        _derive(graph, facts, rows, values)
    for letter, most in facts.bounds.items():  # what nothing else tells is as large as it may be
        if letter not in values and (largest := _known(most, values)) is not None:
            values[letter] = largest
    lacking = sorted(asked - values.keys() - texts) + ([TEXT] if texts - values.keys() else [])
    if lacking:
        help_ = ", ".join(f"{name}=..." for name in lacking)
        raise UsageError(f"peak bytes of `{graph.name}` depend on {', '.join(lacking)}: give {help_}")
    return values


def _refuse_unknown(given: Mapping[str, int], known: set[str], asked: set[str]) -> None:
    for name, size in given.items():
        if name not in known:
            raise UsageError(f"no size is called `{name}`{nearest(name, sorted(known))}; there are {', '.join(sorted(known))}")
        if size < 0 or (size == 0 and name not in asked):
            raise UsageError(f"{name}={size}: a size is at least 0")


def _derive(graph: Graph, facts: Facts, rows: RowSet, values: dict[str, int]) -> None:
    """The letter of a row set, and that of its prompts, if the plan tells them."""
    parent = facts.rowsets[rows.parent] if rows.parent is not None else None
    if rows.prompts and not rows.prompts.isdigit() and rows.prompts not in values:
        above = values.get(parent.prompts) if parent is not None else _prompts_in_flight(graph, facts, rows)
        if above is not None:
            values[rows.prompts] = above
    letter = rows.size.single
    if letter is None or letter in values or parent is None:
        return
    found = _from_parent(graph, facts, rows, _known(parent.size, values), values)
    if found is not None:
        values[letter] = found


def _known(size: Dim, values: Mapping[str, int]) -> int | None:
    return _number(size, values) if size.letters <= values.keys() else None


def _prompts_in_flight(graph: Graph, facts: Facts, root: RowSet) -> int | None:
    """What the first batch takes, once for each version that a rollout may lag, and once for the version itself; and those to spare."""
    form = next((r.made_by for r in facts.rowsets if r.how == "form" and [*facts.ancestors(r)][-1].id == root.id), None)
    if form is None:
        return None
    ahead = max((gap.oversample for gap in facts.gaps.values()), default=0)
    return int(graph.nodes[form].params["prompts"]) * (1 + max((feedback.max_lag for feedback in graph.feedbacks), default=0)) + ahead


def _from_parent(graph: Graph, facts: Facts, rows: RowSet, above: int | None, values: Mapping[str, int]) -> int | None:
    if rows.how == "pack":
        return _rows_of_micro_batch(facts, rows, graph.nodes[rows.made_by], above, values)
    if above is None or rows.how not in ("filter", "form", "pad", "shard"):
        return None
    if rows.how == "pad":
        return -(-above // rows.multiple) * rows.multiple
    ranks = 1 if rows.cut_for is None else graph.workers[rows.cut_for].dp_size
    return -(-above // ranks)


def _rows_of_micro_batch(facts: Facts, rows: RowSet, node: Node, above: int | None, values: Mapping[str, int]) -> int | None:
    """As many as `max_tokens` holds of the longest; no more than a rank has."""
    tokens = node.params.get("max_tokens")
    shapes = [facts.specs[field].shape for field, about in facts.rows.items() if about == rows.id and field in facts.specs]
    widths = [width for shape in shapes if len(shape) > 1 and (width := _known(shape[1], values)) is not None]
    if tokens is None or not widths:
        return None
    found = max(1, int(tokens) // max(1, *widths))
    return found if above is None else min(found, above)
