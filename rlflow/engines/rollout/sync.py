"""Weight sync, the loop's only backward edge, against one engine.

    pause(retract) → release(kv_cache) → begin → bucket … bucket → end → resume(kv_cache) → checksum → continue → verify

Every step may be repeated: after a failure, call `sync_weights` again with all buckets; it starts from whatever state the
engine is in. A failure before the first bucket leaves the engine running on its former weights; a later one leaves it
paused, since nothing may be sampled under weights that are partly new or not the sender's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlflow.engines.rollout.checksum import tensor_checksum
from rlflow.engines.rollout.protocol import EngineGone, EngineRefused, RolloutClient, ServerInfo, SyncError, SyncReport
from rlflow.errors import EngineError

if TYPE_CHECKING:
    import torch

__all__ = ["sync_weights"]


def sync_weights(
    client: RolloutClient, buckets: Iterable[dict[str, torch.Tensor]], *, version: int, label: str = "", timeout: float = 600.0
) -> SyncReport:
    """Put the sender's parameters into the engine as weight version `version` and prove that they arrived.

    Args:
        buckets: dicts of Hugging Face parameter name → tensor, together every parameter of the engine's model; consumed lazily.
        version: the version that the engine serves afterwards.
        label: its name in the engine's answers, `str(version)` by default.
        timeout: seconds for all steps together, looked at between calls (one call is bounded by the client's own timeout).

    Raises:
        SyncError: naming the step that failed and whether the engine was left paused.
        EngineError: the engine cannot take safetensors buckets; nothing was done.
    """
    info = client.server_info()
    if "safetensors" not in info.load_formats:
        raise EngineError(
            f"engine at {client.url} (version {info.version}) takes no safetensors buckets: its load_formats are {info.load_formats}. "
            "Pickled buckets, which a real SGLang server wants, are not built yet; the embedded engine takes safetensors"
        )
    return _Sync(client, info, version, label or str(version), time.monotonic() + timeout).run(buckets)


class _Sync:
    """One attempt: remembers how far it came, so that a failure can be undone or named."""

    def __init__(self, client: RolloutClient, info: ServerInfo, version: int, label: str, deadline: float) -> None:
        self.client, self.info, self.version, self.label, self.deadline = client, info, version, label, deadline
        self.seconds: dict[str, float] = {}
        self.sent: dict[str, str] = {}  # parameter name → checksum of the sender's tensor
        self.buckets = self.bytes = 0
        self.touched = False  # whether the engine may hold any new value

    def run(self, buckets: Iterable[dict[str, torch.Tensor]]) -> SyncReport:
        client = self.client
        with self._step("pause"):
            client.pause("retract")
        with self._step("release"):
            if "kv_cache" not in self.info.released:
                client.release(["kv_cache"])
        with self._step("begin"):
            if self.info.update_session:  # an earlier attempt stopped half-way
                client.end_weight_update()
            client.begin_weight_update()
        with self._step("buckets"):
            self._send_all(buckets)
        with self._step("end"):
            client.end_weight_update()
        with self._step("resume"):
            client.resume(["kv_cache"])
        with self._step("checksum"):
            self._compare_checksums()
        with self._step("continue"):
            client.continue_generation()
        with self._step("verify"):
            self._verify_served()
        return SyncReport(version=self.version, buckets=self.buckets, tensors=len(self.sent), bytes=self.bytes, seconds=self.seconds)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            if begin > self.deadline:
                raise EngineError("no time left for this step")
            yield
        except Exception as error:
            outcome, paused = self._after_failure(error)
            where = f"weight sync to version {self.label} of the engine at {self.client.url} failed in step {name!r}"
            raise SyncError(f"{where}: {error}. {outcome}", step=name, paused=paused) from error
        self.seconds[name] = time.monotonic() - begin

    def _send_all(self, buckets: Iterable[dict[str, torch.Tensor]]) -> None:
        waiting: dict[str, torch.Tensor] | None = None
        for bucket in buckets:
            if waiting is not None:
                self._send(waiting, last=False)
            waiting = bucket
        if waiting is None:
            raise EngineError("there are no buckets: nothing to sync")
        self._send(waiting, last=True)

    def _send(self, bucket: dict[str, torch.Tensor], *, last: bool) -> None:
        import torch
        from safetensors.torch import save

        if time.monotonic() > self.deadline:
            raise EngineError(f"no time left after {self.buckets} buckets")
        served_dtype: torch.dtype = getattr(torch, self.info.dtype)
        plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in bucket.items()}
        # a clone for what shares memory inside the bucket (tied parameters), which the format refuses
        seen: set[int] = set()
        for name, tensor in plain.items():
            if tensor.untyped_storage().data_ptr() in seen:
                plain[name] = tensor.clone()
            seen.add(plain[name].untyped_storage().data_ptr())
            self.sent[name] = tensor_checksum(tensor.to(served_dtype))
        try:
            self.client.update_weights(save(plain), weight_version=self.label if last else None, flush_cache=last)
        except EngineRefused:  # a refused bucket changes nothing
            raise
        except EngineError:
            self.touched = True
            raise
        self.touched = True
        self.buckets += 1
        self.bytes += sum(t.numel() * t.element_size() for t in plain.values())

    def _compare_checksums(self) -> None:
        held = self.client.checksum()
        differs = sorted(name for name, digest in self.sent.items() if held.checksums.get(name) != digest)
        if differs:
            raise EngineError(f"the engine holds other values than were sent for {len(differs)} parameters, first {differs[0]!r}")
        arrived = {held.tied.get(name, name) for name in self.sent}
        missing = sorted(name for name in held.checksums if held.tied.get(name, name) not in arrived)
        if missing:
            raise EngineError(f"no bucket carried {len(missing)} of the engine's parameters, first {missing[0]!r}; send all of them")

    def _verify_served(self) -> None:
        served = self.client.model_info().weight_version
        if served != self.label:
            raise EngineError(f"the engine serves weight version {served!r}")
        if not self.client.ready():
            raise EngineError("the engine says that it is not ready")

    def _after_failure(self, error: Exception) -> tuple[str, bool]:
        """Undo what can be undone; say how the engine was left, and whether it is paused."""
        if isinstance(error, EngineGone):
            return "The engine is gone: start another one and sync it", False
        try:
            if not self.touched and self.info.paused is None:
                return self._restore(), False
            state = self.client.server_info()
            if state.paused is None:  # failed after continue: stop what would sample under unproved weights
                self.client.pause("retract")
            return "The engine is paused, its weights may be partly new; call sync_weights again with all buckets", True
        except EngineError as second:
            return f"Its state is unknown, perhaps paused ({second}); call sync_weights again or restart it", True

    def _restore(self) -> str:
        state = self.client.server_info()
        if state.update_session:
            self.client.end_weight_update()
        if "kv_cache" in state.released:
            self.client.resume(["kv_cache"])
        if state.paused is not None:
            self.client.continue_generation()
        return f"No bucket had arrived: the engine runs on with its former weights (version {self.client.model_info().weight_version})"
