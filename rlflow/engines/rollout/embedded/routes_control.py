"""Pausing, aborting, memory, cache: POST endpoints that change what the engine does."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlflow.engines.rollout.embedded.contract import RequestError
from rlflow.engines.rollout.embedded.engine import Engine
from rlflow.engines.rollout.embedded.http import decoded, endpoint
from rlflow.engines.rollout.protocol import PauseMode
from rlflow.errors import EngineError

__all__ = ["ControlRoutes"]

TAGS = frozenset({"kv_cache", "weights"})


class AbortBody(msgspec.Struct):
    rid: str = ""
    abort_all: bool = False


class PauseBody(msgspec.Struct):
    mode: PauseMode = "abort"


class MemoryBody(msgspec.Struct):
    tags: list[str] | None = None

    def wanted(self, default: frozenset[str]) -> frozenset[str]:
        """The tags asked for; none means `default`. "cuda_graph" is accepted and holds nothing here."""
        unknown = sorted(set(self.tags or ()) - TAGS - {"cuda_graph"})
        if unknown:
            raise RequestError(f"unknown memory tags {unknown}; use kv_cache and weights")
        return frozenset(self.tags) & TAGS if self.tags else default


class ControlRoutes:
    """Endpoints that pause, abort and move memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        handlers: dict[str, Any] = {
            "/abort_request": self.abort_request,
            "/pause_generation": self.pause_generation,
            "/continue_generation": self.continue_generation,
            "/release_memory_occupation": self.release,
            "/resume_memory_occupation": self.resume,
        }
        routes = [Route(path, endpoint(handler), methods=["POST"]) for path, handler in handlers.items()]
        return [*routes, Route("/flush_cache", endpoint(self.flush_cache), methods=["GET", "POST"])]

    async def abort_request(self, request: HttpRequest) -> Response:
        body = await decoded(request, AbortBody)
        if body.abort_all:
            await self._engine.call(lambda core: core.abort_all())
        elif body.rid:
            await self._engine.call(lambda core: core.abort(body.rid))
        return Response(status_code=200)

    async def pause_generation(self, request: HttpRequest) -> dict[str, str]:
        body = await decoded(request, PauseBody)
        await self._engine.call(lambda core: core.pause(body.mode))
        return {"message": "Generation paused successfully.", "status": "ok"}

    async def continue_generation(self, request: HttpRequest) -> dict[str, str]:
        await self._engine.call(lambda core: core.resume_generation())
        return {"message": "Generation continued successfully.", "status": "ok"}

    async def flush_cache(self, request: HttpRequest) -> Response:
        try:
            timeout = float(request.query_params.get("timeout", "0"))
        except ValueError as error:
            raise RequestError(f"timeout={request.query_params['timeout']!r} is no number of seconds") from error
        try:
            await self._engine.call_idle(lambda core: core.flush(), timeout=timeout, doing="flush_cache")
        except EngineError:
            return PlainTextResponse("Flush cache failed.\n", 400)
        return PlainTextResponse("Cache flushed.\n")

    async def release(self, request: HttpRequest) -> None:
        tags = (await decoded(request, MemoryBody)).wanted(TAGS)
        await self._engine.call(lambda core: core.release(tags))

    async def resume(self, request: HttpRequest) -> None:
        body = await decoded(request, MemoryBody)
        await self._engine.call(lambda core: core.resume(body.wanted(core.released)))
