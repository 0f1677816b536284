"""One trajectory through the rollout process: data row, its number, its leaves, and which weights sampled what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from small_loop import interpreter_of, small

from rlflow.data.column import Column
from rlflow.run.stream import Stream


@pytest.fixture(scope="module")
def stream() -> Stream:
    return Stream(*interpreter_of(small(n=3)))


def column(stream: Stream, block: object, name: str) -> list[object]:
    view = stream.view
    field = next(field.id for field in view.graph.fields if field.name == name and field.node == view.sampler.id)
    return block[str(field)].to_list()  # type: ignore[index]


def test_every_leaf_keeps_its_true_length(stream: Stream) -> None:
    block, lengths, _, _ = stream.sample((2, 41, 1), 5)  # prompt [30, 31, 32], trajectory 1
    assert lengths == (5, 6)
    assert column(stream, block, "input_ids") == [[30, 31, 32, 7, 7], [30, 31, 32, 7, 7, 7]]
    assert column(stream, block, "response_mask") == [[False, False, True, True], [False, False, True, True, True]]


def test_the_group_is_what_the_controller_drew(stream: Stream) -> None:
    first, _, _, _ = stream.sample((1, 41, 0), 5)
    again, _, _, _ = stream.sample((1, 99, 0), 5)
    assert column(stream, first, "uid") == [41, 41]
    assert column(stream, again, "uid") == [99, 99]


def test_siblings_are_different_trajectories_of_one_prompt(stream: Stream) -> None:
    assert [stream.sample((1, 41, j), 5)[1] for j in range(3)] == [(2, 3), (3, 4), (4, 5)]


def test_spans_are_runs_of_one_version_over_the_sampled_tokens(stream: Stream) -> None:
    _, _, spans, _ = stream.sample((0, 41, 1), 5)  # leaf 0: two tokens of version 5, leaf 1: three of version 6
    assert spans == ((5, 0, 2), (6, 2, 5))


def test_a_trajectory_that_trains_nothing_has_no_spans(stream: Stream) -> None:
    field = stream.view.token_versions
    assert field is not None
    assert stream._spans({field: Column.ragged("i32", [np.array([-1, -1], np.int32), np.array([-1], np.int32)])}) == ()


def test_only_what_is_read_elsewhere_leaves_the_process(stream: Stream) -> None:
    block, _, _, _ = stream.sample((0, 41, 0), 0)
    names = {stream.view.graph.fields[int(i)].name for i in block.columns}
    assert {"input_ids", "position_ids", "response_mask", "is_pad", "uid", "traj_uid", "response_text", "answer"} == names


def test_floats_of_the_rows_are_measured(stream: Stream) -> None:
    _, _, _, numbers = stream.sample((0, 41, 1), 5)
    assert numbers == {"engine.rollout/rollout_log_probs": -1.25}  # -0.5 a token, over (2 + 3) tokens of 2 rows


def test_the_size_of_the_data_set_is_told(stream: Stream) -> None:
    assert stream.sizes == {stream.view.source.id: 3}


def dispatching_with(stream: Stream, monkeypatch: pytest.MonkeyPatch, wait: threading.Barrier) -> list[int]:
    """The uids of prompts as they are dispatched, each of which waits there for the others."""
    dispatched, dispatch = list[int](), stream._dispatch

    def noted(row: int, uid: int) -> dict[int, Column]:
        dispatched.append(uid)
        wait.wait(timeout=10)
        return dispatch(row, uid)

    monkeypatch.setattr(stream, "_dispatch", noted)
    return dispatched


def test_two_prompts_are_dispatched_at_once_and_each_for_all_its_siblings(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that waited for the one before it would wait for the barrier, which waits for both."""
    dispatched = dispatching_with(stream, monkeypatch, threading.Barrier(2))
    prompts = [(row, 700 + row, number) for number in range(3) for row in (0, 1)]
    with ThreadPoolExecutor(6) as threads:
        lengths = list(threads.map(lambda prompt: stream.sample(prompt, 5)[1], prompts))
    assert sorted(dispatched) == [700, 701]
    assert lengths == [(3, 4), (2, 3), (4, 5), (3, 4), (5, 6), (4, 5)]


def test_a_dispatch_that_failed_is_tried_again_by_the_next_sibling(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = threading.Barrier(2)
    broken.abort()
    with monkeypatch.context() as patch:
        dispatching_with(stream, patch, broken)
        with pytest.raises(threading.BrokenBarrierError):
            stream.sample((1, 800, 0), 5)
    assert stream.sample((1, 800, 1), 5)[1] == (3, 4)
