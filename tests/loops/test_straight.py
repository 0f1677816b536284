"""At max_lag=0 the asynchronous run is the straight loop: the same tokens, log-probs, metrics and weights, bit for bit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_cases import Run
from safetensors.torch import load_file
from straight import straight

PIPELINES = Path(__file__).parents[2] / "pipelines"
STEPS, PROMPTS, GROUP, NEW, SEED = 10, 8, 4, 6, 3

RECORDER = '''
import json
from operators.fields import Advantages, InputIds, ResponseMask, RolloutLogProbs, TrajUid, Uid
from rlflow import operator


@operator(per="row", corrects=("engine",))
def recorded(
    advantages: Advantages, ids: InputIds, mask: ResponseMask, rollout: RolloutLogProbs, uid: Uid, traj_uid: TrajUid
) -> Advantages:
    with open("FILE", "a") as file:
        for i in range(len(ids)):
            own = mask[i].nonzero().flatten().tolist()
            file.write(json.dumps([int(uid[i]), int(traj_uid[i]), ids[i, : own[-1] + 2].tolist(), rollout[i, own].tolist()]) + "\\n")
    return advantages.clone()
'''


def recording_grpo(folder: Path, file: Path) -> str:
    """The shipped pipeline, with one call more: what was sampled goes to `file`."""
    text, before = (PIPELINES / "grpo.py").read_text(), "    weighed = adv.advantages\n"
    assert before in text
    after = "ready.input_ids, ready.response_mask, ready.rollout_log_probs, ready.uid, ready.traj_uid"
    text = text.replace(before, f"    weighed = recorded(adv.advantages, {after})\n")
    text = text.replace("@pipeline\n", RECORDER.replace("FILE", str(file)) + "\n\n@pipeline\n", 1)
    (folder / "recording.py").write_text(text)
    return str(folder / "recording.py")


def sampled_by_run(file: Path) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == STEPS * PROMPTS * GROUP
    return {(uid, k): (ids, log_probs) for uid, k, ids, log_probs in rows}


@pytest.mark.parametrize(
    ("flags", "cut"),
    [
        ((), {}),
        (("--engines", "2"), {}),
        (("--engines", "2", "--watermark", "5"), {}),  # of 32 trajectories in a batch
        (("--dp", "2"), {"dp": 2}),
        (("--engines", "2", "--mini-batches", "2"), {"minis": 2}),
    ],
    ids=["one engine", "two engines", "few in flight", "two ranks", "two mini-batches"],
)
def test_the_run_is_the_straight_loop(start_run: Callable[..., Run], tmp_path: Path, flags: tuple[str, ...], cut: dict[str, int]) -> None:
    run = start_run(
        recording_grpo(tmp_path, tmp_path / "sampled.jsonl"), "--max-lag", "0", "--prompts", str(PROMPTS), "--group-size", str(GROUP),
        "--max-new-tokens", str(NEW), "--steps", str(STEPS), "--seed", str(SEED), "--eval-every", "1000", *flags,
    )  # fmt: skip
    code, _, err = run.end(240)
    assert code == 0, err
    torch.set_num_threads(1)  # as in the workers
    sizes = {"seed": SEED, "steps": STEPS, "prompts": PROMPTS, "group": GROUP, "new": NEW} | cut
    played, metrics, weights = straight(run.folder / "model" / "policy", PIPELINES / "data" / "digits.parquet", **sizes)

    assert sampled_by_run(tmp_path / "sampled.jsonl") == played
    assert [of_run(line) for line in run.steps()] == metrics
    saved = load_file(run.folder / "checkpoints" / f"step-{STEPS:06d}" / "actor" / "model.safetensors")
    assert saved.keys() == weights.keys()
    assert [name for name, tensor in saved.items() if not torch.equal(tensor, weights[name])] == []
    assert any(line["reward"] for line in metrics), "nothing was learned from"


def of_run(line: dict[str, Any]) -> dict[str, float]:
    """What the straight loop measures too."""
    found = {re.sub(r"^actor\.train/|/loss$", "", name): value for name, value in line["metrics"].items()}
    return {name: found[name] for name in ("ppo_clip", "entropy_bonus", "entropy", "grad_norm", "tokens")} | {"reward": line["reward"]}
