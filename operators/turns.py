"""The turn loop: a prompt in, the leaves of one played trajectory out. It knows no engine: `ask` is the one place that asks for a turn.

    prompt (, opening) ── ask ──▶ the model's turn ── environment ──▶ reply ── ask ──▶ ... until the episode is over, or is cut:
        max_turns             turns of the model on the way to a leaf
        max_response_tokens   its own tokens on the way to a leaf: what is left bounds the next turn
        context               tokens that the model has positions for

    forks=(1, 2): one first turn, two second turns after its reply, each going on alone

         prompt ── A1 ── U1 ──┬── A2 ── U2 ── A3      leaf 0
                              └── A2' ── U2' ── A3'   leaf 1

Own tokens go back as the ids that were sampled, never as text that is encoded again. Branches are played at the same time, each with
an episode of its own that was brought to the fork by the same texts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from rlflow.errors import DataError
from rlflow.measure import collected, note

from .dialogue import DEFAULT_LIMITS, Dialogue, EnvironmentLimits
from .environment import Environment
from .flatten import Turn, flatten
from .samples import Played

if TYPE_CHECKING:
    from rlflow.engines.rollout import Generation

__all__ = ["Ask", "Course", "Rules", "TurnLoop"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How an episode is played. forks: continuations of each turn of the model, the first one first; one each beyond."""

    environment: Environment | None = None
    max_turns: int = 1
    max_response_tokens: int | None = None
    forks: tuple[int, ...] = ()
    limits: EnvironmentLimits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise DataError(f"max_turns={self.max_turns}: give at least one turn")
        if self.max_response_tokens is not None and self.max_response_tokens < 1:
            raise DataError(f"max_response_tokens={self.max_response_tokens}: give at least one token, or None for no bound")
        if any(width < 1 for width in self.forks):
            raise DataError(f"forks={self.forks}: each turn has at least one continuation")

    def width(self, turn: int) -> int:
        """Continuations that the model's turn number `turn` (from 0) has."""
        return self.forks[turn] if turn < len(self.forks) else 1


@dataclass(frozen=True, kw_only=True)
class Course:
    """Where a trajectory stands when its next turn is asked for. history: all tokens so far; turn: of the model, from 0.

    branch: which continuation was taken at each fork so far; () where there was none. room: tokens that the turn may have.
    """

    history: tuple[int, ...]
    turn: int = 0
    branch: tuple[int, ...] = ()
    spent: int = 0  # own tokens so far
    room: int = 0


class Ask(Protocol):
    """The model's next turn. Raises EngineError naming the trajectory."""

    def __call__(self, course: Course) -> Generation: ...


@dataclass
class _Node:
    """A turn of the tree; the first one is the prompt."""

    turn: Turn
    text: str = ""
    reward: float = 0.0
    is_truncated: bool = False
    next: list[_Node] = field(default_factory=list)


class TurnLoop:
    """Plays one trajectory. text: of ids. max_new_tokens: of a turn. context: None where nobody knows it."""

    def __init__(
        self, ask: Ask, tokenizer: Any, text: Callable[[Sequence[int]], str], rules: Rules, *, max_new_tokens: int, context: int | None
    ) -> None:
        self._ask, self._tokenizer, self._text, self._rules = ask, tokenizer, text, rules
        self._max_new_tokens, self._context = max_new_tokens, context

    def play(self, prompt: Sequence[int], answer: str, *, seed: int, place: str) -> list[Played]:
        """The leaves, in the order of their branches. place: of the trajectory, for errors and the log.

        Raises what `ask` and `Dialogue` raise.
        """
        self._place = place
        root = _Node(Turn(tokens=tuple(prompt), own=False))
        with self._begun(prompt, answer, seed) as dialogue:
            opening = tuple(dialogue.opening) if dialogue else ()
            last = root
            if opening:
                last = _Node(Turn(tokens=opening, own=False))
                root.next.append(last)
            last.next = self._continued(Course(history=(*prompt, *opening)), dialogue)
        nodes, turns = _listed(root)
        ends = [node for node in nodes if not node.next]
        return [
            Played(row=row, text=end.text, reward=end.reward, is_truncated=end.is_truncated)
            for row, end in zip(flatten(turns), ends, strict=True)
        ]

    def _begun(self, prompt: Sequence[int], answer: str, seed: int) -> Any:
        rules = self._rules
        if rules.environment is None:
            return nullcontext(None)
        text = self._text(prompt)
        return Dialogue(rules.environment, self._tokenizer, text, answer, seed=seed, place=self._place, limits=rules.limits)

    # --- forks ------------------------------------------------------------------------------------------------------------------------
    def _continued(self, course: Course, dialogue: Dialogue | None) -> list[_Node]:
        """The model's turns after `course`, each with all that follows it."""
        width = self._rules.width(course.turn)
        if width == 1:
            return [self._turn(course, dialogue)]
        courses = [replace(course, branch=(*course.branch, number)) for number in range(width)]
        with ThreadPoolExecutor(width - 1, thread_name_prefix="branch") as threads:
            # in a context of its own, which says whose attempt it is: giving that up ends the requests of every branch
            others = [threads.submit(copy_context().run, self._branch, other, dialogue) for other in courses[1:]]
            first = self._turn(courses[0], dialogue)
        played = [other.result() for other in others]
        for _, numbers in played:
            for name, value in numbers.items():
                note(name, value)
        return [first, *(node for node, _ in played)]

    def _branch(self, course: Course, dialogue: Dialogue | None) -> tuple[_Node, dict[str, float]]:
        """A continuation in a thread of its own, with an episode of its own, and what was noted there."""
        collected()
        with nullcontext() if dialogue is None else dialogue.forked(course.turn) as own:
            return self._turn(course, own), collected()

    # --- turns ------------------------------------------------------------------------------------------------------------------------
    def _turn(self, course: Course, dialogue: Dialogue | None) -> _Node:
        """One turn of the model, the reply to it, and what follows."""
        state = 0 if dialogue is None else dialogue.state
        said = self._ask(replace(course, room=self._room(course)))
        ids = tuple(said.output_ids)
        node = _Node(Turn(tokens=ids, own=True, log_probs=said.log_probs, versions=_versions(said), state=state), text=self._text(ids))
        node.is_truncated = said.finish_reason.type == "length"
        if dialogue is None:
            return node
        reply = dialogue.reply(node.text)
        node.reward, node.turn = dialogue.reward, replace(node.turn, reward=dialogue.step_reward)
        after = replace(course, history=(*course.history, *ids), spent=course.spent + len(ids), turn=course.turn + 1)
        if reply is None:
            return node
        if self._is_cut(after, reply):
            node.is_truncated = True
            return node
        answer = _Node(Turn(tokens=tuple(reply), own=False))
        answer.next = self._continued(replace(after, history=(*after.history, *reply)), dialogue)
        node.next.append(answer)
        return node

    def _room(self, course: Course) -> int:
        bounds = [self._max_new_tokens]
        if self._context is not None:
            bounds.append(max(1, self._context - len(course.history)))
        if self._rules.max_response_tokens is not None:
            bounds.append(self._rules.max_response_tokens - course.spent)
        return min(bounds)

    def _is_cut(self, course: Course, reply: Sequence[int]) -> bool:
        """Whether an episode that is not over ends here all the same; the log and the metric episodes/cut tell."""
        budget, why = self._rules.max_response_tokens, ""
        if course.turn >= self._rules.max_turns:
            why = "max_turns"
        elif budget is not None and course.spent >= budget:
            why = f"max_response_tokens: all {budget} are used up"
        elif self._context is not None and len(course.history) + len(reply) >= self._context:
            why = f"after {len(reply)} more tokens the model's context of {self._context} is full"
        if why:
            _log.warning("%s: the episode was still going after %d turns and ends there (%s)", self._place, course.turn, why)
            note("episodes/cut", 1.0)
        return bool(why)


def _versions(said: Generation) -> tuple[int, ...]:
    """Of the weights that sampled each token: several where a sync came in between."""
    return tuple(int(span.version) for span in said.spans for _ in range(span.start, span.end))


def _listed(root: _Node) -> tuple[list[_Node], list[Turn]]:
    """The nodes depth first, parents before children, and their turns with the numbers of their parents."""
    nodes, turns = list[_Node](), list[Turn]()

    def visit(node: _Node, parent: int | None) -> None:
        number = len(nodes)
        nodes.append(node)
        turns.append(replace(node.turn, parent=parent))
        for following in node.next:
            visit(following, number)

    visit(root, None)
    return nodes, turns
