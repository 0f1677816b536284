"""The slabs: sizes within the budget, contents kept when they grow, and prefill + decode equal to one plain forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlflow.engines.rollout.embedded.config import ServerConfig
from rlflow.engines.rollout.embedded.kv_cache import SlabCache
from rlflow.engines.rollout.embedded.runner import ModelRunner, load_model
from rlflow.engines.tiny import make_tiny_model
from rlflow.errors import EngineError

SIZES: dict[str, Any] = {"layers": 1, "kv_heads": 1, "head_dim": 2, "dtype": torch.float32}


def cache(**limits: int) -> SlabCache:
    return SlabCache(**SIZES, **({"max_slots": 16, "max_tokens": 100_000} | limits))


@pytest.mark.parametrize(
    ("slots", "length", "limits", "expected"),
    [
        (3, 10, {}, (4, 64)),  # rounded up
        (9, 65, {"max_slots": 10}, (10, 128)),
        (3, 300, {}, (4, 384)),
        (3, 10, {"max_tokens": 200}, (3, 64)),  # 4 × 64 are over the budget, 3 × 64 are not
        (1, 60, {"max_tokens": 60}, (1, 64)),  # one row has its room
    ],
)
def test_the_slabs_stay_within_the_budget(slots: int, length: int, limits: dict[str, int], expected: tuple[int, int]) -> None:
    made = cache(**limits)
    made.reserve(slots, length, keep=0)
    assert (made.slots, made.length) == expected
    assert made.nbytes == 2 * expected[0] * expected[1] * 2 * 4


def test_growing_keeps_the_rows_and_clears_the_rest() -> None:
    made = cache()
    made.reserve(2, 3, keep=0)
    made.start_prefill(torch.arange(2), torch.tensor([[True, True], [True, False]]))
    keys = torch.arange(8.0).view(2, 1, 2, 2)
    made.update(keys, keys + 100, 0)
    made.reserve(5, 200, keep=2)
    made.start_decode(torch.tensor([2, 1]), used=3)
    new = torch.full((2, 1, 1, 2), -1.0)
    seen, _ = made.update(new, new, 0)
    assert seen[:, 0].tolist() == [[[0, 1], [2, 3], [-1, -1]], [[4, 5], [-1, -1], [0, 0]]]


def test_free_gives_everything_back() -> None:
    made = cache()
    made.reserve(4, 100, keep=0)
    made.free()
    assert made.nbytes == 0


def test_moved_rows_carry_their_positions() -> None:
    made = cache()
    made.reserve(3, 4, keep=0)
    made.start_prefill(torch.arange(3), torch.ones(3, 1, dtype=torch.bool))
    keys = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1).expand(3, 1, 1, 2)
    made.update(keys, keys, 0)
    made.move(torch.tensor([2]), torch.tensor([0]), used=1)
    made.start_decode(torch.tensor([1]), used=2)
    assert made.update(keys[:1] * 9, keys[:1] * 9, 0)[0][0, 0, :, 0].tolist() == [3.0, 9.0]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runner") / "m"
    return make_tiny_model(folder, alphabet="0123456789", seed=0, hidden_size=32, kv_heads=1, architecture=request.param)


def test_prefill_and_decode_equal_one_plain_forward(model_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    plain: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    runner = ModelRunner(ServerConfig(model_path=model_dir))
    ids = torch.randint(3, 13, (5, 40), generator=torch.Generator().manual_seed(0))
    lengths = [1, 17, 30, 4, 9]
    with torch.no_grad():
        expected = plain(ids).logits
        runner.cache.reserve(5, 40, keep=0)
        for first, last in ((0, 3), (3, 5)):  # two admissions
            prompts = [ids[row, : lengths[row]].tolist() for row in range(first, last)]
            logits, _ = runner.prefill(prompts, first, [False] * len(prompts))
            torch.testing.assert_close(logits, torch.stack([expected[r, lengths[r] - 1] for r in range(first, last)]), atol=1e-5, rtol=0)
        for step in range(10):
            at = np.array(lengths) + step
            logits = runner.decode(ids[torch.arange(5), torch.from_numpy(at)].numpy(), at)
            torch.testing.assert_close(logits, expected[torch.arange(5), torch.from_numpy(at)], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'; the embedded engine serves llama, qwen2"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}, "rope_type 'dynamic'"),
    ],
)
def test_models_that_the_cache_cannot_serve_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    import json

    folder = make_tiny_model(tmp_path / "m", alphabet="01", seed=0, hidden_size=16)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(EngineError, match=message):
        load_model(folder)
