"""Suppression at the call: which comments a graph has, what they hide, and which of them hide nothing.

trace ──ignores──▶ graph.ignores ──hides──▶ a pass goes on as if nothing was wrong
                                 ──part───▶ told | suppressed
                                 ──idle───▶ RLF017 at the comment
"""

from __future__ import annotations

from collections.abc import Iterator

from ..language.comments import Comment, suppressions
from ..language.diagnostic import Diagnostic, nearest
from ..language.source import Place
from ..language.trace import Trace
from .codes import CODES, SUPPRESSIBLE
from .ir import Graph, Ignore, Lines

SAY = "`# rlflow: ignore[RLF210]`"


def ignores(trace: Trace) -> tuple[Ignore, ...]:
    """The comments of the pipeline function, and those at the lines of helpers that this trace went through."""
    ran = [*(n.call.place for n in trace.nodes), *(w.call.place for w in trace.workers), *(f.call.place for f in trace.feedbacks)]
    ran += [call.place for f in trace.feedbacks for _, call in f.closes] + [via for callers in trace.via.values() for via in callers]
    code = trace.code
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    found: list[Ignore] = []
    for file in sorted({place.file for place in ran} | {code.co_filename}):
        for comment in suppressions(file):
            reached = any(_touch(file, comment.span, place) for place in ran)
            mine = file == code.co_filename and code.co_firstlineno <= comment.span[1] and comment.span[0] <= last
            if reached or mine:
                found.append(_ignore(trace, file, comment, judged=reached or not comment.calls))
    return tuple(found)


def _touch(file: str, span: tuple[int, int], place: Place) -> bool:
    return place.file == file and span[0] <= place.line <= span[1]


def _ignore(trace: Trace, file: str, comment: Comment, *, judged: bool) -> Ignore:
    """Its own lines, and those lines of helpers that only its own lines lead to."""
    covers = [Lines(file, *comment.span)]
    callers: dict[Lines, list[Place]] = {}
    for node in trace.nodes:
        if node.via is not None:
            place = node.call.place
            callers.setdefault(Lines(place.file, place.line, place.end_line), []).append(node.via)
    covers += [lines for lines, places in callers.items() if all(_touch(file, comment.span, place) for place in places)]
    return Ignore(at=comment.place, codes=comment.codes, covers=tuple(covers), judged=judged)


def hides(graph: Graph, found: Diagnostic) -> bool:
    """A comment at the place of the mistake turns it off. Where an error does, a pass goes on as if nothing was wrong."""
    return any(_hides(ignore, found) for ignore in graph.ignores)


def _hides(ignore: Ignore, found: Diagnostic) -> bool:
    if found.code not in SUPPRESSIBLE or found.code not in ignore.codes:
        return False
    at = found.where
    return any(lines.file == at.file and lines.first <= at.line <= lines.last for lines in ignore.covers)


def part(graph: Graph, found: list[Diagnostic]) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """What is told, idle comments included, and what is suppressed."""
    suppressed = [d for d in found if hides(graph, d)]
    told = [d for d in found if d not in suppressed]
    accepted = not any(d.severity == "error" for d in told)  # else what follows from an error was not judged
    return [*told, *(d for ignore in graph.ignores for d in _idle(ignore, suppressed, accepted))], suppressed


def _idle(ignore: Ignore, suppressed: list[Diagnostic], accepted: bool) -> Iterator[Diagnostic]:
    if not ignore.codes:
        yield _warn(ignore, "this comment names no code", "say which", f"name it: {SAY}")
    for code in ignore.codes:
        if code not in CODES:
            near = nearest(code, sorted(SUPPRESSIBLE))
            yield _warn(ignore, f"there is no code `{code}`{near}", "suppresses nothing", "delete it, or name a code")
        elif code not in SUPPRESSIBLE:
            help = f"mend it, and delete the comment: `rlflow explain {code}`"
            yield _warn(ignore, f"`{code}` cannot be suppressed: {CODES[code]}", "nothing can run after it", help)
        elif accepted and ignore.judged and not any(d.code == code and _hides(ignore, d) for d in suppressed):
            yield _warn(ignore, f"`{code}` is not told here", "suppresses nothing", "delete it")


def _warn(ignore: Ignore, message: str, label: str, help: str) -> Diagnostic:
    return Diagnostic(code="RLF017", message=message, where=ignore.at, label=label, help=help, severity="warning")
