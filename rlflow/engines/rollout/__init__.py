"""Who samples: one protocol, one client, and a server that needs nothing.

    protocol.py   the messages (SGLang's HTTP contract) and what a rollout client can do
    client.py     HttpRolloutClient: blocking, thread-safe, one per engine URL
    sync.py       sync_weights: pause → release → begin → buckets → end → resume → continue → verify
    checksum.py   the fingerprint by which both ends prove that they hold the same weights
    embedded/     `python -m rlflow.engines.rollout.embedded`: the server, on torch alone

Importing this package does not import torch.
"""

from __future__ import annotations

from rlflow.engines.rollout.client import HttpRolloutClient
from rlflow.engines.rollout.protocol import (
    EngineGone,
    EngineRefused,
    EngineTimeout,
    Generation,
    RolloutClient,
    SamplingParams,
    SyncError,
    SyncReport,
    WeightVersionSpan,
)
from rlflow.engines.rollout.sync import sync_weights

__all__ = [
    "EngineGone",
    "EngineRefused",
    "EngineTimeout",
    "Generation",
    "HttpRolloutClient",
    "RolloutClient",
    "SamplingParams",
    "SyncError",
    "SyncReport",
    "WeightVersionSpan",
    "sync_weights",
]
