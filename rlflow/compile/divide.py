"""Sizes that divide: what is cut, by how many, and the nearest numbers that would do.

512 rows over dp 3 × 2 mini-batches    rows come in multiples of lcm(8, 6) = 24: 63 or 66 prompts, or padded to 516
"""

from __future__ import annotations

from math import gcd, lcm

from ..language.diagnostic import Diagnostic, Label
from ..language.source import argument_place
from .facts import Facts, RowSet
from .ir import Dim, Graph, Node, Worker
from .places import argument, rewritten


def divides(graph: Graph, facts: Facts, node: Node, rows: RowSet) -> Diagnostic | None:
    """Whether `rows` can be cut as `node` cuts them; the diagnostic, where they cannot, or where nobody can tell."""
    minis = node.params.get("mini_batches", 1)
    if node.rows == "shard":
        worker = graph.workers[node.params["on"]["$worker"]]
        return None if _divisible(rows, worker.dp_size * minis) else _Cut(graph, facts, node, rows, minis, worker).refused()
    if node.rows == "permute" and not _divisible(rows, minis):
        return _Cut(graph, facts, node, rows, minis, None).refused()
    return None


def _divisible(rows: RowSet, ways: int) -> bool:
    """Both the factor of its polynomial and the multiple it was padded to divide the size, so their least common multiple does."""
    factor = rows.size.content
    return factor == 0 or lcm(factor, rows.multiple) % ways == 0


class _Cut:
    """One cut that does not come out even. worker: whose ranks get the pieces; None where rows are dealt to mini-batches only."""

    def __init__(self, graph: Graph, facts: Facts, node: Node, rows: RowSet, minis: int, worker: Worker | None) -> None:
        self.graph, self.facts, self.node, self.rows, self.minis, self.worker = graph, facts, node, rows, minis, worker
        self.dp = None if worker is None else worker.dp_size
        self.ways = minis * (self.dp or 1)
        way = list(facts.ancestors(rows))
        self.formed = next((r for r in way if r.how == "form"), None)
        padded = next((r for r in way if r.how == "pad"), None)
        self.form, self.pad = ((graph.nodes[r.made_by] if r else None) for r in (self.formed, padded))
        self.filtered = any(r.how == "filter" for r in way[: way.index(self.formed)]) if self.formed else False

    def refused(self) -> Diagnostic:
        parts = ([f"dp_size={self.dp}"] if self.dp else []) + ([f"mini_batches={self.minis}"] if self.minis != 1 or not self.dp else [])
        related = [Label(self.form.at, f"the batch of {self.formed.size} rows is formed here")] if self.form and self.formed else []
        if self.pad is not None:
            related.append(Label(argument(self.pad, "multiple"), f"padded to a multiple of {self.pad.params['multiple']}"))
        if (worker := self.worker) is not None and worker.dp_size > 1:
            related.append(Label(argument_place(worker.at, "dp") or worker.at, f"`{worker.name}` has dp={worker.dp_size}"))
        notes, help = self._ways_out()
        return Diagnostic(
            code="RLF510",
            message=f"{self._how_many()} by {self.ways} ({' × '.join(parts)})",
            where=self.node.at,
            label=f"cut into {self.ways}" if self.dp else f"dealt to {self.ways}",
            related=tuple(related),
            notes=notes,
            help=help,
        )

    def _how_many(self) -> str:
        size = self.rows.size
        return f"{size} rows do not divide" if size.number is not None else f"nothing says that {size} rows divide"

    def _ways_out(self) -> tuple[tuple[str, ...], str]:
        size = self.rows.size.number
        if self.pad is not None:
            multiple = lcm(self.ways, self.pad.params["multiple"])
            note = f"rows that are a multiple of {self.pad.params['multiple']} need not be one of {self.ways}; lcm = {multiple}"
            return (note,), f"pad to both: `{rewritten(self.pad, 'multiple', str(multiple))}`"
        each = None if self.filtered else self._rows_a_prompt()
        if each is None or self.form is None:
            return ("only the run knows how many rows there are",), f"pad first: `pad(rows, multiple={self.ways})`"
        prompts, count = self.form.params["prompts"], each.content
        step = lcm(count, self.ways) // count
        note = f"{prompts} prompts × {each} = {self.rows.size}; rows come in multiples of lcm({count}, {self.ways}) = {count * step}, "
        legal = " or ".join(f"`prompts={n}`" for n in _around(prompts, step))
        pad = f"`pad(rows, multiple={self.ways})`"
        others = self._other_numbers(prompts, count)
        to = f", or pad to {-(-size // self.ways) * self.ways}: {pad}" if size is not None else f", or pad: {pad}"
        return (f"{note}prompts in multiples of {step}", *others), legal + to

    def _rows_a_prompt(self) -> Dim | None:
        """How many rows a prompt yields; None where that differs from prompt to prompt."""
        stream = self.facts.rowsets[self.formed.parent] if self.formed and self.formed.parent is not None else None
        return stream.size.over(Dim.letter(stream.prompts)) if stream else None

    def _other_numbers(self, prompts: int, count: int) -> tuple[str, ...]:
        """With everything else as it is: group sizes, ranks and mini-batches near those asked for."""
        found, size = list[str](), prompts * count
        dispatch = self._dispatch()
        if dispatch is not None:
            (letter, asked), others = next(iter(dispatch.bound.items())), count // next(iter(dispatch.bound.values()))
            step = self.ways // gcd(self.ways, prompts * others)
            found += [f"`{dispatch.bound_by[letter]}={n}`" for n in _around(asked, step)]
        if self.dp is not None:
            found += [f"`dp={n}`" for n in _divisors_around(size, self.dp, self.minis)]
        if self.minis > 1:
            found += [f"`mini_batches={n}`" for n in _divisors_around(size, self.minis, self.dp or 1)]
        return (f"with {prompts} prompts these alone would do: {', '.join(found)}",) if found else ()

    def _dispatch(self) -> Node | None:
        """The call whose integer parameter is a factor of the rows a prompt yields."""
        made = (self.graph.nodes[node] for node in self.facts.makers(self.rows))
        return next((node for node in made if len(node.bound) == 1 and node.rows == "expand"), None)


def _around(asked: int, step: int) -> list[int]:
    """The multiples of `step` next to a number, from 1 on."""
    return sorted({n for n in (asked // step * step, -(-asked // step) * step) if n > 0})


def _divisors_around(size: int, asked: int, times: int) -> list[int]:
    """The numbers next to `asked` whose product with `times` divides `size`."""
    if size % times:
        return []
    legal = [n for n in range(1, size // times + 1) if size // times % n == 0]
    below, above = [n for n in legal if n < asked], [n for n in legal if n > asked]
    return [*below[-1:], *above[:1]]
