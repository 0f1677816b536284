"""Weight updates over HTTP: sessions, buckets, disk, versions; what is refused changes nothing."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollout_server import Server, bucket, plain_log_probs, plain_model, weights_of, with_seed

from rlflow.engines.rollout import EngineRefused, SamplingParams

PROMPT = [5, 9, 14, 30]
NORM = "model.norm.weight"
LONG = SamplingParams(max_new_tokens=700, ignore_eos=True)


def tensor_body(tensors: dict[str, torch.Tensor], **more: Any) -> dict[str, Any]:
    data = base64.b64encode(bucket(tensors)).decode()
    return {"serialized_named_tensors": [data], "load_format": "safetensors", **more}


def test_retract_update_continue_is_on_policy_span_by_span(server: Server, model_dir: Path, other_model_dir: Path) -> None:
    flight = server.start_generations([PROMPT, [7] * 9], LONG)
    server.client.pause("retract")
    server.client.begin_weight_update()
    server.client.update_weights(bucket(weights_of(other_model_dir)), weight_version="1")
    server.client.end_weight_update()
    server.client.continue_generation()
    old, new = plain_model(model_dir), plain_model(other_model_dir)
    for prompt, answer in zip([PROMPT, [7] * 9], flight.results(), strict=True):
        (before, after), length = answer.spans, len(answer.output_ids)
        assert (before.version, after.version, answer.weight_version) == ("0", "1", "1")
        assert 0 == before.start < before.end == after.start < after.end == length == 700
        cut = before.end
        by_old, by_new = (plain_log_probs(model, prompt, answer.output_ids) for model in (old, new))
        np.testing.assert_allclose(answer.log_probs[:cut], by_old[:cut], atol=5e-5)  # float32 over 700 positions, in other orders of sums
        np.testing.assert_allclose(answer.log_probs[cut:], by_new[cut:], atol=5e-5)
        assert np.abs(np.subtract(by_old, by_new)).max() > 0.1  # what the wrong weights would be off by


def test_in_place_update_is_recorded_but_keeps_the_old_cache(server: Server, other_model_dir: Path) -> None:
    flight = server.start_generations([PROMPT], LONG)
    server.client.pause("in_place")
    server.client.begin_weight_update()
    checksum = server.client.checksum()
    with pytest.raises(EngineRefused, match="nothing was changed"):
        server.client.update_weights(bucket(weights_of(other_model_dir)), weight_version="1", flush_cache=True)
    assert server.client.checksum() == checksum
    server.client.update_weights(bucket(weights_of(other_model_dir)), weight_version="1", flush_cache=False)
    server.client.end_weight_update()
    server.client.continue_generation()
    answer = flight.results()[0]
    assert [s.version for s in answer.spans] == ["0", "1"]
    cut = answer.spans[1].start
    expected = plain_log_probs(plain_model(other_model_dir), PROMPT, answer.output_ids)
    assert np.abs(np.subtract(answer.log_probs, expected)[cut + 1 : cut + 50]).max() > 1e-2


def test_an_update_changes_the_checksums_and_the_served_version(server: Server, other_model_dir: Path) -> None:
    before = server.client.checksum().checksums
    server.client.begin_weight_update()
    server.client.update_weights(bucket(weights_of(other_model_dir)), weight_version="7")
    server.client.end_weight_update()
    after = server.client.checksum().checksums
    assert before.keys() == after.keys() == weights_of(other_model_dir).keys()
    assert {name for name in before if before[name] == after[name]} == {n for n in before if "norm" in n}  # ones in both
    assert server.client.model_info().weight_version == "7"
    assert server.client.generate(PROMPT, SamplingParams(max_new_tokens=2)).weight_version == "7"


def test_the_version_moves_with_the_bucket_that_brings_it(server: Server, other_model_dir: Path) -> None:
    weights = weights_of(other_model_dir)
    server.client.begin_weight_update()
    server.client.update_weights(bucket({NORM: weights.pop(NORM)}), flush_cache=False)
    assert server.client.model_info().weight_version == "0"
    server.client.update_weights(bucket(weights), weight_version="2")
    assert server.client.model_info().weight_version == "2"
    server.client.end_weight_update()


def test_other_dtypes_are_cast(server: Server) -> None:
    server.client.begin_weight_update()
    server.client.update_weights(bucket({NORM: torch.full((64,), 1.0078125, dtype=torch.bfloat16)}))
    assert server.post("/get_weights_by_name", {"name": NORM, "truncate_size": 2}) == (200, [1.0078125, 1.0078125])


def test_a_session_is_required_and_opens_once(server: Server) -> None:
    body = tensor_body({NORM: torch.ones(64)})
    status, answer = server.post("/update_weights_from_tensor", body)
    assert (status, answer["success"]) == (400, False)
    assert "must run between begin_weight_update() and end_weight_update()" in answer["message"]
    assert server.post("/begin_weight_update") == (200, {"success": True, "message": "Success"})
    assert server.post("/begin_weight_update")[0] == 400
    assert server.post("/end_weight_update")[0] == 200
    assert server.post("/end_weight_update")[0] == 400


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({NORM: torch.ones(64) * 2, "model.nope.weight": torch.ones(3)}, "no parameter 'model.nope.weight'"),
        ({NORM: torch.ones(64) * 2, "lm_head.weight": torch.ones(3, 3)}, "has shape (44, 64), but the update brings (3, 3)"),
    ],
)
def test_a_bad_bucket_changes_nothing(server: Server, tensors: dict[str, torch.Tensor], message: str) -> None:
    before = server.client.checksum()
    server.client.begin_weight_update()
    status, answer = server.post("/update_weights_from_tensor", tensor_body(tensors, weight_version="9"))
    assert status == 400
    assert message in answer["message"]
    assert server.client.checksum() == before
    assert server.client.model_info().weight_version == "0"


@pytest.mark.parametrize("load_format", [None, "flattened_bucket", "direct"])
def test_pickles_are_refused_unread(server: Server, load_format: str | None, tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "owned",)

    body = {"serialized_named_tensors": [base64.b64encode(pickle.dumps(Touch())).decode()], "load_format": load_format}
    server.client.begin_weight_update()
    status, answer = server.post("/update_weights_from_tensor", body)
    assert status == 400
    assert "never unpickles" in answer["message"]
    assert not (tmp_path / "owned").exists()


def test_what_is_no_safetensors_file_is_refused(server: Server) -> None:
    server.client.begin_weight_update()
    with pytest.raises(EngineRefused, match="no safetensors file"):
        server.client.update_weights(b"not a safetensors file, but long enough to hold a header")


def test_an_unpaused_update_waits_for_running_requests(server: Server, other_model_dir: Path, model_dir: Path) -> None:
    flight = server.start_generations([PROMPT], LONG)
    server.client.begin_weight_update()
    server.client.update_weights(bucket(weights_of(other_model_dir)), weight_version="1")
    answer = flight.results()[0]
    assert [(s.version, s.end) for s in answer.spans] == [("0", 700)]
    np.testing.assert_allclose(answer.log_probs, plain_log_probs(plain_model(model_dir), PROMPT, answer.output_ids), atol=5e-5)


def test_update_from_disk(server: Server, other_model_dir: Path) -> None:
    status, answer = server.post("/update_weights_from_disk", {"model_path": str(other_model_dir), "weight_version": "disk-1"})
    assert (status, answer["success"], answer["num_paused_requests"]) == (200, True, 0)
    assert answer["message"].endswith("Weight version updated to disk-1.")
    info = server.client.model_info()
    assert (info.model_path, info.weight_version) == (str(other_model_dir), "disk-1")
    answer = server.client.generate(PROMPT, SamplingParams(max_new_tokens=9))
    np.testing.assert_allclose(answer.log_probs, plain_log_probs(plain_model(other_model_dir), PROMPT, answer.output_ids), atol=1e-5)


def test_an_update_can_abort_what_runs(server: Server, other_model_dir: Path) -> None:
    flight = server.start_generations([PROMPT, [7] * 9], LONG)
    body = {"model_path": str(other_model_dir), "weight_version": "1", "abort_all_requests": True}
    assert server.post("/update_weights_from_disk", body)[0] == 200
    assert [a.finish_reason.type for a in flight.results()] == ["abort", "abort"]
    assert server.client.model_info().weight_version == "1"


def test_update_from_a_folder_without_weights_is_refused(server: Server, tmp_path: Path) -> None:
    before = server.client.checksum()
    assert server.post("/update_weights_from_disk", {"model_path": str(tmp_path)})[0] == 400
    assert server.client.checksum() == before


def test_update_weight_version_aborts_by_default(server: Server) -> None:
    flight = server.start_generations([PROMPT], LONG)
    answer = server.post("/update_weight_version", {"new_version": "v5"})
    assert answer == (200, {"success": True, "message": "Weight version updated to v5", "new_version": "v5"})
    assert flight.results()[0].finish_reason.type == "abort"


def test_update_weight_version_opens_a_span_in_running_requests(server: Server) -> None:
    flight = server.start_generations([PROMPT], LONG)
    server.post("/update_weight_version", {"new_version": "v6", "abort_all_requests": False})
    answer = flight.results()[0]
    assert [s.version for s in answer.spans] == ["0", "v6"]
    assert answer.output_ids == server.client.generate(PROMPT, with_seed(LONG, 100)).output_ids


def test_get_weights_by_name(server: Server, model_dir: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    status, rows = server.post("/get_weights_by_name", {"name": name, "truncate_size": 3})
    assert status == 200
    np.testing.assert_array_equal(np.float32(rows), weights_of(model_dir)[name][:3].numpy())
    assert server.post("/get_weights_by_name", {"name": "nope"})[0] == 400


def test_nan_weights_fail_requests_and_leave_nothing_behind(server: Server) -> None:
    name = "model.layers.0.input_layernorm.weight"  # its NaN reaches the K/V slabs
    short = SamplingParams(max_new_tokens=5, ignore_eos=True)
    server.client.generate_batch([[7] * 60] * 2, short)  # the slabs have grown: no later growth clears them
    server.client.begin_weight_update()
    server.client.update_weights(bucket({name: torch.full((64,), torch.nan)}), weight_version="bad", flush_cache=False)
    with pytest.raises(EngineRefused, match="the logits are NaN under weight version 'bad'") as caught:
        server.client.generate([7] * 40, short)
    assert caught.value.status == 500
    server.client.update_weights(bucket({name: torch.ones(64)}), weight_version="good", flush_cache=False)
    # the short row takes the failed one's slot, whose later positions the long row makes part of the read
    answers = server.client.generate_batch([[5], [7] * 60], short)
    assert [len(a.output_ids) for a in answers] == [5, 5]
