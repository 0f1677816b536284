"""Numbers that an operator leaves beside its result."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from rlflow.measure import added, collected, note, note_correlation, note_mean, settled


def in_a_thread_of_its_own(*steps: object) -> object:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: [step() for step in steps if callable(step)][-1]).result(timeout=10)


def test_nothing_is_kept_before_somebody_asks() -> None:
    assert in_a_thread_of_its_own(lambda: note("failed", 1.0), collected) == {}


def test_notes_of_one_name_add_up() -> None:
    notes = [lambda: note("failed", 2.0), lambda: note("cut", 1.0), lambda: note("failed", 3.0)]
    assert in_a_thread_of_its_own(collected, *notes, collected) == {"failed": 5.0, "cut": 1.0}


def test_collecting_clears() -> None:
    assert in_a_thread_of_its_own(collected, lambda: note("failed", 1.0), collected, collected) == {}


def test_threads_do_not_hear_each_other() -> None:
    together = Barrier(2)

    def one(value: float) -> dict[str, float]:
        collected()
        together.wait(timeout=10)
        note("failed", value)
        together.wait(timeout=10)
        return collected()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(one, (1.0, 2.0), timeout=20)) == [{"failed": 1.0}, {"failed": 2.0}]


def test_a_mean_is_over_the_rows_of_all_calls() -> None:
    first = in_a_thread_of_its_own(collected, lambda: note_mean("reward/format", 3.0, rows=3), collected)
    second = in_a_thread_of_its_own(collected, lambda: note_mean("reward/format", 0.0, rows=1), lambda: note("failed", 2.0), collected)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert settled(added(first, second)) == {"reward/format": 0.75, "failed": 2.0}


def test_a_mean_of_no_row_is_left_out() -> None:
    assert settled({"reward/format#sum": 0.0, "reward/format#rows": 0.0}) == {}


def correlation(*calls: tuple[list[float], list[float]]) -> object:
    def noted(x: list[float], y: list[float]) -> object:
        return in_a_thread_of_its_own(collected, lambda: note_correlation("r", x, y), collected)

    return settled(added(*(noted(x, y) for x, y in calls))).get("r")  # type: ignore[arg-type]


def test_a_correlation_is_over_the_rows_of_all_calls() -> None:
    # x 1 2 3 4, y 2 1 4 3: means 2.5, covariance (1.5·.5 + .5·1.5 + .5·1.5 + 1.5·.5) = 3 of 5 and 5
    assert correlation(([1.0, 2.0], [2.0, 1.0]), ([3.0], [4.0]), ([4.0], [3.0])) == 0.6
    assert correlation(([1.0, 2.0], [-1.0, -2.0])) == -1.0


def test_a_correlation_with_what_is_the_same_for_all_is_zero() -> None:
    assert correlation(([0.1] * 999, [float(n) for n in range(999)])) == 0.0
    assert correlation(([float(n) for n in range(9)], [7.0] * 9)) == 0.0
    assert correlation(([0.0] * 9, [0.0] * 9)) == 0.0
    assert correlation(([3.0], [4.0])) == 0.0


def test_a_correlation_of_no_row_is_left_out() -> None:
    assert correlation(([], [])) is None
