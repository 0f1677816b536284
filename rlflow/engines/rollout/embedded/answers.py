"""Finished request → the JSON of SGLang's /generate."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from rlflow.engines.rollout.embedded.request import Request
from rlflow.engines.rollout.protocol import FinishReason

__all__ = ["generate_answer"]


def generate_answer(request: Request, tokenizer: Tokenizer | None, *, prompt_ids: bool, index: int | None) -> dict[str, Any]:
    """One answer; `index` numbers the answers of a list."""
    assert request.finish is not None
    answer: dict[str, Any] = {"text": _text(request, tokenizer), "output_ids": request.output_ids, "meta_info": _meta(request)}
    if prompt_ids:
        answer["prompt_token_ids"] = request.input_ids
    if index is not None:
        answer["index"] = index
    return answer


def _meta(request: Request) -> dict[str, Any]:
    assert request.finish is not None
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": _finish(request.finish, thin=request.was_waiting),
        "weight_version": request.final_version,
        "weight_versions": request.version_spans(),
        "completion_tokens": len(request.output_ids),
        "e2e_latency": request.finished - request.created,
    }
    if not request.was_waiting:  # SGLang's thin form for what ended while it waited
        meta |= {"prompt_tokens": len(request.input_ids), "cached_tokens": 0, "num_retractions": request.num_retractions}
    if request.return_logprob:
        log_probs = zip(request.log_probs, request.output_ids, strict=True)
        meta["input_token_logprobs"] = _input_logprobs(request)
        meta["output_token_logprobs"] = [(lp, token, None) for lp, token in log_probs]
        meta["output_token_logprobs_length"] = len(request.output_ids)
    return meta


def _input_logprobs(request: Request) -> list[tuple[float | None, int, None]]:
    if request.input_log_probs is None:
        return []
    return [(lp, token, None) for lp, token in zip([None, *request.input_log_probs], request.input_ids, strict=True)]


def _finish(reason: FinishReason, *, thin: bool) -> dict[str, Any]:
    if reason.type == "length":
        return {"type": "length", "length": reason.length}
    if reason.type == "stop":
        return {"type": "stop", "matched": reason.matched}
    if thin:
        return {"type": "abort", "message": reason.message}
    return {"type": "abort", "message": reason.message, "status_code": reason.status_code, "err_type": reason.err_type}


def _text(request: Request, tokenizer: Tokenizer | None) -> str:
    """The output as text, without the stop token or string unless no_stop_trim."""
    if tokenizer is None:
        return ""
    ids, matched = request.output_ids, request.finish.matched if request.finish else None
    trim = request.sampling.trim_stop
    if trim and isinstance(matched, int):
        ids = ids[:-1]
    text: str = tokenizer.decode(ids, skip_special_tokens=request.sampling.skip_special_tokens)
    if trim and isinstance(matched, str):
        text = text[: text.find(matched)]
    return text
