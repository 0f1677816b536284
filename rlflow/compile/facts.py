"""What the passes find out, in side tables keyed by ids of the graph.

    own       failed
    infer     specs, rowsets, rows, bounds, layout, scored, corrected, failed
    version   versions, gaps
    live      needed, read, from_forward, dropped
    place     site, ranks, sleeps
    drops     last_by_worker, frees, filtered
    transport edges, fused, state

A field without a spec is poisoned: something before it was refused, so nothing about it is news.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..language.stale import Stale
from .ir import Dim, Node, Spec


class RowSet(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows a field is about, in which order, and what is true of them. Two fields line up iff theirs is the same."""

    id: int
    scope: str  # stream | batch | shard | micro
    size: Dim
    unit: str  # the letter that counts it where it was made: P prompts, T trajectories, B rows
    made_by: int  # node
    how: str = "fresh"  # fresh | expand | form | filter | permute | pad | shard | pack
    parent: int | None = None  # row set
    prompts: str = ""  # the graph's letter for prompts
    at_most: Dim | None = None  # where only the run knows the size, and something bounds it
    # what row operators give, keep and lose: discipline.py
    whole: bool = True  # every group complete
    group: int | None = None  # trajectories a prompt, or the fewest that a filter leaves; None: only the run knows
    parted_by: int | None = None  # the filter that may have left a part of a group
    leaves: bool = False  # a trajectory may have several rows
    padded: bool = False
    multiple: int = 1  # the size is a multiple of this
    balanced: bool = False  # dealt so that contiguous slices weigh the same
    mini_batches: int | None = None  # into how many they are dealt or cut; None: not yet
    cut_for: int | None = None  # the worker on whose ranks they are

    @property
    def holds(self) -> list[str]:
        """What is true of them, as text: `whole`, `multiple=6`."""
        flags = [name for name in ("whole", "leaves", "padded", "balanced", "packed") if getattr(self, name)]
        numbers = {"group": self.group, "multiple": self.multiple if self.multiple > 1 else None}
        numbers |= {"mini_batches": self.mini_batches, "cut_for": self.cut_for}
        return flags + [f"{name}={value}" for name, value in numbers.items() if value is not None]

    @property
    def packed(self) -> bool:
        """Cut into micro-batches."""
        return self.scope == "micro"

    def __str__(self) -> str:
        return {"stream": "the stream", "batch": "the whole batch", "shard": "one DP shard", "micro": "one micro-batch"}[self.scope]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that lives across steps. bytes: of one copy, in letters like N_actor, the parameters of `actor`."""

    name: str
    owner: str  # worker, operator, feedback, or the controller
    bytes: Dim
    in_checkpoint: bool


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """What crosses from one process to another in a step. Bytes count no text."""

    sender: str
    receiver: str
    keyed: tuple[int, ...] = ()  # fields, by key: columns in the pool
    text: tuple[int, ...] = ()  # those of them that are text
    inline: tuple[str, ...] = ()  # what the messages hold themselves
    weights: tuple[int, ...] = ()  # feedbacks: version k + 1
    row_bytes: Dim = Dim.of(0)  # of the fields by key, a row at its own length
    step_bytes: Dim = Dim.of(0)  # of everything


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a worker that goes or comes before a call, because workers share their devices."""

    devices: int
    before: int  # node
    worker: int
    part: str  # weights | optimizer | kv_cache
    action: str  # release: thrown away · resume: room for what is made anew · offload: to the host · onload: back from it


class Scored(msgspec.Struct, frozen=True):
    """What log-probs are of: which policy, at which reading, and which distribution, computed by what kind of engine."""

    whose: str  # the feedback; of frozen weights the worker that loaded them
    reading: str  # frozen | current | served | next
    temperature: float
    top_p: float
    engine: str  # class of the worker: Torch, Embedded
    worker: int  # that scored them


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """How far rows can lag behind the policy in training, and the schedule that this is about; all 0 where nothing is sampled."""

    worst: int  # versions
    prompts: int = 0  # of a batch
    group: int = 0  # trajectories a prompt
    watermark: int = 0  # most trajectories in flight
    queue: int = 0  # batches formed ahead of the one in training
    oversample: int = 0  # groups let in beyond those that the batches hold
    stale: Stale = "wait"  # what becomes of groups that are too slow for it


class Facts(msgspec.Struct, kw_only=True):
    """The side tables. A pass adds to its own and reads those of the passes before it."""

    specs: dict[int, Spec] = {}  # field -> sizes in letters of the graph, role with its detail
    rowsets: list[RowSet] = []
    rows: dict[int, int] = {}  # field -> row set
    bounds: dict[str, Dim] = {}  # letter of the graph that only the run knows -> no more than this
    layout: dict[int, str] = {}  # field -> dense (no token axis) | ragged (stored at true lengths) | packed (in micro-batches)
    scored: dict[int, Scored] = {}  # field of log-probs -> what they are of
    corrected: dict[int, tuple[str, ...]] = {}  # field -> differences (version, temperature ...) that it accounts for
    failed: set[int] = set()  # nodes that a pass refused
    letters: dict[str, int] = {}  # how often a letter was handed out: B, B2, B3
    versions: dict[int, tuple[tuple[str, str], ...]] = {}  # field -> (feedback, reading) that it depends on
    gaps: dict[int, Gap] = {}  # feedback -> how far its rows can lag
    needed: frozenset[int] = frozenset()  # nodes that the next step, or a sink, depends on
    read: frozenset[int] = frozenset()  # fields that a needed node reads, itself or through records and row operators
    from_forward: dict[int, dict[str, str]] = {}  # training node -> field of its record -> field of its forward that stands in for it
    dropped: dict[int, str] = {}  # node -> why no plan has it
    site: dict[int, str] = {}  # node -> process that runs it
    ranks: dict[int, tuple[int, ...]] = {}  # worker -> which of its devices each of its ranks is on
    sleeps: tuple[Shift, ...] = ()  # of one step, in order
    last_by_worker: dict[int, dict[str, int]] = {}  # field, where it is made -> process -> the last node there that reads it
    frees: dict[int, tuple[int, ...]] = {}  # node -> fields, where they are made, that nobody reads after it
    filtered: dict[int, tuple[int, ...]] = {}  # filter -> fields, where they are made, whose dropped rows are freed at it
    edges: tuple[Edge, ...] = ()
    fused: tuple[tuple[int, ...], ...] = ()  # row operators that are one index plan
    state: tuple[Kept, ...] = ()  # all that lives across steps

    def letter(self, name: str) -> Dim:
        """A new size of the graph: B, then B2, B3 ..."""
        count = self.letters.get(name, 0) + 1
        while count > 1 and f"{name}{count}" in self.letters:  # somebody's letter is called B2
            count += 1
        self.letters[name] = count
        new = name if count == 1 else f"{name}{count}"
        self.letters.setdefault(new, 1)
        return Dim.letter(new)

    def at_most(self, size: Dim) -> Dim:
        """A bound of a size: letters that are bounded, and only add to it, replaced by their bounds."""
        while bounded := {x for x in size.letters if x in self.bounds and all(k > 0 for m, k in size.terms.items() if x in m)}:
            size = size.put({letter: self.bounds[letter] for letter in bounded})
        return size

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

    def makers(self, rows: RowSet | None) -> Iterator[int]:
        """The nodes that made the ancestors of a row set, the nearest first; none of a poisoned field's."""
        return (above.made_by for above in self.ancestors(rows)) if rows else iter(())
