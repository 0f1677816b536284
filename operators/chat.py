"""A client of servers that speak OpenAI's chat completions: many prompts at once, each asked until it is answered or its time is up.

    prompts ─▶ concurrency ─▶ pace ─▶ POST url/chat/completions ─┬─ 200 with a message ──────────────────────────▶ Reply(text)
                               ▲                                 ├─ 408, 429, 5xx, torn, malformed, too slow ─┐
                               └── Retry-After, else backoff ◀───┼────────────────── attempts left ───────────┤
                                                                 │                                  none left ┴─▶ Reply(failed)
                                                                 └─ any other 4xx, a redirect: it will not be better ─▶ Reply(failed)

One event loop in a daemon thread serves every caller of the process, so that rate and concurrency are those of the process, whoever
asks. A connection serves one request: a server that hangs is left by closing it. No redirect is followed, as a key would go with it.

The key of a server is read from an environment variable when it is used. A plan, a log and a message know its variable only.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal
from urllib.parse import urlsplit

from rlflow.errors import OperatorError, UsageError

from .http_once import Answered, BadAnswer, post
from .pace import Pace, backoff, retry_after

__all__ = ["ChatServer", "Reply", "ask"]

Failure = Literal["", "timeout", "error", "gave_up"]
AGAIN = frozenset({408, 429, *range(500, 600)})  # statuses after which the same request may do better
SLACK_S = 10.0  # for the loop to say that the time of a call is over
_FIRST = threading.Lock()  # `cache` lets two threads that ask first, at once, make one each


@dataclass(frozen=True, kw_only=True)
class ChatServer:
    """Where a model is asked, and how hard.

    url: up to the version, as in "http://127.0.0.1:8000/v1". model: its name there. api_key_env: the environment variable that holds
    the key, "" for a server that wants none. max_tokens, temperature: of an answer; None leaves them to the server.
    concurrency: requests in flight; per_second: requests begun a second, None for as many as there are. Both a process.
    attempts: at a prompt; backoff_s: the wait before the second one, doubled for each further one unless the server names another.
    request_timeout_s: for one request; timeout_s: for all prompts of a call together. A proxy of the environment is not used.
    Raises UsageError for a url that is none or holds a password or a query, and for numbers that are not positive.
    """

    url: str
    model: str
    api_key_env: str = ""
    max_tokens: int | None = 512
    temperature: float | None = 0.0
    concurrency: int = 16
    per_second: float | None = None
    attempts: int = 4
    backoff_s: float = 1.0
    request_timeout_s: float = 60.0
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if "@" in self.url:
            raise UsageError("ChatServer(url=...) holds a user or password, which a plan would keep: name a variable with api_key_env")
        if "?" in self.url or "#" in self.url:
            raise UsageError("ChatServer(url=...) has a query, which a plan would keep: name a variable with api_key_env")
        if not _is_address(self.url):
            raise UsageError(f"ChatServer(url={self.url!r}): give an address such as http://127.0.0.1:8000/v1")
        positive = ("max_tokens", "concurrency", "per_second", "attempts", "backoff_s", "request_timeout_s", "timeout_s")
        for name in positive:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"ChatServer({name}={value}): give a number above 0")

    @property
    def key(self) -> str:
        """The key itself, "" for none. Raises UsageError naming the variable that holds none."""
        if not self.api_key_env:
            return ""
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isprintable():
            raise UsageError(f"the environment variable {self.api_key_env} holds no key for {self.url}: set it where the run is started")
        return key


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, a bracket that is not closed
        return False


@dataclass(frozen=True)
class Reply:
    """What came of a prompt: the text, or why there is none, for a person to read."""

    text: str = ""
    failed: Failure = ""
    detail: str = ""


def ask(server: ChatServer, prompts: Sequence[str]) -> list[Reply]:
    """The reply to each prompt, in order; never later than `timeout_s`. Raises UsageError without the key of the server."""
    key = server.key
    with _FIRST:
        line, loop = _line(server), _loop()
    waiting = asyncio.run_coroutine_threadsafe(_ask_all(line, key, prompts), loop)
    try:
        return waiting.result(timeout=server.timeout_s + SLACK_S)
    except TimeoutError as error:
        waiting.cancel()
        raise OperatorError(f"{server.model} at {server.url}: the loop that asks it is stuck") from error


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="chat", daemon=True).start()
    return loop


@dataclass
class _Line:
    """What all requests to one server share: the places in flight, and the pace."""

    server: ChatServer
    pace: Pace
    places: asyncio.Semaphore


@dataclass
class _Asked:
    """One prompt on its way: how often it was asked, and what the last answer was."""

    prompt: str
    tries: int = 0
    last: Reply = field(default_factory=Reply)


@cache
def _line(server: ChatServer) -> _Line:
    return _Line(server, Pace(server.per_second), asyncio.Semaphore(server.concurrency))


async def _ask_all(line: _Line, key: str, prompts: Sequence[str]) -> list[Reply]:
    asked = [_Asked(prompt) for prompt in prompts]
    tasks = [asyncio.create_task(_until_answered(line, key, one)) for one in asked]
    if tasks:
        await asyncio.wait(tasks, timeout=line.server.timeout_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [_came_of(line.server, task, one) for task, one in zip(tasks, asked, strict=True)]


def _came_of(server: ChatServer, task: asyncio.Task[Reply], one: _Asked) -> Reply:
    if not task.cancelled():
        return task.result()
    over = f"the {server.timeout_s:g} s of the call were over"
    return Reply("", "timeout", f"{over} after {one.tries} attempts{_and(one.last.detail)}") if one.tries else Reply("", "gave_up", over)


async def _until_answered(line: _Line, key: str, one: _Asked) -> Reply:
    server = line.server
    while True:
        async with line.places:
            await asyncio.sleep(line.pace.book(time.monotonic()))
            one.tries += 1
            one.last, after = await _attempt(line, key, one.prompt)
        if not one.last.failed or after is None:
            return one.last
        if one.tries >= server.attempts:
            return Reply("", one.last.failed, f"{one.tries} attempts, the last one: {one.last.detail}")
        await asyncio.sleep(max(after, backoff(one.tries, server.backoff_s, random.random())))


async def _attempt(line: _Line, key: str, prompt: str) -> tuple[Reply, float | None]:
    """What came of it, and how many seconds to wait at least before the next attempt; None if another one would not help."""
    server = line.server
    try:
        async with asyncio.timeout(server.request_timeout_s):
            answered = await post(f"{server.url.rstrip('/')}/chat/completions", _body(server, prompt), key)
    except TimeoutError:
        return Reply("", "timeout", f"no answer within {server.request_timeout_s:g} s"), 0.0
    except (OSError, BadAnswer) as error:  # OSError: refused, reset, no such host, no trust in its certificate
        return Reply("", "error", _without(key, f"{type(error).__name__}: {error}")), 0.0
    if answered.status in AGAIN:
        after = retry_after(answered.headers.get("retry-after"), time.time())
        if after:
            line.pace.hold(time.monotonic() + after)
        return Reply("", "error", _told(answered, key)), after or 0.0
    if answered.status != 200:
        return Reply("", "error", _told(answered, key)), None
    text = _message(answered.body)
    return (Reply("", "error", f"no message in {_told(answered, key)}"), 0.0) if text is None else (Reply(text), None)


def _body(server: ChatServer, prompt: str) -> bytes:
    said: dict[str, Any] = {"model": server.model, "messages": [{"role": "user", "content": prompt}]}
    options = {"max_tokens": server.max_tokens, "temperature": server.temperature}
    return json.dumps(said | {name: value for name, value in options.items() if value is not None}).encode()


def _message(body: bytes) -> str | None:
    """The text of the first choice; None if the body is none of a chat completion."""
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):  # ValueError: no JSON, no UTF-8
        return None
    return text if isinstance(text, str) else None


def _told(answered: Answered, key: str) -> str:
    return _without(key, f"status {answered.status}: {answered.body[:200].decode('utf-8', 'replace').strip()}")


def _without(key: str, text: str) -> str:
    """A server may say a wrong key back."""
    return text.replace(key, "***") if key else text


def _and(detail: str) -> str:
    return f", the last one: {detail}" if detail else ""
