"""HttpRolloutClient: a blocking, thread-safe client of one rollout engine.

    caller threads ──generate──▶ urllib3 pool (keep-alive, `maxsize` sockets) ──HTTP──▶ engine

Nothing is retried: a generation may have side effects in the caller's accounting, and a dropped connection means that the
engine died (SGLang's failure rule). The control calls are idempotent; the caller decides.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError

from rlflow.engines.rollout.protocol import (
    EngineGone,
    EngineRefused,
    EngineTimeout,
    GenerateRequest,
    GenerateResponse,
    Generation,
    MemoryTag,
    ModelInfo,
    PauseMode,
    SamplingParams,
    ServerInfo,
    WeightChecksums,
)
from rlflow.errors import EngineError

__all__ = ["HttpRolloutClient"]

ABORT_SECONDS = 5.0  # for one request; an engine answers it at once, and nothing is lost with an answer that comes later

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


class HttpRolloutClient:
    """Client of the engine at `url`.

    `timeout`: seconds for one call, a generation held by a pause included. `maxsize`: sockets kept open between calls; more
    callers than that open further ones, so that a pause never queues behind the generations that it is to pause.
    """

    def __init__(self, url: str, *, timeout: float = 600.0, maxsize: int = 64) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._pool = urllib3.connection_from_url(self._url, maxsize=maxsize, block=False, retries=False)

    @property
    def url(self) -> str:
        return self._url

    def close(self) -> None:
        self._pool.close()

    # -- generation

    def generate(self, input_ids: Sequence[int], sampling: SamplingParams, rid: str | None = None) -> Generation:
        """Sample one continuation of `input_ids`. Raises EngineError, also for fewer log-probs than tokens."""
        body = GenerateRequest(input_ids=list(input_ids), sampling_params=sampling, rid=rid, return_logprob=True)
        return self._checked(self._post("/generate", body, GenerateResponse))

    def generate_batch(
        self, input_ids: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams], rids: list[str] | None = None
    ) -> list[Generation]:
        """Sample one continuation of each prompt in one HTTP call; answers in the order of the prompts, when all are done.

        rids: a name for each, by which it can be aborted alone.
        """
        params = sampling if isinstance(sampling, SamplingParams) else list(sampling)
        body = GenerateRequest(input_ids=[list(ids) for ids in input_ids], sampling_params=params, rid=rids, return_logprob=True)
        return [self._checked(r) for r in self._post("/generate", body, list[GenerateResponse])]

    def abort(self, rid: str = "", *, abort_all: bool = False) -> None:
        """End one request (exact id) or all that run or wait; their calls return with finish_reason abort."""
        timeout = self._timeout if abort_all else min(ABORT_SECONDS, self._timeout)
        self._request("POST", "/abort_request", _encoder.encode({"rid": rid, "abort_all": abort_all}), timeout)

    # -- pausing and memory

    def pause(self, mode: PauseMode = "retract") -> None:
        self._post("/pause_generation", {"mode": mode})

    def continue_generation(self) -> None:
        self._post("/continue_generation", {})

    def release(self, tags: Iterable[MemoryTag]) -> None:
        """Free memory; the engine must be idle or paused with abort or retract."""
        self._post("/release_memory_occupation", {"tags": list(tags)})

    def resume(self, tags: Iterable[MemoryTag]) -> None:
        self._post("/resume_memory_occupation", {"tags": list(tags)})

    def flush_cache(self) -> None:
        self._post("/flush_cache", {})

    # -- weights

    def begin_weight_update(self) -> None:
        self._post("/begin_weight_update", {})

    def end_weight_update(self) -> None:
        self._post("/end_weight_update", {})

    def update_weights(self, tensors: bytes, *, weight_version: str | None = None, flush_cache: bool = True) -> None:
        """Load one bucket, a safetensors file as bytes, of Hugging Face parameter names. Give the version with the last bucket."""
        body = {
            "serialized_named_tensors": [base64.b64encode(tensors).decode("ascii")],
            "load_format": "safetensors",
            "flush_cache": flush_cache,
            "weight_version": weight_version,
        }
        self._post("/update_weights_from_tensor", body)

    def checksum(self) -> WeightChecksums:
        """Fingerprints of every parameter that the engine holds."""
        answer = self._post("/weights_checker", {"action": "checksum"}, dict[str, Any])
        try:
            return msgspec.convert(answer["ranks"][0], WeightChecksums)
        except (KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
            raise EngineError(f"engine at {self._url}: /weights_checker answered without checksums: {answer!r:.200}") from error

    # -- state

    def model_info(self) -> ModelInfo:
        return self._decode("/model_info", self._request("GET", "/model_info"), ModelInfo)

    def server_info(self) -> ServerInfo:
        return self._decode("/server_info", self._request("GET", "/server_info"), ServerInfo)

    def ready(self) -> bool:
        """Whether the engine takes requests: False while it is paused. Raises EngineGone if nobody answers."""
        try:
            self._request("GET", "/ready")
        except EngineRefused as error:
            if error.status == 503:
                return False
            raise
        return True

    # -- plumbing

    def _checked(self, response: GenerateResponse) -> Generation:
        meta, ids = response.meta_info, response.output_ids
        entries = meta.output_token_logprobs or []
        if len(entries) != len(ids):
            raise EngineError(f"engine at {self._url}: request {meta.id} returned {len(ids)} tokens but {len(entries)} log-probs")
        log_probs = [e[0] for e in entries if e[0] is not None and e[1] is not None]
        if len(log_probs) != len(ids) or [e[1] for e in entries] != ids:
            raise EngineError(f"engine at {self._url}: request {meta.id}: log-probs are missing or belong to other tokens than output_ids")
        if meta.finish_reason is None:
            raise EngineError(f"engine at {self._url}: request {meta.id} came back unfinished (finish_reason is null)")
        return Generation(
            rid=meta.id,
            output_ids=ids,
            log_probs=log_probs,
            text=response.text,
            finish_reason=meta.finish_reason,
            prompt_tokens=meta.prompt_tokens or 0,
            weight_version=meta.weight_version,
            spans=meta.weight_versions,
            num_retractions=meta.num_retractions or 0,
        )

    def _post(self, path: str, body: Any, answer: type[T] | None = None) -> T:
        data = self._request("POST", path, _encoder.encode(body))
        return self._decode(path, data, answer) if answer is not None else None  # type: ignore[return-value]

    def _decode(self, path: str, data: bytes, answer: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=answer)
        except msgspec.MsgspecError as error:
            raise EngineError(f"engine at {self._url}: {path} answered outside its contract: {error}; got {data[:200]!r}") from error

    def _request(self, method: str, path: str, body: bytes | None = None, timeout: float | None = None) -> bytes:
        timeout = self._timeout if timeout is None else timeout
        try:
            response = self._pool.request(
                method, path, body=body, headers={"Content-Type": "application/json"}, timeout=timeout, redirect=False
            )
        except NewConnectionError as error:  # to urllib3 a kind of timeout
            raise EngineGone(f"engine at {self._url} is gone: {path} failed with {error}") from error
        except TimeoutError as error:
            raise EngineTimeout(f"engine at {self._url} did not answer {path} within {timeout:g} s") from error
        except (HTTPError, OSError) as error:
            raise EngineGone(f"engine at {self._url} is gone: {path} failed with {error}") from error
        if response.status >= 400:
            raise EngineRefused(f"engine at {self._url} refused {path}: {response.status} {_error_message(response.data)}", response.status)
        return response.data


def _error_message(data: bytes) -> str:
    """The message inside any of the error bodies that SGLang uses, else the body's beginning."""
    try:
        body = msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return data[:300].decode("utf-8", "replace").strip()
    for key in ("error", "message"):
        found = body.get(key) if isinstance(body, dict) else None
        if isinstance(found, dict):
            found = found.get("message")
        if isinstance(found, str):
            return found
    return str(body)[:300]
