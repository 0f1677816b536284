from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rollout_server import Server, running_server, sharp_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that servers start with."""
    return sharp_model(tmp_path_factory.mktemp("models") / "a", seed=0)


@pytest.fixture(scope="session")
def other_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return sharp_model(tmp_path_factory.mktemp("models") / "b", seed=1)


@pytest.fixture(scope="module")
def server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(model_dir, tmp_path_factory.mktemp("server"), "--weight-version", "0", "--update-timeout", "0.5") as started:
        yield started
