"""Played trajectories as rows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from operators.flatten import Turn, chain, flatten
from operators.samples import Played, episodes_of, sample_of


def played(prompt: list[int], said: list[int], versions: list[int]) -> list[Played]:
    own = Turn(tokens=said, own=True, log_probs=[-0.5] * len(said), versions=versions)
    return [Played(row=flatten(chain([Turn(tokens=prompt, own=False), own]))[0], text="said")]


def prompts_of(uid: list[int], traj_uid: list[int]) -> Any:
    return SimpleNamespace(uid=torch.tensor(uid), traj_uid=torch.tensor(traj_uid), answer=["wanted"] * len(uid))


def test_rows_are_right_padded_to_the_longest() -> None:
    sample = sample_of([played([1, 2], [7], [3]), played([5], [8, 9, 6], [3, 3, 4])], prompts_of([4, 4], [0, 1]), version=3)
    assert sample.input_ids.tolist() == [[1, 2, 7, 0], [5, 8, 9, 6]]
    assert sample.attention_mask.tolist() == [[True, True, True, False], [True] * 4]
    assert sample.position_ids.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert sample.responses.tolist() == [[2, 7, 0], [8, 9, 6]]
    assert sample.response_mask.tolist() == [[False, True, False], [True, True, True]]
    assert sample.rollout_log_probs.tolist() == [[0.0, -0.5, 0.0], [-0.5, -0.5, -0.5]]


def test_every_sampled_token_says_which_weights_sampled_it() -> None:
    sample = sample_of([played([1, 2], [7], [3]), played([5], [8, 9, 6], [3, 3, 4])], prompts_of([4, 4], [0, 1]), version=3)
    assert sample.token_versions.tolist() == [[-1, 3, -1], [3, 3, 4]]
    assert sample.version_tag.tolist() == [3, 3]


def test_episodes_say_where_each_turn_began_and_what_it_was_given() -> None:
    turn = Turn(tokens=[7, 8], own=True, log_probs=[-0.5] * 2, state=5, reward=0.5)
    rows = [flatten(chain([Turn(tokens=prompt, own=False), turn]))[0] for prompt in ([1], [1, 2])]
    sample = episodes_of([[Played(row=row, text="")] for row in rows], prompts_of([4, 4], [0, 1]), version=0)
    assert sample.step_states.tolist() == [[5, 5, 0], [0, 5, 5]]
    assert sample.step_rewards.tolist() == [[0.0, 0.5, 0.0], [0.0, 0.0, 0.5]]


def test_who_a_row_is() -> None:
    sample = sample_of([played([1], [7], [0]), played([5], [8], [0])], prompts_of([4, 9], [0, 3]), version=0)
    assert (sample.uid.tolist(), sample.traj_uid.tolist(), sample.leaf.tolist()) == ([4, 9], [0, 3], [0, 0])
    assert sample.is_pad.tolist() == [False, False]
    assert (sample.response_text, sample.answer) == (["said", "said"], ["wanted", "wanted"])


def test_the_leaves_of_a_trajectory_stand_together_under_its_names() -> None:
    prompt, said = Turn(tokens=[1], own=False), Turn(tokens=[7], own=True, log_probs=[-0.5], versions=[2], parent=0)
    rows = flatten([prompt, said, replace(said, tokens=[8], versions=[3])])
    ends = zip(rows, "ab", (0.0, 1.0), (False, True), strict=True)
    forked = [Played(row=row, text=text, reward=reward, is_truncated=cut) for row, text, reward, cut in ends]
    sample = episodes_of([forked, played([5], [9], [2])], prompts_of([4, 4], [0, 1]), version=2)
    assert (sample.uid.tolist(), sample.traj_uid.tolist(), sample.leaf.tolist()) == ([4, 4, 4], [0, 0, 1], [0, 1, 0])
    assert (sample.response_text, sample.answer) == (["a", "b", "said"], ["wanted"] * 3)
    assert sample.is_truncated.tolist() == [False, True, False]
    assert (sample.episode_reward.tolist(), sample.token_versions.tolist()) == ([0.0, 1.0, 0.0], [[2], [3], [2]])


def test_dtypes_are_those_of_the_fields() -> None:
    sample = sample_of([played([1], [7], [0])], prompts_of([4], [0]), version=0)
    kinds = {name: str(value.dtype).removeprefix("torch.") for name, value in vars(sample).items() if isinstance(value, torch.Tensor)}
    assert kinds == dict.fromkeys(("input_ids", "position_ids", "responses", "uid", "traj_uid", "leaf", "version_tag"), "int64") | {
        "attention_mask": "bool", "response_mask": "bool", "is_pad": "bool", "is_truncated": "bool", "rollout_log_probs": "float32",
        "token_versions": "int32",
    }  # fmt: skip
