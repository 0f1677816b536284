"""Who is admitted, and in which order; no model."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_requests import request

from rlflow.engines.rollout.embedded.scheduler import WaitingQueue, admissible


def admitted(waiting: list[tuple[int, int]], running: int = 0, longest: int = 0, **limits: int) -> int:
    roomy = {"max_running": 100, "max_total_tokens": 10_000, "max_prefill_tokens": 10_000}
    return admissible(waiting, running, longest, **(roomy | limits))


@pytest.mark.parametrize(
    ("waiting", "more", "expected"),
    [
        ([], {}, 0),
        ([(4, 10)] * 5, {}, 5),
        ([(4, 10)] * 5, {"max_running": 3}, 3),
        ([(4, 10)] * 5, {"max_running": 3, "running": 3, "longest": 10}, 0),
        ([(4, 10)] * 5, {"max_total_tokens": 39}, 3),  # 3 rows × 10 fit in 39, 4 do not
        ([(4, 10), (4, 20), (4, 10)], {"max_total_tokens": 40}, 2),  # 2 × 20 fit, 3 × 20 do not
        ([(4, 10)], {"running": 3, "longest": 100, "max_total_tokens": 399}, 0),  # the longest row sets the width of all
        ([(4, 30), (4, 5)], {"running": 1, "longest": 5, "max_total_tokens": 50}, 0),  # no overtaking: nothing starves
        ([(4, 10), (8, 10), (4, 10)], {"max_prefill_tokens": 16}, 2),  # 2 × 8 fit, 3 × 8 do not
        ([(50, 60), (4, 10)], {"max_prefill_tokens": 16}, 1),  # one alone passes
    ],
)
def test_admissible(waiting: list[tuple[int, int]], more: dict[str, int], expected: int) -> None:
    assert admitted(waiting, **more) == expected


def queue_of(*rids: str, paused: bool = False) -> tuple[WaitingQueue, dict[str, Any]]:
    queue, requests = WaitingQueue(), {rid: request(rid) for rid in rids}
    for r in requests.values():
        queue.arrive(r, paused=paused)
    return queue, requests


def ids(requests: list[Any]) -> list[str]:
    return [r.rid for r in requests]


def test_first_come_first_served() -> None:
    queue, _ = queue_of("a", "b", "c")
    assert ids(queue.take(2)) == ["a", "b"]
    assert ids(queue.waiting) == ["c"]


def test_arrivals_of_a_pause_are_held_until_it_ends() -> None:
    queue, _ = queue_of("a")
    queue.arrive(request("b"), paused=True)
    assert (ids(queue.waiting), ids(queue.held)) == (["a"], ["b"])
    queue.release_held()
    assert (ids(queue.waiting), ids(queue.held)) == (["a", "b"], [])


def test_retracted_requests_take_their_old_places() -> None:
    queue, _ = queue_of("a", "b", "c", "d")
    running = queue.take(2)
    queue.put_back(reversed(running))
    assert ids(queue.waiting) == ["a", "b", "c", "d"]


def test_drop_leaves_held_requests_unless_asked() -> None:
    queue, _ = queue_of("a", "b")
    queue.arrive(request("c"), paused=True)
    assert ids(queue.drop(lambda r: True, held_too=False)) == ["a", "b"]
    assert ids(queue.drop(lambda r: r.rid == "c", held_too=True)) == ["c"]
    assert queue.held == []
