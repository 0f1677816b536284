"""sync_weights against a real engine: what it does, and in which state each failure leaves the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollout_server import Server, plain_log_probs, plain_model, weights_of

from rlflow.engines.rollout import EngineGone, HttpRolloutClient, SamplingParams, SyncError, sync_weights
from rlflow.errors import EngineError

PROMPT = [5, 9, 14, 30]
Buckets = list[dict[str, torch.Tensor]]


def in_buckets(path: Path, size: int = 6) -> Buckets:
    items = list(weights_of(path).items())
    return [dict(items[i : i + size]) for i in range(0, len(items), size)]


def serves(server: Server, path: Path) -> bool:
    """Whether the engine, running, samples from the weights in `path`."""
    answer = server.client.generate(PROMPT, SamplingParams(max_new_tokens=8, ignore_eos=True))
    return bool(np.allclose(answer.log_probs, plain_log_probs(plain_model(path), PROMPT, answer.output_ids), atol=1e-5))


def test_a_sync_is_served_and_reported(server: Server, other_model_dir: Path) -> None:
    report = sync_weights(server.client, iter(in_buckets(other_model_dir)), version=3)
    assert (report.version, report.buckets, report.tensors) == (3, 4, 21)
    assert report.bytes == sum(t.nbytes for t in weights_of(other_model_dir).values())
    assert list(report.seconds) == ["pause", "release", "begin", "buckets", "end", "resume", "checksum", "continue", "verify"]
    assert serves(server, other_model_dir)
    assert server.client.model_info().weight_version == "3"


def test_requests_in_flight_continue_under_the_new_version(server: Server, other_model_dir: Path) -> None:
    flight = server.start_generations([PROMPT, [7] * 9], SamplingParams(max_new_tokens=700, ignore_eos=True))
    sync_weights(server.client, in_buckets(other_model_dir), version=1)
    for answer in flight.results():
        assert [s.version for s in answer.spans] == ["0", "1"]
        assert len(answer.output_ids) == 700


def test_the_same_sync_again_changes_nothing(server: Server, other_model_dir: Path) -> None:
    sync_weights(server.client, in_buckets(other_model_dir), version=1)
    sync_weights(server.client, in_buckets(other_model_dir), version=1)
    assert serves(server, other_model_dir)


def test_half_precision_buckets_are_verified_after_the_cast(server: Server, other_model_dir: Path) -> None:
    buckets = [{name: t.to(torch.bfloat16) for name, t in b.items()} for b in in_buckets(other_model_dir)]
    assert sync_weights(server.client, buckets, version=1).bytes == sum(t.nbytes for t in weights_of(other_model_dir).values()) // 2


def test_views_and_strided_tensors_can_be_sent(server: Server, other_model_dir: Path) -> None:
    strided = [{name: t.T.contiguous().T if t.ndim == 2 else t for name, t in b.items()} for b in in_buckets(other_model_dir)]
    flat = torch.cat([t.flatten() for b in strided for t in b.values()])
    views: dict[str, torch.Tensor] = {}
    start = 0
    for name, t in ((n, t) for b in strided for n, t in b.items()):
        views[name] = flat[start : start + t.numel()].view(t.shape)  # every tensor is a view of one storage
        start += t.numel()
    sync_weights(server.client, [views], version=1)
    assert serves(server, other_model_dir)


def test_a_refused_first_bucket_leaves_the_engine_running_as_before(server: Server, model_dir: Path, other_model_dir: Path) -> None:
    buckets = [{"nope": torch.ones(3)}, *in_buckets(other_model_dir)]
    with pytest.raises(SyncError, match=r"version 1 of the engine at http://\S+ failed in step 'buckets'.*no parameter 'nope'") as caught:
        sync_weights(server.client, buckets, version=1)
    assert (caught.value.step, caught.value.paused) == ("buckets", False)
    assert "former weights (version 0)" in str(caught.value)
    assert server.client.ready()
    assert serves(server, model_dir)


def test_a_refused_later_bucket_leaves_it_paused_and_the_next_sync_repairs(server: Server, other_model_dir: Path) -> None:
    good = in_buckets(other_model_dir)
    with pytest.raises(SyncError) as caught:
        sync_weights(server.client, [good[0], {"nope": torch.ones(3)}, *good[1:]], version=1)
    assert (caught.value.step, caught.value.paused) == ("buckets", True)
    assert "is paused" in str(caught.value)
    assert not server.client.ready()
    sync_weights(server.client, good, version=1)
    assert server.client.ready()
    assert serves(server, other_model_dir)


def test_a_sender_that_fails_half_way_leaves_it_paused(server: Server, other_model_dir: Path) -> None:
    def failing() -> Iterator[dict[str, torch.Tensor]]:
        yield from in_buckets(other_model_dir)[:2]
        raise RuntimeError("the trainer lost a shard")

    with pytest.raises(SyncError, match="the trainer lost a shard") as caught:
        sync_weights(server.client, failing(), version=1)
    assert (caught.value.step, caught.value.paused) == ("buckets", True)


def test_missing_parameters_are_found_and_nothing_is_sampled(server: Server, other_model_dir: Path) -> None:
    with pytest.raises(SyncError, match="no bucket carried 6 of the engine's parameters") as caught:
        sync_weights(server.client, in_buckets(other_model_dir)[1:], version=1)
    assert (caught.value.step, caught.value.paused) == ("checksum", True)
    assert not server.client.ready()


class Corrupting(HttpRolloutClient):
    """Changes one value on the way, as a broken transport would."""

    def update_weights(self, tensors: bytes, **more: Any) -> None:
        super().update_weights(tensors[:-1] + bytes([tensors[-1] ^ 1]), **more)


def test_a_value_changed_on_the_way_is_found(server: Server, other_model_dir: Path) -> None:
    client = Corrupting(server.url)
    with pytest.raises(SyncError, match="the engine holds other values than were sent for 4 parameters") as caught:
        sync_weights(client, in_buckets(other_model_dir), version=1)
    assert (caught.value.step, caught.value.paused) == ("checksum", True)


def test_no_buckets_is_an_error(server: Server, model_dir: Path) -> None:
    with pytest.raises(SyncError, match="there are no buckets"):
        sync_weights(server.client, [], version=1)
    assert serves(server, model_dir)


def test_a_deadline_is_kept(server: Server, model_dir: Path, other_model_dir: Path) -> None:
    with pytest.raises(SyncError, match="no time left") as caught:
        sync_weights(server.client, in_buckets(other_model_dir), version=1, timeout=-1)
    assert (caught.value.step, caught.value.paused) == ("pause", False)
    assert serves(server, model_dir)


def test_an_engine_that_is_gone_is_named() -> None:
    with pytest.raises(EngineGone, match=r"engine at http://127\.0\.0\.1:9 is gone"):
        sync_weights(HttpRolloutClient("http://127.0.0.1:9"), [], version=1)


def test_a_server_without_safetensors_is_refused_before_anything_is_done(server: Server) -> None:
    class PicklesOnly(HttpRolloutClient):
        def server_info(self) -> Any:
            info = super().server_info()
            info.load_formats = []
            return info

    def never() -> Iterable[dict[str, torch.Tensor]]:
        raise AssertionError("no bucket may be asked for")
        yield {}

    with pytest.raises(EngineError, match=r"takes no safetensors buckets.*not built yet"):
        sync_weights(PicklesOnly(server.url), never(), version=1)
    assert server.client.ready()
