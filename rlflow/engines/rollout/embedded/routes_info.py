"""What the engine says about itself: GET endpoints."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from rlflow.engines.rollout.embedded.config import ServerConfig
from rlflow.engines.rollout.embedded.core import EngineCore
from rlflow.engines.rollout.embedded.engine import Engine
from rlflow.engines.rollout.embedded.http import endpoint

__all__ = ["InfoRoutes"]

CONTRACT_VERSION = "0.5.23"  # the SGLang release whose HTTP contract is spoken
LOAD_FORMATS = ["safetensors"]


class InfoRoutes:
    """Endpoints that tell and change nothing."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self._engine, self._config, self._started = engine, config, time.time()

    def routes(self) -> list[Route]:
        handlers: dict[str, Any] = {
            "/ready": self.ready,
            "/health": self.health,
            "/health_generate": self.health,
            "/model_info": self.model_info,
            "/get_model_info": self.model_info,
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/v1/models": self.models,
            "/v1/loads": self.loads,
        }
        return [Route(path, endpoint(handler), methods=["GET"]) for path, handler in handlers.items()]

    async def ready(self, request: HttpRequest) -> Response:
        is_ready = await self._engine.call(lambda core: core.paused is None and not core.kv_released and core.weights.usable)
        return Response(status_code=200 if is_ready else 503)

    async def health(self, request: HttpRequest) -> Response:
        await self._engine.call(lambda core: None)  # the engine thread answers between two steps, paused or not
        return Response(status_code=200)

    async def model_info(self, request: HttpRequest) -> dict[str, Any]:
        return await self._engine.call(_model_info)

    async def server_info(self, request: HttpRequest) -> dict[str, Any]:
        return await self._engine.call(lambda core: _server_info(core, self._config, self._started))

    async def models(self, request: HttpRequest) -> dict[str, Any]:
        info = await self._engine.call(lambda core: (core.model_path, core.runner.context_length))
        model = {"id": info[0], "object": "model", "created": int(self._started), "owned_by": "rlflow", "root": info[0], "parent": None}
        return {"object": "list", "data": [model | {"max_model_len": info[1]}]}

    async def loads(self, request: HttpRequest) -> dict[str, Any]:
        load = await self._engine.call(lambda core: _load(core, self._config))
        now = datetime.now(UTC).isoformat()
        return {"timestamp": now, "version": CONTRACT_VERSION, "accelerator": None, "num_accelerators": 1, "loads": [load]}


def _model_info(core: EngineCore) -> dict[str, Any]:
    hf = core.runner.model.config
    return {
        "model_path": core.model_path,
        "served_model_name": core.model_path,
        "tokenizer_path": str(core.config.model_path),
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": core.version,
        "load_format": "auto",
        "model_type": hf.model_type,
        "architectures": hf.architectures,
    }


def _server_info(core: EngineCore, config: ServerConfig, started: float) -> dict[str, Any]:
    return {
        "model_path": core.model_path,
        "tokenizer_path": str(config.model_path),
        "version": CONTRACT_VERSION,
        "engine": "rlflow-embedded",
        "status": "ready",
        "startup_time": started,
        "device": "cpu",
        "dtype": "float32",
        "context_length": core.runner.context_length,
        "max_running_requests": config.max_running_requests,
        "max_total_tokens": config.max_total_tokens,
        "max_prefill_tokens": config.max_prefill_tokens,
        "random_seed": config.seed,
        "weight_version": core.version,
        "load_formats": LOAD_FORMATS,
        "paused": core.paused,
        "update_session": core.session_open,
        "released": sorted(core.released),
        "internal_states": [{"memory_bytes": _memory(core), "generated_tokens": core.generated_tokens}],
    }


def _memory(core: EngineCore) -> dict[str, int]:
    return {"weights": core.weights.nbytes, "kv_cache": core.runner.cache.nbytes}


def _load(core: EngineCore, config: ServerConfig) -> dict[str, Any]:
    memory, used, waiting = _memory(core), core.batch.used_tokens, core.queue.waiting
    retracted = sum(1 for r in waiting if r.num_retractions > 0)
    return {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": len(core.batch),
        "num_waiting_reqs": len(waiting),
        "num_waiting_uncached_tokens": sum(len(r.input_ids) + len(r.output_ids) for r in waiting),
        "num_used_tokens": used,
        "num_total_tokens": used,
        "max_total_num_tokens": config.max_total_tokens,
        "max_running_requests": config.max_running_requests,
        "token_usage": round(used / config.max_total_tokens, 4),
        "cache_hit_rate": 0.0,
        "memory": {
            "weight_gb": memory["weights"] / 2**30,
            "kv_cache_gb": memory["kv_cache"] / 2**30,
            "graph_gb": 0.0,
            "token_capacity": config.max_total_tokens,
        },
        "queues": {"waiting": len(waiting) - retracted, "grammar": 0, "paused": len(core.queue.held), "retracted": retracted},
    }
