"""The stream, in the rollout process: data set → one trajectory → the row operators that look at no other row.

prompt row i ── dispatch: n rows, once a group ──▶ the j-th ── rollout ── row operators ──▶ one block, one row a leaf
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ..compile.ir import Node
from ..data.batch import Block
from ..data.column import Column
from ..errors import DataError
from ..measure import added
from .graph import GraphView
from .interpret import Interpreter, block_of

Span = tuple[int, int, int]
GROUPS = 1024  # whose dispatched prompts are kept for the siblings to come


class _Dispatched:
    """A prompt for all trajectories of its group; columns is empty until the first of them has it dispatched."""

    def __init__(self) -> None:
        self.once = threading.Lock()
        self.columns: dict[int, Column] = {}


class Stream:
    """What one rollout process needs of the plan. columns: of all data sets; sizes: prompts of each, by node."""

    def __init__(self, view: GraphView, interpreter: Interpreter) -> None:
        self.view, self.interpreter = view, interpreter
        made = {node.id: interpreter.run(node, {}, version=0)[0] for node in view.datasets}
        self.columns: Mapping[int, Column] = {i: column for columns in made.values() for i, column in columns.items()}
        self.sizes = {node: next(iter(columns.values())).rows for node, columns in made.items()}
        empty = [view.graph.nodes[node].name for node, size in self.sizes.items() if not size]
        if empty:
            raise DataError(f"`{empty[0]}` has no prompts")
        after = view.stream.index(view.dispatch) + 1
        self._before = [node for node in view.stream[:after] if node is not view.source]
        self._after = view.stream[after:]
        self._prompts, self._looking = lru_cache(GROUPS)(lambda row, uid: _Dispatched()), threading.Lock()

    def sample(
        self, prompt: tuple[int, int, int], version: int, timeline: int = 0
    ) -> tuple[Block, tuple[int, ...], tuple[Span, ...], dict[str, float]]:
        """One trajectory of (data row, uid, traj_uid).

        Returns its block, the tokens of each leaf row, (version, start, end) of what sampled them, and what was measured.
        Raises what an operator raises.
        """
        row, uid, number = prompt
        with self._looking:
            dispatched = self._prompts(row, uid)
        with dispatched.once:  # siblings come at once: the first one dispatches for all
            if not dispatched.columns:
                dispatched.columns = self._dispatch(row, uid)
        columns = {i: column.between(number, number + 1) for i, column in dispatched.columns.items()}
        numbers: dict[str, float] = {}
        for node in self._after:
            made, noted = self._run(node, columns, version, timeline)
            columns |= made
            numbers = added(numbers, noted, self.view.measure(made))
        return *self._block(columns), numbers

    def _run(
        self, node: Node, columns: Mapping[int, Column], version: int, timeline: int = 0
    ) -> tuple[dict[int, Column], dict[str, float]]:
        return self.interpreter.run(node, self.view.seen(node, columns), version=version, timeline=timeline)

    def _dispatch(self, row: int, uid: int) -> dict[int, Column]:
        """The n trajectories of a prompt. Its group is what the controller drew, so that two epochs of one prompt are two groups."""
        columns = {i: self.columns[i].take(np.array([row])) for i in self.view.source.outs if i in self.columns}
        columns = {i: Column.scalars("i64", [uid]) if self.view.role(i) == "group" else column for i, column in columns.items()}
        made: dict[int, Column] = {}
        for node in self._before:
            made, _ = self._run(node, columns, version=0)
            columns |= made
        return made

    def _block(self, columns: dict[int, Column]) -> tuple[Block, tuple[int, ...], tuple[Span, ...]]:
        """Only what somebody reads later is kept."""
        tokens = columns[self.view.tokens]
        kept = {i: column for i, column in columns.items() if i in self.view.crossing}
        return block_of(kept), tuple(tokens.lengths().tolist()), self._spans(columns)

    def _spans(self, columns: dict[int, Column]) -> tuple[Span, ...]:
        """Runs of one version over the sampled tokens, leaf after leaf."""
        if self.view.token_versions is None:
            return ()
        versions = columns[self.view.token_versions].values
        versions = versions[versions >= 0]
        cuts = [*np.flatnonzero(np.diff(versions, prepend=-1)).tolist(), len(versions)]
        return tuple((int(versions[a]), a, b) for a, b in pairwise(cuts))
