"""One sequence on its way through the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rlflow.engines.rollout.protocol import FinishReason, WeightVersionSpan

__all__ = ["Request", "Sampling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters with defaults filled in. Greedy has temperature 1 (for the log-probs) and `greedy` set."""

    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    greedy: bool
    top_p: float
    top_k: int  # 0 = all
    min_p: float
    stop_ids: tuple[int, ...]  # end-of-sequence ids included unless ignore_eos
    stop_text: tuple[str, ...]
    seed: int
    skip_special_tokens: bool
    trim_stop: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """held → waiting → running → finished; running → waiting by a retraction."""

    rid: str
    input_ids: list[int]
    sampling: Sampling
    return_logprob: bool
    prompt_logprobs: bool
    deliver: Callable[[Request], None]  # called once, on the engine thread
    order: int = 0  # of arrival; a retracted request keeps its place
    output_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)  # nats, one an output id
    input_log_probs: list[float] | None = None  # of input_ids[1:], if asked for
    spans: list[tuple[str, int]] = field(default_factory=list)  # (version, first output index)
    num_retractions: int = 0
    finish: FinishReason | None = None
    final_version: str = ""
    was_waiting: bool = False  # ended before it ran, or after a retraction: the thin answer
    created: float = field(default_factory=time.perf_counter)
    finished: float = 0.0

    @property
    def limit(self) -> int:
        """The longest it can become, prompt and output together."""
        return len(self.input_ids) + self.sampling.max_new_tokens

    def note_version(self, version: str, produced: int) -> None:
        """From output index `produced` on, tokens come from the weights named `version`."""
        if not self.spans or self.spans[-1][0] != version:
            self.spans.append((version, produced))

    def version_spans(self) -> list[WeightVersionSpan]:
        """Versions over the output, in order; those under which no token came are left out."""
        bounds = [*(start for _, start in self.spans), len(self.output_ids)]
        return [WeightVersionSpan(v, start, end) for (v, start), end in zip(self.spans, bounds[1:], strict=True) if end > start]
