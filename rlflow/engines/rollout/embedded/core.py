"""EngineCore: everything the engine does, on one thread, without HTTP.

    submit → held | waiting        step: admit → prefill → first token
    abort, pause, continue               decode → next token → finished rows out
    begin / update / end           `busy` rows hold K/V; updates, release and flush ask for none of them

Each request is delivered exactly once, through its `deliver`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rlflow.engines.rollout.embedded.batch import RunningBatch
from rlflow.engines.rollout.embedded.config import ServerConfig
from rlflow.engines.rollout.embedded.fixed_shapes import prefill_width, slab_length
from rlflow.engines.rollout.embedded.request import Request
from rlflow.engines.rollout.embedded.runner import ModelRunner
from rlflow.engines.rollout.embedded.sampling import select_tokens
from rlflow.engines.rollout.embedded.scheduler import WaitingQueue, admissible
from rlflow.engines.rollout.embedded.weights import Weights
from rlflow.engines.rollout.protocol import FinishReason, PauseMode
from rlflow.errors import EngineError

__all__ = ["EngineCore"]

T = TypeVar("T")


class EngineCore:
    """State of the engine. Not thread-safe: owned by one thread. Methods that refuse raise EngineError."""

    def __init__(self, config: ServerConfig, tokenizer: Tokenizer | None) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.runner = ModelRunner(config)
        self.weights = Weights(self.runner.model)
        self.queue, self.batch = WaitingQueue(), RunningBatch()
        self.version = config.weight_version
        self.model_path = str(config.model_path)
        self.paused: PauseMode | None = None
        self.session_open = False
        self.kv_released = False
        self.draining = 0  # callers that wait for the running rows to finish: nothing new is admitted
        self.generated_tokens = 0

    # -- requests

    def submit(self, request: Request) -> None:
        """Queue it. Without usable weights and outside a pause it would wait for nothing: it fails instead."""
        if self.paused is None and not self.weights.usable:
            reason = self.unusable_reason()
            self._deliver(request, FinishReason(type="abort", message=reason, status_code=503, err_type="WeightsMissing"))
        else:
            self.queue.arrive(request, paused=self.paused is not None)

    def abort(self, rid: str) -> None:
        """End the request of exactly this id, wherever it is."""
        self._abort(lambda r: r.rid == rid, held_too=True)

    def abort_all(self) -> None:
        """End all that run or wait; those that arrived during a pause stay, and start when it ends."""
        self._abort(lambda r: True, held_too=False)

    def abort_everything(self, message: str) -> None:
        self._abort(lambda r: True, held_too=True, message=message)

    def _abort(self, matches: Callable[[Request], bool], *, held_too: bool, message: str | None = None) -> None:
        for request in self.queue.drop(matches, held_too=held_too):
            request.was_waiting = True
            self._deliver(request, FinishReason(type="abort", message=message or "Abort in waiting queue"))
        for request in self._take_out(np.array([matches(r) for r in self.batch.requests], np.bool_)):
            self._deliver(request, FinishReason(type="abort", message=message or "Aborted"))

    # -- pausing

    def pause(self, mode: PauseMode) -> None:
        """Stop stepping. abort: end all; retract: running rows give up their slots and wait; in_place: rows stay as they are."""
        self.paused = mode
        if mode == "abort":
            self.abort_all()
        elif mode == "retract":
            retracted = self._take_out(np.ones(len(self.batch), np.bool_))
            for request in retracted:
                request.num_retractions += 1
            self.queue.put_back(retracted)

    def resume_generation(self) -> None:
        if self.kv_released:
            raise EngineError("kv_cache is released; call resume_memory_occupation with tags ['kv_cache'] before continue_generation")
        if not self.weights.usable:
            raise EngineError(self.unusable_reason())
        self.paused = None
        self.queue.release_held()

    def unusable_reason(self) -> str:
        """Why the weights cannot be run, as a sentence."""
        if self.weights.released:
            return "the weights are released; resume_memory_occupation(['weights']) and push all parameters"
        missing = sorted(self.weights.missing)
        return f"{len(missing)} parameters were released and not pushed again, first {missing[0]!r}"

    # -- one step

    @property
    def runnable(self) -> bool:
        """Whether a step would do anything."""
        if self.paused is not None or self.kv_released or not self.weights.usable:
            return False
        return len(self.batch) > 0 or (self.draining == 0 and len(self.queue.waiting) > 0)

    @torch.no_grad()
    def step(self) -> None:
        """Admit and prefill what fits, then one token for every running row."""
        first = len(self.batch)
        if self.draining == 0:
            self._admit()
        if first < len(self.batch):
            self._prefill(first)
        if len(self.batch) > 0:
            last = np.arange(len(self.batch)), self.batch.length[: len(self.batch)] - 1
            self._extend(0, self.runner.decode(self.batch.tokens[last], last[1]))

    def _admit(self) -> None:
        waiting = [(prefill_width(len(r.input_ids) + len(r.output_ids)), slab_length(r.limit)) for r in self.queue.waiting]
        count = admissible(
            waiting,
            len(self.batch),
            slab_length(self.batch.longest_limit),
            max_running=self.config.max_running_requests,
            max_total_tokens=self.config.max_total_tokens,
            max_prefill_tokens=self.config.max_prefill_tokens,
        )
        running = len(self.batch)
        for request in self.queue.take(count):
            request.note_version(self.version, len(request.output_ids))
            self.batch.add(request)
        self.runner.cache.reserve(len(self.batch), self.batch.longest_limit, keep=running)

    def _prefill(self, first: int) -> None:
        admitted = self.batch.requests[first:]
        prompts = [r.input_ids + r.output_ids for r in admitted]
        wants = [r.prompt_logprobs and r.input_log_probs is None for r in admitted]
        logits, prompt_log_probs = self.runner.prefill(prompts, first, wants)
        for request, log_probs in zip(admitted, prompt_log_probs, strict=True):
            if log_probs is not None:
                request.input_log_probs = log_probs[: len(request.input_ids) - 1]
        self._extend(first, logits)

    def _extend(self, first: int, logits: torch.Tensor) -> None:
        """Draw a token for each row from `first` on, and hand back the rows that end with it."""
        tokens, log_probs = select_tokens(logits, self.batch.sampling_rows(first))
        self.generated_tokens += len(tokens)
        done = np.zeros(len(self.batch), np.bool_)
        done[first:] = self.batch.append_tokens(first, tokens, log_probs)
        broken = np.isnan(log_probs)
        done[first:] |= broken
        reasons = self._text_stops(first, done)
        if not done.any():
            return
        failed = {self.batch.requests[first + int(i)] for i in np.flatnonzero(broken)}
        if failed:
            self.runner.cache.clear(torch.from_numpy(first + np.flatnonzero(broken)))  # NaN would reach the slot's next row
        for request in self._take_out(done):
            reason = self._nan_reason() if request in failed else reasons.get(request.rid) or _natural_end(request)
            self._deliver(request, reason)

    def _text_stops(self, first: int, done: NDArray[np.bool_]) -> dict[str, FinishReason]:
        """Rows whose output now contains one of their stop strings; sets `done` for them."""
        found: dict[str, FinishReason] = {}
        for row in (first + np.flatnonzero(self.batch.stops_on_text[first : len(self.batch)])).tolist():
            request = self.batch.requests[row]
            if self.tokenizer is None or self.batch.output_count(row) < request.sampling.min_new_tokens:
                continue
            text = self.tokenizer.decode(self.batch.output_ids(row), skip_special_tokens=request.sampling.skip_special_tokens)
            matched = next((s for s in request.sampling.stop_text if s in text), None)
            if matched is not None:
                found[request.rid] = FinishReason(type="stop", matched=matched)
                done[row] = True
        return found

    def _nan_reason(self) -> FinishReason:
        message = f"the logits are NaN under weight version {self.version!r}"
        return FinishReason(type="abort", message=message, status_code=500, err_type="NonFiniteLogits")

    def _take_out(self, done: NDArray[np.bool_]) -> list[Request]:
        """Remove rows from the batch and its slots, outputs written back."""
        if not done.any():
            return []
        longest = int(self.batch.length[: len(self.batch)].max())
        gone, source, target = self.batch.remove(done)
        if len(source):
            self.runner.cache.move(torch.from_numpy(source), torch.from_numpy(target), longest)
        return gone

    def _deliver(self, request: Request, reason: FinishReason) -> None:
        request.finish, request.final_version, request.finished = reason, self.version, time.perf_counter()
        request.deliver(request)

    # -- weights and memory

    @property
    def busy(self) -> bool:
        """Whether rows hold K/V."""
        return len(self.batch) > 0

    def set_version(self, version: str) -> None:
        """Tokens drawn from now on are the new version's."""
        self.version = version
        for row, request in enumerate(self.batch.requests):
            request.note_version(version, self.batch.output_count(row))

    def update(self, tensors: Mapping[str, torch.Tensor], *, version: str | None, flush: bool) -> None:
        """Write parameters: all of them or, on EngineError, none."""
        if self.busy and flush:
            raise EngineError(
                "the cache cannot be flushed because requests are still running (paused in_place): nothing was changed; "
                "pass flush_cache=false, or pause with retract"
            )
        self.weights.check(tensors)
        self.weights.write(tensors)
        if flush:
            self.runner.cache.free()
        if version is not None:
            self.set_version(version)

    def check_complete(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise EngineError unless every parameter is there."""
        missing = sorted(set(self.weights.parameters) - {self.weights.tied.get(name, name) for name in tensors})
        if missing:
            raise EngineError(f"the checkpoint lacks {len(missing)} of the model's parameters, first {missing[0]!r}")

    def flush(self) -> None:
        if self.busy:
            raise EngineError("Flush cache failed.")
        self.runner.cache.free()

    def release(self, tags: frozenset[str]) -> None:
        if self.busy:
            raise EngineError(f"{len(self.batch)} requests are running; pause_generation (retract, abort) before release_memory_occupation")
        if "kv_cache" in tags:
            self.runner.cache.free()
            self.kv_released = True
        if "weights" in tags and not self.weights.released:
            self.weights.release()

    def resume(self, tags: frozenset[str]) -> None:
        released = self.released
        wrong = sorted(tags - released)
        if wrong:
            raise EngineError(f"resume of {wrong}, which is not released (released: {sorted(released)})")
        if "weights" in tags:
            self.weights.resume()
        if "kv_cache" in tags:
            self.kv_released = False

    @property
    def released(self) -> frozenset[str]:
        return frozenset(tag for tag, is_so in (("kv_cache", self.kv_released), ("weights", self.weights.released)) if is_so)


def _natural_end(request: Request) -> FinishReason:
    """Why a row ended whose newest token is a stop id or its last."""
    last = request.output_ids[-1]
    if last in request.sampling.stop_ids and len(request.output_ids) >= request.sampling.min_new_tokens:
        return FinishReason(type="stop", matched=last)
    return FinishReason(type="length", length=len(request.output_ids))
