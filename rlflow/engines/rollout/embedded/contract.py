"""Body of POST /generate → sequences to sample, or a 400 with SGLang's error body.

bytes → GenerateRequest (types, unknown sampling keys) → one Prompt a sequence to sample, values checked
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
from tokenizers import Tokenizer

from rlflow.engines.rollout.embedded.request import Sampling
from rlflow.engines.rollout.embedded.sampling import mix64
from rlflow.engines.rollout.protocol import GenerateRequest, SamplingParams

__all__ = ["Limits", "Prompt", "RequestError", "parse_generate"]

_decoder = msgspec.json.Decoder(GenerateRequest)
_REFUSED_SAMPLING = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop_regex": None,
    "logit_bias": None,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "custom_params": None,
    "beam_width": None,
    "watermark": None,
    "choice": None,
}
_REFUSED_KEYS = ("stream", "top_logprobs_num", "token_ids_logprob", "input_embeds", "lora_path", "return_hidden_states")


class RequestError(Exception):
    """A request that is refused with 400; `body` is what is answered."""

    def __init__(self, message: str, *, plain: bool = False) -> None:
        super().__init__(message)
        self.body: dict[str, Any] = {"error": message if plain else {"message": message}}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the served model allows, and how text becomes ids."""

    vocab_size: int
    context_length: int
    max_total_tokens: int
    eos_ids: tuple[int, ...]
    tokenizer: Tokenizer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One sequence to sample."""

    rid: str
    input_ids: list[int]
    sampling: Sampling
    return_logprob: bool
    prompt_logprobs: bool


def parse_generate(body: bytes, limits: Limits, next_seed: int) -> tuple[list[Prompt], GenerateRequest, bool]:
    """The sequences that a body asks for, the decoded body, and whether the answer is a list.

    `next_seed` seeds sequences without a sampling_seed; with n > 1, sample i > 0 of a seeded request gets a seed of its own,
    derived from (sampling_seed, i). Raises RequestError.
    """
    request = _decode(body)
    prompts, is_list = _prompt_ids(request, limits)
    params = _params(request.sampling_params, len(prompts))
    is_list = is_list or any((p.n or 1) > 1 for p in params)
    rids = _rids(request.rid, len(prompts), single=not is_list)
    out: list[Prompt] = []
    for index, (ids, p) in enumerate(zip(prompts, params, strict=True)):
        sampling = _sampling(p, limits, default_seed=_derived(next_seed, index))
        _check_prompt(ids, sampling, limits)
        count = _positive(p.n, 1, "n")
        for sample in range(count):
            out.append(
                Prompt(
                    rid=rids[index] if count == 1 else uuid4().hex,
                    input_ids=ids,
                    sampling=sampling if sample == 0 else replace(sampling, seed=_derived(sampling.seed, sample)),
                    return_logprob=bool(request.return_logprob),
                    prompt_logprobs=bool(request.return_logprob) and request.logprob_start_len == 0,
                )
            )
    return out, request, is_list


def _decode(body: bytes) -> GenerateRequest:
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        unknown = re.search(r"unknown field `([^`]*)`", str(error))
        if unknown:
            known = ", ".join(f"`{name}`" for name in SamplingParams.__struct_fields__)
            raise RequestError(f"unknown field `{unknown[1]}`, expected one of {known}", plain=True) from error
        raise RequestError(f"invalid request: {error}") from error
    except msgspec.MsgspecError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    for key in _REFUSED_KEYS:
        if getattr(request, key):
            raise RequestError(f"{key} is not supported by the embedded engine; leave it out, or use a SGLang server")
    if request.logprob_start_len not in (None, -1, 0):
        raise RequestError(f"logprob_start_len={request.logprob_start_len}: supported are -1 (output only) and 0 (whole prompt)")
    return request


def _prompt_ids(request: GenerateRequest, limits: Limits) -> tuple[list[list[int]], bool]:
    if (request.input_ids is None) == (request.text is None):
        raise RequestError("give exactly one of input_ids and text")
    if request.text is not None:
        texts = [request.text] if isinstance(request.text, str) else request.text
        return [_tokenized(text, limits) for text in texts], not isinstance(request.text, str)
    given = request.input_ids or []
    ids = [item for item in given if isinstance(item, int)]
    if len(ids) == len(given):
        return [ids], False
    batch = [item for item in given if isinstance(item, list)]
    if len(batch) != len(given):
        raise RequestError("input_ids mixes ids and lists of ids; give one prompt, or a list of prompts")
    return batch, True


def _tokenized(text: str, limits: Limits) -> list[int]:
    if limits.tokenizer is None:
        raise RequestError("this model folder has no tokenizer.json; send input_ids instead of text")
    try:
        return list(limits.tokenizer.encode(text).ids)
    except Exception as error:  # the library raises a bare Exception
        raise RequestError(f"text {text[:80]!r} cannot be tokenized: {error}") from error


def _params(given: SamplingParams | list[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if isinstance(given, list):
        if len(given) != count:
            raise RequestError(f"{len(given)} sampling_params for {count} prompts")
        return given
    return [given or SamplingParams()] * count


def _rids(given: str | list[str] | None, count: int, *, single: bool) -> list[str]:
    if isinstance(given, list):
        if len(given) != count or len(set(given)) != count:
            raise RequestError(f"rid lists {len(given)} ids ({len(set(given))} different) for {count} prompts")
        return given
    if given is None:
        return [uuid4().hex for _ in range(count)]
    return [given] if single else [f"{given}_{i}" for i in range(count)]


def _sampling(p: SamplingParams, limits: Limits, default_seed: int) -> Sampling:
    for name, neutral in _REFUSED_SAMPLING.items():
        if getattr(p, name) not in (None, neutral):
            raise RequestError(f"sampling_params.{name} is not supported by the embedded engine; leave it out, or use a SGLang server")
    temperature = _ranged(p.temperature, 1.0, "temperature", 0.0, float("inf"))
    top_k = -1 if p.top_k is None else p.top_k
    if top_k < -1 or top_k == 0:
        raise RequestError(f"sampling_params.top_k is {top_k}; use -1 for all tokens, or at least 1")
    max_new = _positive(p.max_new_tokens, 128, "max_new_tokens")
    min_new = p.min_new_tokens or 0
    if not 0 <= min_new <= max_new:
        raise RequestError(f"sampling_params.min_new_tokens is {min_new}; it must lie between 0 and max_new_tokens={max_new}")
    stop = [p.stop] if isinstance(p.stop, str) else p.stop or []
    if stop and (limits.tokenizer is None or "" in stop):
        raise RequestError(f"sampling_params.stop is {stop!r}: it needs non-empty strings and a tokenizer.json; or use stop_token_ids")
    eos = () if p.ignore_eos else limits.eos_ids
    return Sampling(
        max_new_tokens=max_new,
        min_new_tokens=min_new,
        temperature=temperature if temperature > 0 else 1.0,
        greedy=temperature == 0,
        top_p=_ranged(p.top_p, 1.0, "top_p", 1e-9, 1.0),
        top_k=0 if top_k >= limits.vocab_size or top_k < 0 else top_k,
        min_p=_ranged(p.min_p, 0.0, "min_p", 0.0, 1.0),
        stop_ids=tuple(dict.fromkeys((*eos, *(p.stop_token_ids or ())))),
        stop_text=tuple(stop),
        seed=default_seed if p.sampling_seed is None else p.sampling_seed % 2**64,
        skip_special_tokens=p.skip_special_tokens is not False,
        trim_stop=not p.no_stop_trim,
    )


def _ranged(value: float | None, default: float, name: str, low: float, high: float) -> float:
    if value is None:
        return default
    if not low <= value <= high or value == float("inf"):
        raise RequestError(f"sampling_params.{name} is {value}; it must lie between {low:g} and {high:g}")
    return value


def _positive(value: int | None, default: int, name: str) -> int:
    if value is None:
        return default
    if value < 1:
        raise RequestError(f"sampling_params.{name} is {value}; it must be at least 1")
    return value


def _check_prompt(ids: Sequence[int], sampling: Sampling, limits: Limits) -> None:
    if not ids:
        raise RequestError("input_ids holds an empty prompt")
    if min(ids) < 0 or max(ids) >= limits.vocab_size:
        wrong = next(i for i in ids if not 0 <= i < limits.vocab_size)
        raise RequestError(f"input_ids holds {wrong}, outside the vocabulary of {limits.vocab_size} ids (0 … {limits.vocab_size - 1})")
    total = len(ids) + sampling.max_new_tokens
    limit = min(limits.context_length, limits.max_total_tokens)
    if total > limit:
        raise RequestError(
            f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
            f"You requested a total of {total} tokens: {len(ids)} tokens from the input messages and {sampling.max_new_tokens} tokens "
            "for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit."
        )


def _derived(seed: int, index: int) -> int:
    """A seed of its own for sample `index` of `seed`."""
    if index == 0:
        return seed
    return int(mix64(mix64(np.array([seed], np.uint64)) ^ np.uint64(index))[0])
