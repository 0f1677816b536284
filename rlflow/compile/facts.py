"""What the passes find out, in side tables keyed by ids of the graph.

    own       failed
    infer     specs, rowsets, rows, temperature, failed
    version   versions, corrected
    live      needed, read, last_read, from_forward, dropped
    place     site, ranks, sleeps

A field without a spec is poisoned: something before it was refused, so nothing about it is news.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .ir import Dim, Node, Spec


class RowSet(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows a field is about, in which order, and what is true of them. Two fields line up iff theirs is the same."""

    id: int
    scope: str  # stream | batch | shard | micro
    size: Dim
    unit: str  # the letter that counts it where it was made: P prompts, T trajectories, B rows
    made_by: int | None = None  # node
    how: str = "fresh"  # fresh | expand | form | filter | permute | pad | shard | pack
    parent: int | None = None  # row set
    whole: bool = True  # every group complete
    padded: bool = False
    multiple: int = 1  # the size is a multiple of this
    prompts: str = ""  # the graph's letter for prompts

    def __str__(self) -> str:
        return {"stream": "the stream", "batch": "the whole batch", "shard": "one DP shard", "micro": "one micro-batch"}[self.scope]


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a worker that goes or comes before a call, because workers share their devices."""

    devices: int
    before: int  # node
    worker: int
    part: str  # weights | optimizer | kv_cache
    action: str  # release: thrown away · resume: room for what is made anew · offload: to the host · onload: back from it


class Facts(msgspec.Struct, kw_only=True):
    """The side tables. A pass adds to its own and reads those of the passes before it."""

    specs: dict[int, Spec] = {}  # field -> sizes in letters of the graph, role with its detail
    rowsets: list[RowSet] = []
    rows: dict[int, int] = {}  # field -> row set
    temperature: dict[int, float] = {}  # field of log-probs -> at which temperature it was scored
    failed: set[int] = set()  # nodes that a pass refused
    letters: dict[str, int] = {}  # how often a letter was handed out: B, B2, B3
    versions: dict[int, tuple[tuple[str, str], ...]] = {}  # field -> (feedback, reading) that it depends on
    corrected: set[int] = set()  # fields in which lag is accounted for
    needed: frozenset[int] = frozenset()  # nodes that the next step, or a sink, depends on
    read: frozenset[int] = frozenset()  # fields that a needed node reads, itself or through records and row operators
    last_read: dict[int, int] = {}  # field -> the last needed node, in order, that reads it or a mirror of it
    from_forward: dict[int, dict[str, str]] = {}  # training node -> field of its record -> field of its forward that stands in for it
    dropped: dict[int, str] = {}  # node -> why no plan has it
    site: dict[int, str] = {}  # node -> process that runs it
    ranks: dict[int, tuple[int, ...]] = {}  # worker -> which of its devices each of its ranks is on
    sleeps: tuple[Shift, ...] = ()  # of one step, in order

    def letter(self, name: str) -> Dim:
        """A new size of the graph: B, then B2, B3 ..."""
        count = self.letters.get(name, 0) + 1
        while count > 1 and f"{name}{count}" in self.letters:  # somebody's letter is called B2
            count += 1
        self.letters[name] = count
        new = name if count == 1 else f"{name}{count}"
        self.letters.setdefault(new, 1)
        return Dim.letter(new)

    def new_rows(self, rows: RowSet) -> RowSet:
        """`rows`, entered under the next id."""
        rows = msgspec.structs.replace(rows, id=len(self.rowsets))
        self.rowsets.append(rows)
        return rows

    def rows_of(self, field: int) -> RowSet | None:
        """The row set of a field; None for a poisoned one."""
        found = self.rows.get(field)
        return None if found is None else self.rowsets[found]

    def scope(self, node: Node) -> str | None:
        """Of the rows of a call: of what it is handed, else of what it makes."""
        fields = [*(use.field for use in node.uses), *node.outs]
        return next((rows.scope for field in fields if (rows := self.rows_of(field))), None)

    def ancestors(self, rows: RowSet) -> Iterator[RowSet]:
        """The row set itself, then what it was made of, back to the data set."""
        yield rows
        while rows.parent is not None:
            rows = self.rowsets[rows.parent]
            yield rows
