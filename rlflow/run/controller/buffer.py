"""The ready buffer: the groups that are in no batch yet, by tag, so that no rule has to look at them all.

pending → running → landed → ready ──take──→ consumed → finished
          └────── waiting ───────┘
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol, TypeVar

__all__ = ["ReadyBuffer"]


class Tagged(Protocol):
    uid: int
    tag: int


G = TypeVar("G", bound=Tagged)


class ReadyBuffer:
    """Waiting groups and, among them, the ready ones. Tags of waiting groups lie within ``L + 1`` versions, so few keys are kept."""

    def __init__(self) -> None:
        self.waiting: dict[int, set[int]] = {}
        """Tag -> uids of the groups in no batch yet."""
        self.ready: dict[int, set[int]] = {}
        """Tag -> uids of those whose every operator before boarding has returned."""
        self.waiting_count = 0
        self.ready_count = 0

    def register(self, group: Tagged) -> None:
        self.waiting.setdefault(group.tag, set()).add(group.uid)
        self.waiting_count += 1

    def make_ready(self, group: Tagged) -> None:
        self.ready.setdefault(group.tag, set()).add(group.uid)
        self.ready_count += 1

    def leave(self, group: Tagged) -> None:
        """The group waits no longer: it boards or is dropped."""
        _discard(self.waiting, group)
        self.waiting_count -= 1
        if group.uid in self.ready.get(group.tag, ()):
            _discard(self.ready, group)
            self.ready_count -= 1

    def earliest_ready(self, count: int) -> list[int]:
        """Uids of the ``count`` ready groups with the earliest deadlines, ties by uid."""
        picked: list[int] = []
        for tag in sorted(self.ready):
            picked += heapq.nsmallest(count - len(picked), self.ready[tag])
            if len(picked) == count:
                break
        return picked

    def waiting_counts(self) -> dict[int, int]:
        return {tag: len(uids) for tag, uids in self.waiting.items()}

    def ready_counts(self) -> dict[int, int]:
        return {tag: len(uids) for tag, uids in self.ready.items()}

    def uids(self, newest_tag: int | None = None) -> Iterator[int]:
        """Waiting uids with a tag up to ``newest_tag`` (None: all), oldest first."""
        for tag in sorted(self.waiting):
            if newest_tag is not None and tag > newest_tag:
                return
            yield from sorted(self.waiting[tag])


def _discard(by_tag: dict[int, set[int]], group: Tagged) -> None:
    uids = by_tag[group.tag]
    uids.discard(group.uid)
    if not uids:
        del by_tag[group.tag]
