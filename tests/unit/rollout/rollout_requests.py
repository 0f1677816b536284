"""Requests for tests, without a server."""

from __future__ import annotations

from typing import Any

from rlflow.engines.rollout.embedded.request import Request, Sampling

DEFAULT: dict[str, Any] = {
    "max_new_tokens": 4,
    "min_new_tokens": 0,
    "temperature": 1.0,
    "greedy": False,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "stop_ids": (2,),
    "stop_text": (),
    "seed": 0,
    "skip_special_tokens": True,
    "trim_stop": True,
}


def request(rid: str, input_ids: list[int] | None = None, **sampling: Any) -> Request:
    return Request(
        rid=rid,
        input_ids=input_ids or [5, 6],
        sampling=Sampling(**(DEFAULT | sampling)),
        return_logprob=True,
        prompt_logprobs=False,
        deliver=lambda r: None,
    )
