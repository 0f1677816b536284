"""An engine that takes every call of a weight sync and writes down in which order they came."""

from __future__ import annotations

from collections.abc import Iterable

from safetensors.torch import load

from rlflow.engines.rollout.checksum import tensor_checksum
from rlflow.engines.rollout.protocol import ModelInfo, ServerInfo, WeightChecksums
from rlflow.errors import EngineError


class RecordedEngine:
    """The part of RolloutClient that a sync uses. fails: the call that raises EngineError, once."""

    url = "http://recorded"

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fails = fails
        self.paused = self.session = False
        self.released: list[str] = []
        self.version, self.held = "0", dict[str, str]()

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call.split("(")[0] == self.fails:
            self.fails = ""
            raise EngineError(f"{call} failed")

    def server_info(self) -> ServerInfo:
        return ServerInfo(
            version="recorded",
            dtype="float32",
            load_formats=["safetensors"],
            paused="retract" if self.paused else None,
            update_session=self.session,
            released=list(self.released),
        )

    def pause(self, mode: str = "retract") -> None:
        self._note(f"pause({mode})")
        self.paused = True

    def abort(self, rid: str = "", *, abort_all: bool = False) -> None:
        self._note("abort")

    def release(self, tags: Iterable[str]) -> None:
        self.released = list(tags)
        self._note(f"release({', '.join(self.released)})")

    def begin_weight_update(self) -> None:
        self._note("begin")
        self.session = True

    def update_weights(self, tensors: bytes, *, weight_version: str | None = None, flush_cache: bool = True) -> None:
        self._note("update(flush)" if flush_cache else "update")
        self.held |= {name: tensor_checksum(tensor) for name, tensor in load(tensors).items()}
        self.version = weight_version or self.version

    def end_weight_update(self) -> None:
        self._note("end")
        self.session = False

    def resume(self, tags: Iterable[str]) -> None:
        self._note(f"resume({', '.join(tags)})")
        self.released = []

    def flush_cache(self) -> None:
        self._note("flush")

    def continue_generation(self) -> None:
        self._note("continue")
        self.paused = False

    def checksum(self) -> WeightChecksums:
        return WeightChecksums(checksums=self.held)

    def model_info(self) -> ModelInfo:
        return ModelInfo(model_path="recorded", weight_version=self.version)

    def ready(self) -> bool:
        return not self.paused
