"""The only backward edge: new weights to the rollout engines, version + 1."""

from __future__ import annotations

from typing import TypeVar

from rlflow import Next, Worker, operator

W = TypeVar("W")


@operator(per="batch", serves="engine")
def sync(weights: Next[W], engine: Worker, *, bucket_bytes: int = 64 * 1024 * 1024) -> Next[W]:
    """Bring a new version to a rollout engine and prove that it is served.

    pause (retract) → release the KV cache → update, bucket by bucket → resume → continue → verify version and checksum.
    bucket_bytes: most bytes of parameters in one request. Runs in the process of the worker that owns the weights.
    Raises SyncError naming the step that failed and the state in which the engine was left.
    """
    from rlflow.engines.rollout import HttpRolloutClient, sync_weights

    client = HttpRolloutClient(engine.site.engine_url)
    try:
        sync_weights(client, weights.owner.published(weights.version, bucket_bytes), version=weights.version, label=weights.label)
    finally:
        client.close()
    return weights
