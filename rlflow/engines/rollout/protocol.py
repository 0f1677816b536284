"""The messages of a rollout engine (SGLang's HTTP contract, 0.5.22 and later) and what a client of one can do.

    client  → GenerateRequest(input_ids, SamplingParams)      → engine
    client  ← GenerateResponse(text, output_ids, MetaInfo)    ← engine
    caller  ← Generation                                        checked: one log-prob a token

A log-prob is log softmax(logits / temperature)[token], before top_k, top_p and min_p cut the distribution and before
min_new_tokens masks the stop tokens; for greedy requests (temperature 0) the temperature counts as 1.
It is the policy's own log-prob only at temperature 1 without truncation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from rlflow.errors import EngineError

__all__ = [
    "EngineGone",
    "EngineRefused",
    "EngineTimeout",
    "FinishReason",
    "GenerateRequest",
    "GenerateResponse",
    "Generation",
    "MemoryTag",
    "MetaInfo",
    "ModelInfo",
    "PauseMode",
    "RolloutClient",
    "SamplingParams",
    "ServerInfo",
    "SyncError",
    "SyncReport",
    "WeightChecksums",
    "WeightVersionSpan",
]

PauseMode = Literal["abort", "retract", "in_place"]
MemoryTag = Literal["kv_cache", "weights"]
LogProbEntry = tuple[float | None, int, str | None]  # log-prob (nats), token id, text


class EngineGone(EngineError):
    """The connection dropped: treat the engine as dead, start another, push the weights again."""


class EngineTimeout(EngineError):
    """No answer in time; the engine may still be alive."""


class EngineRefused(EngineError):
    """The engine answered with an HTTP error; `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class SyncError(EngineError):
    """A weight sync failed in `step`; `paused` says in which state the engine was left."""

    def __init__(self, message: str, *, step: str, paused: bool) -> None:
        super().__init__(message)
        self.step = step
        self.paused = paused


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to sample; None is the default. Lengths in tokens. The last block is SGLang's, which the embedded engine refuses."""

    max_new_tokens: int | None = None  # 128
    temperature: float | None = None  # 1.0; 0 = greedy
    top_p: float | None = None  # 1.0
    top_k: int | None = None  # -1 = all
    min_p: float | None = None  # 0.0
    min_new_tokens: int | None = None  # 0
    n: int | None = None  # 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None  # False
    sampling_seed: int | None = None
    skip_special_tokens: bool | None = None  # True
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None  # False

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop_regex: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    stream_interval: int | None = None
    custom_params: dict[str, Any] | None = None
    beam_width: int | None = None
    watermark: Any = None
    choice: list[str] | None = None


class GenerateRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of POST /generate. Keys that are not listed are ignored, as SGLang does."""

    input_ids: list[int | list[int]] | None = None  # one prompt, or a batch of prompts
    text: str | list[str] | None = None
    sampling_params: SamplingParams | list[SamplingParams] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    return_prompt_token_ids: bool | None = None
    stream: bool | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    input_embeds: Any = None
    lora_path: Any = None
    return_hidden_states: bool | None = None


class FinishReason(msgspec.Struct, frozen=True, kw_only=True):
    """`length` (limit reached), `stop` (matched a token id or a string), or `abort` (with a message)."""

    type: Literal["length", "stop", "abort"]
    length: int | None = None
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None


class WeightVersionSpan(msgspec.Struct, frozen=True):
    """Output tokens [start, end) were sampled under the weights named `version`."""

    version: str
    start: int
    end: int


class MetaInfo(msgspec.Struct, kw_only=True):
    """What the engine says about one response; an aborted waiting request has the thin form, without the optional keys."""

    id: str
    finish_reason: FinishReason | None
    weight_version: str
    weight_versions: list[WeightVersionSpan] = []
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    num_retractions: int | None = None
    input_token_logprobs: list[LogProbEntry] | None = None
    output_token_logprobs: list[LogProbEntry] | None = None
    output_token_logprobs_length: int | None = None
    e2e_latency: float | None = None  # seconds


class GenerateResponse(msgspec.Struct, kw_only=True):
    """One answer of POST /generate; a batch or n > 1 is a list of them."""

    text: str = ""
    output_ids: list[int] = []
    meta_info: MetaInfo
    prompt_token_ids: list[int] | None = None
    index: int | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request, checked: `len(log_probs) == len(output_ids)`; a stop token is kept as the last output id.

    Example: output_ids=[17, 4, 2], log_probs=[-0.1, -1.3, -0.2], finish_reason.type="stop", weight_version="7",
    spans=[("6", 0, 2), ("7", 2, 3)]: retracted once, the last token is from the newer weights.
    """

    rid: str
    output_ids: list[int]
    log_probs: list[float]
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    weight_version: str
    spans: list[WeightVersionSpan]
    num_retractions: int


class ModelInfo(msgspec.Struct, kw_only=True):
    """GET /model_info; the fields that rlflow reads."""

    model_path: str
    weight_version: str


class ServerInfo(msgspec.Struct, kw_only=True):
    """GET /server_info; the fields that rlflow reads. `load_formats` is an extension of the embedded engine."""

    version: str
    dtype: str = "auto"
    load_formats: list[str] = []
    paused: PauseMode | None = None
    update_session: bool = False
    released: list[str] = []


class WeightChecksums(msgspec.Struct, kw_only=True):
    """POST /weights_checker: `tensor_checksum` of each parameter; `tied` names those that are another one's memory.

    Example: checksums={"model.embed_tokens.weight": "e2e3632276bbe426", "lm_head.weight": "e2e3632276bbe426"},
    tied={"lm_head.weight": "model.embed_tokens.weight"}.
    """

    checksums: dict[str, str]
    tied: dict[str, str] = {}


class SyncReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sync did. Seconds by step, in order; `bytes` counts tensor bytes as sent."""

    version: int
    buckets: int
    tensors: int
    bytes: int
    seconds: dict[str, float]


class RolloutClient(Protocol):
    """What the run asks of a rollout engine. Blocking; safe to call from several threads. All raise EngineError."""

    @property
    def url(self) -> str: ...

    def generate(self, input_ids: Sequence[int], sampling: SamplingParams, rid: str | None = None) -> Generation: ...

    def generate_batch(
        self, input_ids: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generation]: ...

    def abort(self, rid: str = "", *, abort_all: bool = False) -> None: ...

    def pause(self, mode: PauseMode = "retract") -> None: ...

    def continue_generation(self) -> None: ...

    def begin_weight_update(self) -> None: ...

    def end_weight_update(self) -> None: ...

    def update_weights(self, tensors: bytes, *, weight_version: str | None = None, flush_cache: bool = True) -> None: ...

    def release(self, tags: Iterable[MemoryTag]) -> None: ...

    def resume(self, tags: Iterable[MemoryTag]) -> None: ...

    def flush_cache(self) -> None: ...

    def checksum(self) -> WeightChecksums: ...

    def model_info(self) -> ModelInfo: ...

    def server_info(self) -> ServerInfo: ...

    def ready(self) -> bool: ...
