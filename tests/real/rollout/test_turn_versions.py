"""New weights in the middle of a turn: which of them sampled each token, over turns and leaves of one trajectory.

    turn 1 ── pause(retract), weights 1, continue ──▶ the rest of turn 1 ── reply ── turn 2 ── the same with weights 2 ──▶ its rest
    versions  0 0 0 0 0                               1 1 1 1 1             -1 -1    1 1 1 1                               2 2 2 2

Where a version ends is told by the weights themselves: a plain forward of the weights that a token is said to be of gives its log-prob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rollout_server import Server, bucket, plain_log_probs, plain_model, running_server, sharp_model, wait_for, weights_of

from operators.engines import Embedded
from operators.environment import HigherLower
from operators.records import EpisodeSample, Trajectories
from rlflow import Served, Site

PROMPT = "what is it? "
TURN = 300  # tokens
GAME = HigherLower(turns=2, higher=" more ", lower=" less ", unclear=" say it ")
SECRET = "-123456789"
TO_WITHIN = 1e-3  # nats: float32, over a thousand positions


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The weights of versions 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("versions")
    return [sharp_model(folder / str(seed), seed=seed) for seed in range(3)]


@pytest.fixture
def served(models: list[Path], tmp_path: Path) -> Iterator[Server]:
    with running_server(models[0], tmp_path, "--weight-version", "0.0") as started:
        yield started


@pytest.fixture
def engine(served: Server, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Embedded:
    """The worker beside the server; its turns have their full length, so that there is time for a sync in the middle."""
    worker = Embedded("engine", model=str(models[0]), max_new_tokens=TURN, capacity=8)
    worker.open(Site(name="engine.rollout", rank=0, dp_size=1, run_dir=tmp_path, seed=5, rendezvous="", engine_url=served.url))
    drawn = worker._drawn
    monkeypatch.setattr(worker, "_drawn", lambda *how: msgspec.structs.replace(drawn(*how), ignore_eos=True))
    return worker


def prompts(engine: Embedded) -> Trajectories:
    ids: Any = torch.tensor([engine.tokenizer.encode(PROMPT, add_special_tokens=False).ids])
    return Trajectories(prompt_ids=ids, uid=torch.tensor([5]), traj_uid=torch.tensor([0]), answer=[SECRET])


def in_the_background(call: Callable[[], EpisodeSample]) -> Future[EpisodeSample]:
    threads = ThreadPoolExecutor(1)
    future = threads.submit(call)
    threads.shutdown(wait=False)
    return future


def update(served: Server, models: list[Path], version: int, when: Callable[[int], bool]) -> None:
    """New weights once the tokens that the running requests hold are so many: in the middle of what is being sampled."""
    wait_for(lambda: when(served.load()["num_used_tokens"]), f"the middle of the turn before version {version}")
    served.client.pause("retract")
    served.client.begin_weight_update()
    served.client.update_weights(bucket(weights_of(models[version])), weight_version=f"0.{version}")
    served.client.end_weight_update()
    served.client.continue_generation()


def runs(versions: list[int]) -> list[int]:
    """Equal neighbours as one."""
    return [v for i, v in enumerate(versions) if i == 0 or v != versions[i - 1]]


def check(models: list[Path], sample: EpisodeSample, row: int) -> None:
    """Every trained token is of the weights that its version names, and at each end of a version the other ones say otherwise."""
    length = int(sample.attention_mask[row].sum())
    ids, mask = sample.input_ids[row, :length].tolist(), sample.response_mask[row, : length - 1]
    recorded, versions = sample.rollout_log_probs[row, : length - 1], sample.token_versions[row, : length - 1]
    plain = torch.tensor([plain_log_probs(plain_model(folder), ids[:1], ids[1:]) for folder in models])
    assert ((versions >= 0) == mask).all()
    off = (plain - recorded).abs()  # [version, position]
    assert float(off.gather(0, versions.clamp(min=0).long()[None])[0][mask].max()) < TO_WITHIN
    ends = [t for t in range(length - 2) if mask[t] and mask[t + 1] and versions[t] != versions[t + 1]]
    for end in ends:
        before, after = versions[end], versions[end + 1]
        assert float(off[before, end + 1 : end + 6].max()) > 0.1  # five tokens are never all alike
        assert float(off[after, end - 4 : end + 1].max()) > 0.1


def test_versions_of_every_token_over_two_turns_and_two_syncs(engine: Embedded, served: Server, models: list[Path]) -> None:
    handle: Any = Served("policy", "served", 0)
    playing = in_the_background(lambda: engine.rollout_turns(handle, prompts(engine), environment=GAME))
    first, second = len(PROMPT), len(PROMPT) + TURN
    update(served, models, 1, lambda used: used > first + 40)
    update(served, models, 2, lambda used: used > second + 60)
    sample = playing.result(120)
    versions = sample.token_versions[0].tolist()
    assert runs(versions) == [-1, 0, 1, -1, 1, 2]
    assert int(sample.response_mask.sum()) == 2 * TURN
    assert sample.version_tag.tolist() == [0]
    check(models, sample, 0)


def test_versions_of_every_token_over_leaves(engine: Embedded, served: Server, models: list[Path]) -> None:
    """The sync in the first turn is told in the leaf that trains it, that in the second in both."""
    handle: Any = Served("policy", "served", 0)
    playing = in_the_background(lambda: engine.rollout_tree(handle, prompts(engine), environment=GAME, forks=(1, 2)))
    first, second = len(PROMPT), len(PROMPT) + TURN
    update(served, models, 1, lambda used: used > first + 40)
    update(served, models, 2, lambda used: used > 2 * (second + 60))  # both branches run
    sample = playing.result(120)
    rows = sample.token_versions.tolist()
    assert [runs(row) for row in rows] == [[-1, 0, 1, -1, 1, 2], [-1, 1, 2]]
    assert sample.response_mask.sum(-1).tolist() == [2 * TURN, TURN]
    assert (sample.leaf.tolist(), sample.uid.tolist(), sample.traj_uid.tolist()) == ([0, 1], [5, 5], [0, 0])
    assert sample.input_ids[0, : first + TURN].tolist() == sample.input_ids[1, : first + TURN].tolist()
    assert sample.responses[0, first + TURN :].tolist() != sample.responses[1, first + TURN :].tolist()
    check(models, sample, 0)
    check(models, sample, 1)
