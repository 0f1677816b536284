"""Tiny checkpoints, made once a session, and one thread: these are small sums."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlflow.engines.tiny import make_tiny_model

torch.set_num_threads(1)
SIZES = {"alphabet": "0123456789+= ", "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2}


@pytest.fixture(scope="session")
def policy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("policy") / "model", seed=1, **SIZES)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def critic_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("critic") / "model", seed=2, kind="critic", **SIZES)  # type: ignore[arg-type]
