"""Weight updates: sessions, buckets, disk, versions, fingerprints.

Outside a pause an update waits for the running requests to finish (nothing new is admitted meanwhile), at most
`update_timeout` seconds. `load_format` must be "safetensors": each serialized_named_tensors entry is a safetensors file in
base64. SGLang's own formats are pickles, and unpickling what comes from a socket would run whatever code it names.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.routing import Route

from rlflow.engines.rollout.embedded.contract import RequestError
from rlflow.engines.rollout.embedded.core import EngineCore
from rlflow.engines.rollout.embedded.engine import Engine
from rlflow.engines.rollout.embedded.http import decoded, endpoint
from rlflow.engines.rollout.embedded.weights import read_folder, read_safetensors
from rlflow.errors import EngineError

__all__ = ["WeightRoutes"]


class TensorBody(msgspec.Struct):
    serialized_named_tensors: list[bytes]
    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


class LoadFormat(msgspec.Struct):
    """Looked at first: a pickled body need not be base64 that we can read."""

    load_format: str | None = None


class DiskBody(msgspec.Struct):
    model_path: str
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


class VersionBody(msgspec.Struct):
    new_version: str
    abort_all_requests: bool = True


class NameBody(msgspec.Struct):
    name: str
    truncate_size: int = 100


class CheckerBody(msgspec.Struct):
    action: str = "checksum"


class WeightRoutes:
    """Endpoints that read and change the weights."""

    def __init__(self, engine: Engine, update_timeout: float) -> None:
        self._engine, self._update_timeout = engine, update_timeout

    def routes(self) -> list[Route]:
        posts: dict[str, Any] = {
            "/begin_weight_update": self.begin,
            "/end_weight_update": self.end,
            "/update_weights_from_tensor": self.from_tensor,
            "/update_weights_from_disk": self.from_disk,
            "/update_weight_version": self.update_version,
            "/get_weights_by_name": self.by_name,
        }
        routes = [Route(path, endpoint(handler), methods=["POST"]) for path, handler in posts.items()]
        return [*routes, Route("/weights_checker", endpoint(self.checker), methods=["GET", "POST"])]

    async def begin(self, request: HttpRequest) -> dict[str, Any]:
        await self._engine.call(_begin)
        return {"success": True, "message": "Success"}

    async def end(self, request: HttpRequest) -> dict[str, Any]:
        await self._engine.call(_end)
        return {"success": True, "message": "Success"}

    async def _apply(self, tensors: dict[str, Any], body: TensorBody | DiskBody, *, in_session: bool, path: str | None = None) -> None:
        def update(core: EngineCore) -> None:
            if in_session and not core.session_open:
                raise EngineError("update_weights_from_tensor must run between begin_weight_update() and end_weight_update()")
            if body.abort_all_requests:
                core.abort_all()
            if path is not None:
                core.check_complete(tensors)
            core.update(tensors, version=body.weight_version, flush=body.flush_cache)
            core.model_path = path or core.model_path

        if body.abort_all_requests:  # then no row is left to wait for
            await self._engine.call(update)
        else:
            await self._engine.call_idle(update, timeout=self._update_timeout, doing="weight update")

    async def from_tensor(self, request: HttpRequest) -> dict[str, Any]:
        load_format = (await decoded(request, LoadFormat)).load_format
        if load_format != "safetensors":
            raise EngineError(
                f"load_format {load_format!r} is a pickle; the embedded engine never unpickles what comes from a socket, since that runs "
                'code. Send load_format "safetensors" with base64 of safetensors files in serialized_named_tensors'
            )
        body = await decoded(request, TensorBody)
        await self._engine.call(_require_session)
        tensors = await asyncio.to_thread(read_safetensors, body.serialized_named_tensors)
        await self._apply(tensors, body, in_session=True)
        return {"success": True, "message": f"Success{_moved(body.weight_version)}"}

    async def from_disk(self, request: HttpRequest) -> dict[str, Any]:
        body = await decoded(request, DiskBody)
        tensors = await asyncio.to_thread(read_folder, Path(body.model_path))
        await self._apply(tensors, body, in_session=False, path=body.model_path)
        message = f"Succeeded to update model weights.{_moved(body.weight_version)}"
        return {"success": True, "message": message, "num_paused_requests": 0}

    async def update_version(self, request: HttpRequest) -> dict[str, Any]:
        body = await decoded(request, VersionBody)

        def update(core: EngineCore) -> None:
            if body.abort_all_requests:
                core.abort_all()
            core.set_version(body.new_version)

        await self._engine.call(update)
        message = f"Weight version updated to {body.new_version}"
        return {"success": True, "message": message, "new_version": body.new_version}

    async def by_name(self, request: HttpRequest) -> Any:
        body = await decoded(request, NameBody)

        def read(core: EngineCore) -> Any:
            tensor = core.weights.get(body.name)
            if tensor is None or core.weights.released:
                why = "the weights are released" if tensor is not None else "no such parameter"
                raise EngineError(f"Get parameter by name failed: {body.name!r}: {why}")
            return tensor[: body.truncate_size].tolist()

        return await self._engine.call(read)

    async def checker(self, request: HttpRequest) -> dict[str, Any]:
        body = await decoded(request, CheckerBody)
        if body.action != "checksum":
            raise RequestError(f"weights_checker action {body.action!r} is not supported by the embedded engine; use 'checksum'")
        return await self._engine.call(_checksums)


def _begin(core: EngineCore) -> None:
    if core.session_open:
        raise EngineError("a weight-update session is already open; call end_weight_update() first")
    core.session_open = True


def _end(core: EngineCore) -> None:
    if not core.session_open:
        raise EngineError("no weight-update session is open; call begin_weight_update() first")
    core.session_open = False


def _require_session(core: EngineCore) -> None:
    if not core.session_open:
        raise EngineError("update_weights_from_tensor must run between begin_weight_update() and end_weight_update()")


def _moved(version: str | None) -> str:
    return f" Weight version updated to {version}." if version is not None else ""


def _checksums(core: EngineCore) -> dict[str, Any]:
    if core.weights.released:
        raise EngineError("the weights are released: there is nothing to check")
    rank = {"checksums": core.weights.checksums(), "tied": core.weights.tied, "parallelism_info": []}
    return {"success": True, "message": "Success.", "ranks": [rank]}
