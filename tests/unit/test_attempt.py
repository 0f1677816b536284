"""An attempt at a trajectory: names of its requests, where its turns go on, and how it is given up."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from rlflow.attempt import Attempt, current
from rlflow.errors import EngineError, WaitTimeout
from rlflow.measure import collected

A, B = "http://a", "http://b"


def silent(name: str = "17.2.0") -> Attempt:
    """Nobody is to be asked for a turn."""
    return Attempt(name, A, lambda turn: pytest.fail(f"turn {turn} was asked for"), 1.0)


def asking(seconds: float = 5.0) -> tuple[Attempt, queue.Queue[int]]:
    """An attempt that is ready for its turn 1, and the turns it asks for."""
    told: queue.Queue[int] = queue.Queue()
    attempt = Attempt("17.2.0", A, told.put, seconds)
    assert attempt.next_turn() == A
    assert told.empty()
    return attempt, told


def in_thread(attempt: Attempt) -> Future[str]:
    """Where its next turn goes on."""
    threads = ThreadPoolExecutor(1)
    future = threads.submit(attempt.next_turn)
    threads.shutdown(wait=False)
    return future


# --- requests ---------------------------------------------------------------------------------------------------------------------------
def test_requests_have_names_of_their_own() -> None:
    attempt = silent()
    names = []
    for _ in range(2):
        with attempt.request(pytest.fail) as rid:
            names.append(rid)
    assert names == ["17.2.0.0", "17.2.0.1"]


def test_a_thread_sees_its_own_attempt() -> None:
    seen: list[Attempt | None] = []
    attempt = silent("1.0.0")
    with attempt.running():
        assert current() is attempt
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join(5)
    assert (seen, current()) == ([None], None)


def test_what_is_given_up_begins_no_request() -> None:
    attempt = silent()
    attempt.give_up()
    with pytest.raises(EngineError, match=r"attempt 17\.2\.0 was given up"), attempt.request(pytest.fail):
        pass


def test_an_open_request_is_aborted_until_it_is_back_by_the_engine_that_has_it() -> None:
    attempt, aborted, back = silent(), list[tuple[str, str]](), {A: threading.Event(), B: threading.Event()}
    opened = threading.Barrier(3)

    def request(engine: str) -> None:
        with attempt.request(lambda rid: abort(engine, rid)):
            opened.wait(5)
            back[engine].wait(10)

    def abort(engine: str, rid: str) -> None:
        aborted.append((engine, rid))
        if engine == B:
            back[B].set()
            raise EngineError("b is gone")  # so its request fails by itself
        if aborted.count((A, rid)) == 2:  # the first one came before the request
            back[A].set()

    threads = [threading.Thread(target=request, args=(engine,)) for engine in (A, B)]
    for thread in threads:
        thread.start()
    opened.wait(5)
    attempt.give_up()
    for thread in threads:
        thread.join(5)
    assert sorted(engine for engine, _ in aborted) == [A, A, B]
    assert {rid for _, rid in aborted} == {"17.2.0.0", "17.2.0.1"}


def test_an_engine_that_hangs_holds_up_no_abort_on_another_one() -> None:
    attempt, back, opened = silent(), {A: threading.Event(), B: threading.Event()}, threading.Event()

    def hang(rid: str) -> None:
        assert back[B].wait(10), f"{rid} was waited for"
        back[A].set()

    def requests() -> None:
        with attempt.request(hang):
            with attempt.request(lambda _: back[B].set()):
                opened.set()
                assert back[B].wait(20)
            assert back[A].wait(20)

    threads = ThreadPoolExecutor(1)
    running = threads.submit(requests)
    threads.shutdown(wait=False)
    assert opened.wait(5)
    attempt.give_up()
    running.result(5)


# --- turns ------------------------------------------------------------------------------------------------------------------------------
def test_a_turn_goes_on_where_the_controller_says() -> None:
    attempt, told = asking()
    for turn, address in ((1, A), (2, B), (3, B)):
        waiting = in_thread(attempt)
        assert told.get(timeout=5) == turn
        attempt.go_on(turn - 1, "http://late")  # the answer to an earlier one
        assert not waiting.done()
        attempt.go_on(turn, address)
        attempt.go_on(turn, "http://again")
        assert waiting.result(5) == address


def test_what_turns_cost_is_measured() -> None:
    attempt = Attempt("17.2.0", A, lambda turn: attempt.go_on(turn, A if turn < 2 else B), 5.0)
    collected()
    for _ in range(5):
        attempt.next_turn()
    numbers = collected()
    assert numbers.pop("turns/waited_seconds") > 0
    assert numbers == {"turns/continued": 4.0, "turns/moved": 1.0}


def test_branches_ask_one_at_a_time_and_are_numbered_as_they_come() -> None:
    attempt, told = asking()
    branches = [in_thread(attempt) for _ in range(3)]
    for turn in (1, 2, 3):
        assert told.get(timeout=5) == turn
        with pytest.raises(queue.Empty):
            told.get(timeout=0.05)
        attempt.go_on(turn, f"http://{turn}")
    assert sorted(branch.result(5) for branch in branches) == ["http://1", "http://2", "http://3"]


def test_who_waits_for_a_turn_that_is_given_up_is_told_and_so_are_the_branches_behind() -> None:
    attempt, told = asking()
    branches = [in_thread(attempt) for _ in range(3)]
    told.get(timeout=5)
    attempt.refuse()
    for branch in branches:
        with pytest.raises(EngineError, match=r"attempt 17\.2\.0 was given up"):
            branch.result(5)
    attempt.go_on(1, A)
    assert told.empty()


def test_an_answer_that_does_not_come_is_a_wait_with_a_name() -> None:
    attempt, _ = asking(seconds=0.05)
    with pytest.raises(WaitTimeout, match=r"^turn 1 of trajectory 17\.2\.0: the controller said nothing for 0\.05 s$"):
        attempt.next_turn()


def test_all_turns_of_an_evaluation_are_for_the_engine_that_it_is_pinned_to() -> None:
    attempt = Attempt("evaluation-0.3.7", A, None, 0.0)
    assert [attempt.next_turn() for _ in range(3)] == [A, A, A]
