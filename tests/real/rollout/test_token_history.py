"""S13: with a tokenizer that writes one text in many ways, what was sampled is what the engine is asked about and what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rollout_server import VOCAB, plain_log_probs, plain_model, running_server, sharp_model
from tokenizers import Tokenizer, decoders, models

from operators.engines import Embedded
from operators.environment import Reply, Start
from operators.records import Trajectories
from rlflow import Served, Site

LETTERS, SPECIAL = "abcdefg:", ("<pad>", "<bos>", "<eos>")
PAIRS = ["".join(pair) for pair in product("abcdefg", repeat=2)][: VOCAB - len(SPECIAL) - len(LETTERS)]
TURN = 12


def merging() -> Tokenizer:
    """ "ab" is one token, or "a" and "b": a model that samples the two is never given the one instead."""
    vocab = {token: i for i, token in enumerate((*SPECIAL, *LETTERS, *PAIRS))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(pair[0], pair[1]) for pair in PAIRS]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


@dataclass(frozen=True)
class Echo:
    """Says it again, three times."""

    async def reset(self, prompt: str, answer: str, *, seed: int) -> Start:
        return Start(EchoEpisode())


class EchoEpisode:
    said = 0

    async def step(self, text: str) -> Reply:
        self.said += 1
        return Reply(f":{text}:", done=self.said == 3)

    async def close(self) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded]:
    folder = sharp_model(tmp_path / "model", seed=3)
    merging().save(str(folder / "tokenizer.json"))
    worker = Embedded("engine", model=str(folder), max_new_tokens=TURN, capacity=8)
    drawn = worker._drawn
    monkeypatch.setattr(worker, "_drawn", lambda *how: msgspec.structs.replace(drawn(*how), ignore_eos=True))
    with running_server(folder, tmp_path, "--weight-version", "0.0") as started:
        worker.open(Site(name="engine.rollout", rank=0, dp_size=1, run_dir=tmp_path, seed=5, rendezvous="", engine_url=started.url))
        yield worker


def turns_of(ids: list[int], own: list[bool]) -> list[list[int]]:
    """The runs of tokens that are trained."""
    found: list[list[int]] = []
    for at, (token, trained) in enumerate(zip(ids, own, strict=True)):
        if trained and (at == 0 or not own[at - 1]):
            found.append([])
        if trained:
            found[-1].append(token)
    return found


def test_S13_history_and_training_hold_the_sampled_ids(engine: Embedded) -> None:
    handle: Any = Served("policy", "served", 0)
    prompt: Any = torch.tensor([engine.tokenizer.encode("abc:", add_special_tokens=False).ids])
    prompts = Trajectories(prompt_ids=prompt, uid=torch.tensor([1]), traj_uid=torch.tensor([0]), answer=[""])
    sample = engine.rollout_turns(handle, prompts, environment=Echo())

    ids, mask = sample.input_ids[0].tolist(), sample.response_mask[0]
    turns = turns_of(ids[1:], mask.tolist())
    assert [len(turn) for turn in turns] == [TURN] * 3
    again = [engine.tokenizer.encode(engine._text(turn), add_special_tokens=False).ids for turn in turns]
    assert all(turn != other for turn, other in zip(turns, again, strict=True))  # text would have lost them
    # the engine's own log-probs are those of exactly this row: it was asked with these ids before every turn
    plain = torch.tensor(plain_log_probs(plain_model(Path(engine.model)), ids[:1], ids[1:]))
    assert float((plain - sample.rollout_log_probs[0]).abs()[mask].max()) < 1e-4
