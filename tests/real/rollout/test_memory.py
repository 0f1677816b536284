"""release and resume give memory back and take it again; what cannot work meanwhile is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rollout_server import Server, bucket, plain_log_probs, plain_model, weights_of

from rlflow.engines.rollout import EngineRefused, SamplingParams

PROMPT = [5, 9, 14, 30]
LONG = SamplingParams(max_new_tokens=1000, ignore_eos=True)


def push(server: Server, weights: dict[str, object]) -> None:
    server.client.begin_weight_update()
    server.client.update_weights(bucket(weights))  # type: ignore[arg-type]
    server.client.end_weight_update()


def test_releasing_the_kv_cache_frees_its_bytes(server: Server, model_dir: Path) -> None:
    flight = server.start_generations([PROMPT], LONG)
    # 2 layers × (keys, values) × 2 kv heads × 16 × 4 bytes = 512 bytes a token; 1 row of 1004 tokens needs at least
    assert server.memory()["kv_cache"] >= 2 * 2 * 2 * 16 * 4 * 1004
    server.client.pause("retract")
    server.client.release(["kv_cache"])
    assert server.memory()["kv_cache"] == 0
    server.client.resume(["kv_cache"])
    server.client.continue_generation()
    answer = flight.results()[0]
    np.testing.assert_allclose(answer.log_probs, plain_log_probs(plain_model(model_dir), PROMPT, answer.output_ids), atol=5e-5)


def test_releasing_the_weights_frees_their_bytes(server: Server, model_dir: Path) -> None:
    held = server.memory()["weights"]
    assert held == sum(t.nbytes for t in weights_of(model_dir).values())
    server.client.pause("retract")
    server.client.release(["weights"])
    assert server.memory()["weights"] == 0
    server.client.resume(["weights"])
    assert server.memory()["weights"] == held


def test_nothing_is_sampled_from_weights_that_were_released_and_not_pushed(server: Server, model_dir: Path) -> None:
    weights = weights_of(model_dir)
    last = sorted(weights)[-1]
    server.client.pause("retract")
    server.client.release(["weights"])
    server.client.resume(["weights"])
    push(server, {name: t for name, t in weights.items() if name != last})
    with pytest.raises(EngineRefused, match=f"1 parameters were released and not pushed again, first '{last}'"):
        server.client.continue_generation()
    push(server, {last: weights[last]})
    server.client.continue_generation()
    answer = server.client.generate(PROMPT, SamplingParams(max_new_tokens=5))
    np.testing.assert_allclose(answer.log_probs, plain_log_probs(plain_model(model_dir), PROMPT, answer.output_ids), atol=1e-5)


def test_a_request_without_usable_weights_fails_with_503(server: Server) -> None:
    server.client.release(["weights"])
    with pytest.raises(EngineRefused, match="the weights are released") as caught:
        server.client.generate(PROMPT, SamplingParams(max_new_tokens=5))
    assert caught.value.status == 503


def test_continue_without_the_kv_cache_is_refused(server: Server) -> None:
    server.client.pause("retract")
    server.client.release(["kv_cache"])
    with pytest.raises(EngineRefused, match="kv_cache is released"):
        server.client.continue_generation()


def test_resume_of_what_is_not_released_is_refused(server: Server) -> None:
    with pytest.raises(EngineRefused, match="not released"):
        server.client.resume(["kv_cache"])


def test_release_twice_is_release_once(server: Server) -> None:
    server.client.pause("retract")
    server.client.release(["kv_cache", "weights"])
    server.client.release(["kv_cache", "weights"])
    assert server.client.server_info().released == ["kv_cache", "weights"]


def test_unknown_tags_are_refused(server: Server) -> None:
    assert server.post("/release_memory_occupation", {"tags": ["kvcache"]})[0] == 400


def test_no_tags_means_all(server: Server) -> None:
    server.client.pause("retract")
    assert server.post("/release_memory_occupation", {}) == (200, None)
    assert server.client.server_info().released == ["kv_cache", "weights"]
    assert server.post("/resume_memory_occupation", {}) == (200, None)
    assert server.client.server_info().released == []
