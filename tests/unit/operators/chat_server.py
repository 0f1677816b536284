"""A real server of chat completions on 127.0.0.1 that misbehaves as it is told: what each prompt meets, request after request."""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatCompletions

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard(self.path, dict(self.headers), body)(self)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


class ChatCompletions(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a handler may hang on purpose
    request_queue_size = 64

    def __init__(self, acts: dict[str, Sequence[Act]], other: Act) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts, self.other = {prompt: list(several) for prompt, several in acts.items()}, other
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.times: dict[str, int] = defaultdict(int)  # by prompt
        self.over = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def heard(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Act:
        """What this request meets."""
        with self._lock:
            self.requests.append((path, headers, body))
            prompt = body["messages"][0]["content"]
            self.times[prompt] += 1
            left = self.acts.get(prompt, [])
            return left.pop(0) if len(left) > 1 else left[0] if left else self.other


def completion(text: str | None) -> bytes:
    message = {"role": "assistant", "content": text}
    return json.dumps({"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()


def says(text: str | None) -> Act:
    return lambda handler: handler.send(200, completion(text))


def status(code: int, body: str = "{}", **headers: str) -> Act:
    return lambda handler: handler.send(code, body.encode(), **headers)


def hangs(handler: Handler) -> None:
    """Until the test is over."""
    handler.server.over.wait(timeout=60)
    closes(handler)


def closes(handler: Handler) -> None:
    """Without a word."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def tears(handler: Handler) -> None:
    """In the middle of the answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.wfile.flush()
    closes(handler)


def raw(data: bytes) -> Act:
    """These bytes, then the end of the connection."""

    def send(handler: Handler) -> None:
        handler.wfile.write(data)
        handler.wfile.flush()
        closes(handler)

    return send


@contextmanager
def serving(acts: dict[str, Sequence[Act]] | None = None, other: Act = says("Score: 1")) -> Iterator[ChatCompletions]:  # noqa: B008
    server = ChatCompletions(acts or {}, other)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
