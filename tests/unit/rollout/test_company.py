"""What a request gives does not depend on the requests that run beside it, bit for bit: neither on how many nor on when they came."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_requests import request

from rlflow.engines.rollout.embedded.config import ServerConfig
from rlflow.engines.rollout.embedded.core import EngineCore
from rlflow.engines.rollout.embedded.fixed_shapes import TILE, prefill_width, slab_length, spans
from rlflow.engines.rollout.embedded.request import Request
from rlflow.engines.tiny import make_tiny_model

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "one head": {"hidden_size": 32, "heads": 1, "kv_heads": 1, "layers": 1},
    "wide heads": {"hidden_size": 128, "heads": 4, "kv_heads": 1, "architecture": "qwen2"},  # their sums depend on their length
}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def asked(seed: int, top_p: float) -> list[Request]:
    """Prompts from 1 to 230 tokens, answers of up to 60: across every width and span up to 384."""
    chance = random.Random(seed)
    lengths = [1, 2, 15, 16, 17, 33, 60, 64, 65, 100, 128, 200, 230, *(chance.randint(1, 70) for _ in range(24))]
    chance.shuffle(lengths)
    return [
        request(
            f"r{i}",
            [chance.randint(3, 12) for _ in range(n)],
            seed=1000 + i,
            max_new_tokens=chance.choice((1, 7, 60)),
            top_p=top_p if i % 2 else 1.0,
            temperature=chance.choice((1.0, 0.7)),
            greedy=i % 5 == 0,
        )
        for i, n in enumerate(lengths)
    ]


def run(core: EngineCore, requests: list[Request], a_step: int) -> dict[str, tuple[list[int], list[float]]]:
    """Tokens and log-probs by id; so many of the requests arrive before each step."""
    left = list(requests)
    while left or core.runnable:
        for one in left[:a_step]:
            core.submit(one)
        del left[:a_step]
        core.step()
    return {r.rid: (r.output_ids, r.log_probs) for r in requests}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_gives_the_same_alone_and_in_any_company(shape: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", alphabet="0123456789", seed=0, **SHAPES[shape])
    core = EngineCore(ServerConfig(model_path=folder, max_running_requests=33), None)
    alone: dict[str, Any] = {}
    for one in asked(seed=1, top_p=0.8):
        alone |= run(core, [one], a_step=1)
    assert len({tuple(ids) for ids, _ in alone.values()}) > 20, "the requests do not differ"
    for a_step in (1, 3, 100):
        assert run(core, asked(seed=1, top_p=0.8), a_step) == alone


def test_plain_products_depend_on_the_rows_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain products, of as many rows as there are: the reason for all this. (Skipped where the kernels of a machine do not show it.)"""
    folder = make_tiny_model(tmp_path / "m", alphabet="0123456789", seed=0, **SHAPES["wide heads"])
    monkeypatch.setattr("rlflow.engines.rollout.embedded.runner.tile_linears", lambda model: None)
    monkeypatch.setattr("rlflow.engines.rollout.embedded.runner.filled_up", lambda rows: rows)
    core = EngineCore(ServerConfig(model_path=folder), None)
    alone: dict[str, Any] = {}
    for one in asked(seed=1, top_p=0.8):
        alone |= run(core, [one], a_step=1)
    if run(core, asked(seed=1, top_p=0.8), 100) == alone:
        pytest.skip("on this machine, plain products do not depend on their rows")


def test_widths_and_spans_depend_on_a_length_alone() -> None:
    assert [prefill_width(n) for n in (1, 16, 17, 48, 49, 65, 97, 129, 193, 257, 385)] == [16, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert [slab_length(n) for n in (1, 64, 65, 128, 129, 256, 257, 384, 385, 769)] == [64, 64, 128, 128, 192, 256, 384, 384, 512, 1024]
    assert spans(384) == [(0, 64), (64, 128), (128, 192), (192, 256), (256, 384)]
    assert spans(64) == [(0, 64)]
    assert TILE % 16 == 0  # of 16 float32 lanes
