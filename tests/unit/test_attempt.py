"""An attempt at a trajectory: names of its requests, and how it is given up."""

from __future__ import annotations

import threading

import pytest

from rlflow.attempt import Attempt, current
from rlflow.errors import EngineError


def test_requests_have_names_of_their_own() -> None:
    attempt = Attempt("17.2.0")
    names = []
    for _ in range(2):
        with attempt.request() as rid:
            names.append(rid)
    assert names == ["17.2.0.0", "17.2.0.1"]


def test_a_thread_sees_its_own_attempt() -> None:
    seen: list[Attempt | None] = []
    attempt = Attempt("1.0.0")
    with attempt.running():
        assert current() is attempt
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join(5)
    assert (seen, current()) == ([None], None)


def test_what_is_given_up_begins_no_request() -> None:
    attempt = Attempt("17.2.0")
    attempt.give_up(lambda rid: pytest.fail("none is open"))
    with pytest.raises(EngineError, match=r"trajectory 17\.2\.0 was given up"), attempt.request():
        pass


def test_an_open_request_is_aborted_until_it_is_back() -> None:
    attempt, aborted, back = Attempt("17.2.0"), list[str](), threading.Event()
    opened = threading.Event()

    def request() -> None:
        with attempt.request():
            opened.set()
            back.wait(10)

    def abort(rid: str) -> None:
        aborted.append(rid)
        if len(aborted) == 2:  # the first one came before the request
            back.set()

    thread = threading.Thread(target=request)
    thread.start()
    assert opened.wait(5)
    attempt.give_up(abort)
    thread.join(5)
    assert aborted == ["17.2.0.0", "17.2.0.0"]
