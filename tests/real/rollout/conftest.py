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


@pytest.fixture(scope="session")
def shared_server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(model_dir, tmp_path_factory.mktemp("server"), "--weight-version", "0") as started:
        yield started


@pytest.fixture
def server(shared_server: Server, model_dir: Path) -> Iterator[Server]:
    """A running server with the weights of `model_dir` as version "0"; whatever a test leaves behind is undone."""
    yield shared_server
    info = shared_server.client.server_info()
    if info.released:
        shared_server.client.resume(info.released)  # type: ignore[arg-type]
    if info.update_session:
        shared_server.client.end_weight_update()
    first = {"model_path": str(model_dir), "weight_version": "0", "abort_all_requests": True}
    status, answer = shared_server.post("/update_weights_from_disk", first)
    assert status == 200, answer
    shared_server.client.continue_generation()
    shared_server.client.abort(abort_all=True)
