"""When a request may begin: decisions on numbers, without a clock of their own.

Pace.book(now)    seconds until the next request may begin; books it        at most `per_second` of them in any second, evenly spaced
Pace.hold(until)  none begins before                                        a server said Retry-After
backoff           seconds before another attempt                            b, 2 b, 4 b ... up to a minute, half of it drawn
retry_after       what the header of that name says, in seconds
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

__all__ = ["LONGEST_S", "Pace", "backoff", "retry_after"]

LONGEST_S = 60.0  # of one wait


class Pace:
    """Evenly spaced starts. Times are seconds of one clock, whichever.

    per_second=4: five requests at second 10 begin at 10, 10.25, 10.5, 10.75 and 11. None: at once.
    """

    def __init__(self, per_second: float | None) -> None:
        self._gap = 0.0 if per_second is None else 1.0 / per_second
        self._free_at = float("-inf")

    def book(self, now: float) -> float:
        start = max(now, self._free_at)
        self._free_at = start + self._gap
        return start - now

    def hold(self, until: float) -> None:
        self._free_at = max(self._free_at, until)


def backoff(tries: int, first_s: float, drawn: float) -> float:
    """Seconds to wait after so many tries; drawn: 0 .. 1, so that those that failed together do not come back together.

    first_s=1: 0.5 .. 1 after the first try, 1 .. 2 after the second.
    """
    return min(first_s * 2.0 ** (tries - 1), LONGEST_S) * (0.5 + 0.5 * drawn)


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a Retry-After asks for, a number of seconds or a date (RFC 9110, 10.2.3), a minute at most; None if it says none.

    now: seconds since 1970.
    """
    if header is None:
        return None
    try:
        seconds = float(header) if header.strip().replace(".", "", 1).isdigit() else parsedate_to_datetime(header).timestamp() - now
    except ValueError:
        return None
    return min(max(seconds, 0.0), LONGEST_S)
