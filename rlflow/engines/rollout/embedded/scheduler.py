"""Who waits and who is admitted; no model, no clock.

held ──release_held──▶ waiting ──admit──▶ (running, elsewhere)
                         ▲──────put_back──────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlflow.engines.rollout.embedded.request import Request

__all__ = ["WaitingQueue", "admissible"]


def admissible(
    waiting: Sequence[tuple[int, int]], running: int, longest: int, *, max_running: int, max_total_tokens: int, max_prefill_tokens: int
) -> int:
    """How many of the first waiting requests can start now, first come first served.

    Args:
        waiting: (tokens to prefill, longest possible length) of each waiting request, in order of arrival; both as padded.
        running, longest: rows that run, and the longest that any of them can become, as padded.

    The K/V slabs are rectangular (rows × the longest row), so that is what is held against `max_total_tokens`: an admitted
    request always has room up to its limit. The prefill batch is rectangular too. One request alone always passes both limits:
    unpadded it fits, or it would have been refused.
    """
    widest = 0
    for count, (prefill, limit) in enumerate(waiting):
        longest, widest = max(longest, limit), max(widest, prefill)
        rows = running + count + 1
        fits = rows <= max_running and (rows == 1 or rows * longest <= max_total_tokens)
        if not fits or (count > 0 and (count + 1) * widest > max_prefill_tokens):
            return count
    return len(waiting)


class WaitingQueue:
    """Requests that do not run: `waiting` in order of arrival, and `held`, which came during a pause."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.held: list[Request] = []
        self._arrivals = 0

    def arrive(self, request: Request, *, paused: bool) -> None:
        request.order = self._arrivals
        self._arrivals += 1
        (self.held if paused else self.waiting).append(request)

    def release_held(self) -> None:
        self.waiting += self.held
        self.held = []

    def put_back(self, requests: Iterable[Request]) -> None:
        """Retracted requests take the place of their arrival again."""
        self.waiting = sorted([*requests, *self.waiting], key=lambda r: r.order)

    def take(self, count: int) -> list[Request]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def drop(self, matches: Callable[[Request], bool], *, held_too: bool) -> list[Request]:
        dropped = [r for r in self.waiting if matches(r)]
        self.waiting = [r for r in self.waiting if not matches(r)]
        if held_too:
            dropped += [r for r in self.held if matches(r)]
            self.held = [r for r in self.held if not matches(r)]
        return dropped
