"""What the server is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ServerConfig"]


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Sizes in tokens or requests, times in seconds."""

    model_path: Path
    weight_version: str = "default"
    max_running_requests: int = 256
    max_total_tokens: int = 262_144  # K/V slots: running requests × the longest of them
    max_prefill_tokens: int = 16_384  # one prefill batch, padding included
    seed: int = 0
    threads: int = 1
    update_timeout: float = 60.0  # how long an update waits for running requests when nothing is paused
