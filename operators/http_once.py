"""One HTTP request on a connection of its own, in asyncio: whoever stops waiting for it closes it.

post(url, body, key) ──▶ Answered(status, headers, body)      whatever the status is; raises OSError and BadAnswer
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import SplitResult, urlsplit

import httptools

__all__ = ["Answered", "BadAnswer", "post"]

MOST_BYTES = 4 << 20  # of an answer: a judgement is a few lines


class BadAnswer(Exception):
    """What came is no whole HTTP answer."""


@dataclass
class Answered:
    """An answer. headers: by their names in lower case."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""


class _Parts:
    """Puts an answer together: httptools calls it back."""

    def __init__(self) -> None:
        self.answered, self.has_head, self.is_whole = Answered(), False, False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answered.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self.answered.body += data
        if len(self.answered.body) > MOST_BYTES:
            raise BadAnswer(f"an answer of more than {MOST_BYTES} bytes")

    def on_message_complete(self) -> None:
        self.is_whole = True


async def post(url: str, body: bytes, key: str) -> Answered:
    """POST JSON, with `key` as bearer where there is one. Redirects are answers like others.

    Raises OSError where no connection comes about, or it breaks; BadAnswer for what is no HTTP, or ends too early.
    """
    parts = urlsplit(url)
    tls = _trust() if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or (443 if tls else 80), ssl=tls)
    try:
        writer.write(_request(parts, body, key))
        await writer.drain()
        return await _answer(reader)
    finally:
        writer.close()


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _request(parts: SplitResult, body: bytes, key: str) -> bytes:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = [f"POST {path} HTTP/1.1", f"Host: {parts.netloc}", "Content-Type: application/json", "Accept: application/json"]
    head += [f"Content-Length: {len(body)}", "Connection: close", *([f"Authorization: Bearer {key}"] if key else [])]
    return "\r\n".join([*head, "", ""]).encode() + body


async def _answer(reader: asyncio.StreamReader) -> Answered:
    parts = _Parts()
    parser = httptools.HttpResponseParser(parts)
    while not parts.is_whole:
        if not (data := await reader.read(1 << 16)):
            if parts.has_head and not parts.answered.headers.keys() & {"content-length", "transfer-encoding"}:
                break  # the end of the connection is the end of its answer
            raise BadAnswer("the connection was closed before the answer was whole")
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadAnswer(str(error) or "no HTTP") from error
    parts.answered.status = parser.get_status_code()
    return parts.answered
