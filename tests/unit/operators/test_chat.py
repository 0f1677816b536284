"""The client of chat completions, against a real server that misbehaves on purpose; and its decisions about time, without a clock."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from chat_server import Handler, closes, completion, hangs, raw, says, serving, status, tears  # beside this file

from operators import chat
from operators.chat import ChatServer, Reply, ask
from operators.pace import Pace, backoff, retry_after
from rlflow.errors import UsageError


def server_at(url: str, **options: Any) -> ChatServer:
    return ChatServer(**{"url": url, "model": "judge", "backoff_s": 0.01, "request_timeout_s": 20.0, "timeout_s": 60.0} | options)


# --- the contract ------------------------------------------------------------------------------------------------------------------------
def test_replies_come_back_in_the_order_of_the_prompts() -> None:
    with serving({str(n): [says(f"reply {n}")] for n in range(40)}) as server:
        assert [reply.text for reply in ask(server_at(server.url), [str(n) for n in range(40)])] == [f"reply {n}" for n in range(40)]


def test_what_is_sent_is_a_chat_completion() -> None:
    with serving() as server:
        ask(server_at(server.url + "/", max_tokens=9, temperature=0.5), ["is it?"])
        ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert body == {"model": "judge", "messages": [{"role": "user", "content": "is it?"}], "max_tokens": 9, "temperature": 0.5}
    assert "Authorization" not in headers


def test_what_is_left_to_the_server_is_not_sent() -> None:
    with serving() as server:
        ask(server_at(server.url, max_tokens=None, temperature=None), ["is it?"])
        assert server.requests[0][2].keys() == {"model", "messages"}


def chunked(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    body = completion("in pieces")
    for piece in (body[:7], body[7:]):
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        handler.wfile.flush()
    handler.wfile.write(b"0\r\n\r\n")


def test_answers_in_chunks_and_answers_that_end_with_their_connection() -> None:
    acts = {"a": [chunked], "b": [raw(b"HTTP/1.0 200 OK\r\n\r\n" + completion("to the end"))]}
    with serving(acts) as server:
        assert [reply.text for reply in ask(server_at(server.url), ["a", "b"])] == ["in pieces", "to the end"]


def test_callers_that_are_first_at_once_share_one_loop_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("_loop", "_line"):
        make = getattr(chat, name).__wrapped__

        def slow(*given: Any, name: str = name, make: Any = make) -> Any:
            made.append(name)
            time.sleep(0.05)
            return make(*given)

        monkeypatch.setattr(chat, name, cache(slow))
    with serving() as server, ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, server_at(server.url), ["is it?"]) for _ in range(4)]
        assert [one.result(timeout=60)[0].failed for one in asked] == [""] * 4
    assert sorted(made) == ["_line", "_loop"]


def test_no_prompts() -> None:
    assert ask(server_at("http://127.0.0.1:9/v1"), []) == []


# --- what is tried again -----------------------------------------------------------------------------------------------------------------
BUSY = status(429, Retry_After="0")


@pytest.mark.parametrize(
    "first",
    [BUSY, status(500), status(503, "no model"), status(408), closes, tears, raw(b"what?\r\n\r\n"), says(None),
     status(200, "no json"), status(200, "{}"), status(200, '{"choices": []}'), lambda handler: handler.send(200, b"\xff{")],
)  # fmt: skip
def test_what_may_do_better_is_tried_again(first: Any) -> None:
    with serving({"a": [first, first, says("at last")]}) as server:
        assert ask(server_at(server.url), ["a", "b"]) == [Reply("at last"), Reply("Score: 1")]
        assert server.times == {"a": 3, "b": 1}


def test_it_ends_after_so_many_attempts_and_says_what_came_last() -> None:
    with serving({"a": [status(500), status(503, "no model")]}) as server:
        (reply,) = ask(server_at(server.url, attempts=3), ["a"])
        assert server.times["a"] == 3
    assert reply == Reply("", "error", "3 attempts, the last one: status 503: no model")


@pytest.mark.parametrize("code", [400, 401, 404, 422, 302])
def test_what_will_not_do_better_is_not(code: int) -> None:
    with serving(other=status(code, "no", Location="http://127.0.0.1:1/")) as server:
        assert ask(server_at(server.url), ["a"]) == [Reply("", "error", f"status {code}: no")]
        assert server.times == {"a": 1}


def test_a_server_that_hangs_costs_its_prompt_only() -> None:
    with serving({"a": [hangs]}) as server:
        first, second = ask(server_at(server.url, attempts=2, request_timeout_s=0.5), ["a", "b"])
        assert server.times == {"a": 2, "b": 1}
    assert first == Reply("", "timeout", "2 attempts, the last one: no answer within 0.5 s")
    assert second.text == "Score: 1"


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        (reply,) = ask(server_at(f"http://127.0.0.1:{taken.getsockname()[1]}/v1", attempts=2), ["a"])
    assert (reply.failed, reply.detail.startswith("2 attempts, the last one: ConnectionRefusedError")) == ("error", True)


def test_a_call_ends_when_its_time_is_over() -> None:
    with serving(other=hangs) as server:
        replies = ask(server_at(server.url, concurrency=2, timeout_s=1.0), ["a", "b", "c"])
    over = "the 1 s of the call were over"
    assert replies == [Reply("", "timeout", f"{over} after 1 attempts")] * 2 + [Reply("", "gave_up", over)]


def test_so_many_requests_are_in_flight_and_no_more() -> None:
    together, lock, now, most = threading.Barrier(3), threading.Lock(), [0], [0]

    def meets_two_others(handler: Handler) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        together.wait(timeout=20)
        with lock:
            now[0] -= 1
        says("met")(handler)

    with serving(other=meets_two_others) as server:
        assert [reply.text for reply in ask(server_at(server.url, concurrency=3), [str(n) for n in range(9)])] == ["met"] * 9
    assert most[0] == 3


# --- keys --------------------------------------------------------------------------------------------------------------------------------
def test_a_key_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_JUDGE_KEY", "sk-very-secret")
    with serving(other=status(401, "wrong key sk-very-secret")) as server:
        asked = server_at(server.url, api_key_env="A_JUDGE_KEY")
        (reply,) = ask(asked, ["a"])
        assert server.requests[0][1]["Authorization"] == "Bearer sk-very-secret"
    assert reply.detail == "status 401: wrong key ***"
    assert "secret" not in repr(asked)


def test_a_key_that_is_not_set_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_JUDGE_KEY", " ")
    with pytest.raises(UsageError, match="the environment variable A_JUDGE_KEY holds no key for http"):
        ask(server_at("http://127.0.0.1:9/v1", api_key_env="A_JUDGE_KEY"), ["a"])


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host/v1", "http:///v1", "http://host:99999999/v1", "http://[1/v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="give an address such as"):
        ChatServer(url=url, model="judge")


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="holds a user or password") as refused:
        ChatServer(url="http://me:secret@host/v1", model="judge")
    assert "secret" not in str(refused.value)


def test_a_query_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="has a query") as refused:
        ChatServer(url="http://host/v1?api_key=secret", model="judge")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("option", ["concurrency", "per_second", "attempts", "backoff_s", "request_timeout_s", "timeout_s", "max_tokens"])
def test_numbers_that_are_not_positive_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=rf"ChatServer\({option}=0\): give a number above 0"):
        server_at("http://127.0.0.1:9/v1", **{option: 0})


# --- time, without a clock ---------------------------------------------------------------------------------------------------------------
def test_starts_are_evenly_spaced() -> None:
    pace = Pace(4.0)
    assert [10.0 + pace.book(10.0) for _ in range(5)] == [10.0, 10.25, 10.5, 10.75, 11.0]
    assert pace.book(11.1) == pytest.approx(0.15)


def test_time_that_was_not_used_is_not_saved_up() -> None:
    pace = Pace(4.0)
    pace.book(10.0)
    assert [pace.book(99.0) for _ in range(3)] == [0.0, 0.25, 0.5]


def test_no_more_than_so_many_begin_in_any_second() -> None:
    pace, now, begun = Pace(3.0), 0.0, list[float]()
    for asked in range(200):
        now = asked * 0.1  # ten are asked for in a second
        begun.append(now + pace.book(now))
    assert max(sum(start <= other < start + 0.999 for other in begun) for start in begun) == 3


def test_without_a_rate_all_begin_at_once() -> None:
    pace = Pace(None)
    assert [pace.book(5.0) for _ in range(9)] == [0.0] * 9


def test_a_server_that_asks_for_time_gets_it_from_all() -> None:
    pace = Pace(None)
    pace.hold(12.0)
    pace.hold(11.0)
    assert (pace.book(10.0), pace.book(13.0)) == (2.0, 0.0)


@pytest.mark.parametrize(("tries", "drawn", "seconds"), [(1, 0.0, 0.5), (1, 1.0, 1.0), (2, 1.0, 2.0), (3, 0.5, 3.0), (99, 1.0, 60.0)])
def test_backoff(tries: int, drawn: float, seconds: float) -> None:
    assert backoff(tries, 1.0, drawn) == seconds


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("7", 7.0), ("1.5", 1.5), ("0", 0.0), ("9999", 60.0), ("soon", None), ("-3", None),
     ("Thu, 01 Jan 1970 00:16:50 GMT", 10.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0)],
)  # fmt: skip
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, now=1000.0) == seconds
