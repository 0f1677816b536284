"""`# rlflow: ignore[RLF210]` in a source file: where it stands, and which lines it speaks of.

reference.log_probs(...)  # rlflow: ignore[RLF210] measured by hand      its own statement, on any line of it
# rlflow: ignore[RLF210, RLF307]                                         alone: the statement below
trained = actor.train(
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from .source import Place, lines, tree

IGNORE = re.compile(r"#\s*rlflow:\s*ignore\b\s*(?:\[([^\]]*)\])?")
Span = tuple[int, int]  # first and last line


class Comment(NamedTuple):
    """One suppression comment."""

    place: Place
    codes: tuple[str, ...]
    span: Span  # the lines that it speaks of: whole statements
    calls: bool  # there is a call in them


@cache
def suppressions(file: str) -> tuple[Comment, ...]:
    """The suppression comments of a file, in order."""
    if not any(IGNORE.search(line) for line in lines(file)):  # most files: not worth a tokenizer
        return ()
    return tuple(_comments(file))


def _comments(file: str) -> Iterator[Comment]:
    text = lines(file)
    called = {node.lineno for node in ast.walk(tree(file)) if isinstance(node, ast.Call)}
    for token in _tokens("\n".join(text)):
        found = IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if found is not None:
            (line, column), before = token.start, text[token.start[0] - 1]
            start = len(before[: column + found.start()].encode())
            place = Place(file, line, start, line, start + len(found[0].encode()))
            codes = tuple(code.strip().upper() for code in (found[1] or "").split(",") if code.strip())
            span = _span(file, line, alone=not before[:column].strip())
            yield Comment(place, codes, span, any(span[0] <= at <= span[1] for at in called))


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):  # the file changed since it was imported
        return


def _span(file: str, line: int, *, alone: bool) -> Span:
    inside = [span for span in _statements(file) if span[0] <= line <= span[1]]
    if not inside and alone:
        while line < len(lines(file)) and lines(file)[line - 1].lstrip().startswith("#"):
            line += 1
        inside = [span for span in _statements(file) if span[0] <= line <= span[1]]
    return (min(first for first, _ in inside), max(last for _, last in inside)) if inside else (line, line)


@cache
def _statements(file: str) -> tuple[Span, ...]:
    """The lines of each statement that holds no other."""
    found = (
        node for node in ast.walk(tree(file)) if isinstance(node, ast.stmt) and not hasattr(node, "body") and not hasattr(node, "cases")
    )
    return tuple((node.lineno, node.end_lineno or node.lineno) for node in found)
