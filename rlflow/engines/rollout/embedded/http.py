"""Reading bodies and writing JSON with msgspec, on bare ASGI: the hot path has no framework objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Send

from rlflow.engines.rollout.embedded.contract import RequestError
from rlflow.errors import EngineError

__all__ = ["ClientGoneError", "decoded", "endpoint", "json_response", "read_body", "send_json"]

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_JSON = [(b"content-type", b"application/json")]


class ClientGoneError(Exception):
    """The client went away."""


async def read_body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def send_json(send: Send, value: Any, status: int = 200) -> None:
    body = _encoder.encode(value)
    headers = [*_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status, media_type="application/json")


async def decoded(request: HttpRequest, shape: type[T]) -> T:
    """The body as `shape`; an empty body counts as {}. Raises RequestError."""
    try:
        return msgspec.json.decode(await request.body() or b"{}", type=shape)
    except msgspec.MsgspecError as error:
        raise RequestError(f"invalid request: {error}") from error


def endpoint(handler: Callable[[HttpRequest], Awaitable[Any]]) -> Callable[[HttpRequest], Awaitable[Response]]:
    """A handler whose value is answered as JSON, and whose EngineError or RequestError is a 400 in SGLang's form."""

    async def answer(request: HttpRequest) -> Response:
        try:
            value = await handler(request)
        except RequestError as error:
            return json_response(error.body, 400)
        except EngineError as error:
            return json_response({"success": False, "message": str(error), "error": {"message": str(error)}}, 400)
        return value if isinstance(value, Response) else json_response(value)

    return answer
