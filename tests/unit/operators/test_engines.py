"""The workers of the shipped pipelines, on a real rollout server and a real torch engine."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from scripted import Scripted

from operators.engines import Embedded
from operators.environment import HigherLower
from operators.evaluation import Exam, HeldOut
from operators.models import model_folder
from operators.records import Prompts, Trajectories
from operators.reward import exact_match
from operators.sync import sync
from operators.trainers import Torch, TorchTeacher
from operators.turns import Rules
from rlflow import Next, Served, Site
from rlflow.attempt import Attempt
from rlflow.engines.rollout import EngineGone, EngineRefused
from rlflow.errors import DataError, EngineError, RlflowError
from rlflow.measure import collected

PROMPT = "largest of 3, 0, 6? "


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A served tiny model, and the worker object beside it."""
    run_dir = tmp_path_factory.mktemp("run")
    worker = Embedded("engine", max_new_tokens=3, capacity=8)
    site = Site(name="engine.rollout", rank=0, dp_size=1, run_dir=run_dir, seed=11, rendezvous="")
    model_folder("tiny", site)
    ready = run_dir / "ready.json"
    with (run_dir / "log").open("wb") as log:
        server = subprocess.Popen([*worker.server(site, ready), "--parent-pid", str(os.getpid())], stdout=log, stderr=log)
    deadline = time.monotonic() + 90
    while not ready.exists():
        assert server.poll() is None, (run_dir / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    url = json.loads(ready.read_text())["url"]
    worker.open(Site(name="engine.rollout", rank=0, dp_size=1, run_dir=run_dir, seed=11, rendezvous="", engine_url=url))
    actor = trainer(run_dir)
    sync(Next("policy", "next", 0, actor), worker)  # before it, the engine serves weights without a version
    actor.close()
    yield worker
    server.terminate()
    server.wait(timeout=30)


def trainer(run_dir: Path) -> Torch:
    actor = Torch("actor")
    actor.open(Site(name="actor", rank=0, dp_size=1, run_dir=run_dir, seed=11, rendezvous=""))
    return actor


def trajectories(engine: Embedded, uid: list[int], traj_uid: list[int], prompt: str = PROMPT, answer: str = "6") -> Trajectories:
    ids = torch.tensor([engine.tokenizer.encode(prompt, add_special_tokens=False).ids] * len(uid))
    return Trajectories(prompt_ids=ids, uid=torch.tensor(uid), traj_uid=torch.tensor(traj_uid), answer=[answer] * len(uid))


def served() -> Any:
    return Served("policy", "served", 0)


def test_one_turn_is_prompt_and_answer(engine: Embedded) -> None:
    sample = engine.rollout(served(), trajectories(engine, [5], [0]))
    mask = sample.response_mask[0]
    assert sample.input_ids[0, : len(PROMPT)].tolist() == engine.tokenizer.encode(PROMPT, add_special_tokens=False).ids
    assert mask.tolist() == [False] * (len(PROMPT) - 1) + [True] * int(mask.sum())
    assert 1 <= int(mask.sum()) <= 3  # max_new_tokens
    assert bool((sample.rollout_log_probs[0][mask] < 0).all())
    assert sample.token_versions[0][mask].tolist() == [0] * int(mask.sum())
    assert sample.response_text == [engine._text(sample.responses[0][mask].tolist())]


def test_a_trajectory_is_the_same_again_and_its_sibling_another(engine: Embedded) -> None:
    first, again = (engine.rollout(served(), trajectories(engine, [5], [0])) for _ in range(2))
    assert first.input_ids.tolist() == again.input_ids.tolist()
    siblings = engine.rollout(served(), trajectories(engine, [5] * 4, [0, 1, 2, 3]))
    assert len({tuple(row) for row in siblings.responses.tolist()}) > 1
    kept = int(first.attention_mask[0].sum())
    assert siblings.input_ids[0, :kept].tolist() == first.input_ids[0].tolist()  # whoever it is sampled with


def test_the_connection_to_a_server_that_is_gone_is_forgotten() -> None:
    worker, nobody = Embedded("engine"), "http://127.0.0.1:9"
    with pytest.raises(EngineGone), worker._connected(nobody) as client:
        client.server_info()
    assert worker._clients == {}
    with pytest.raises(EngineError, match="slow"), worker._connected(nobody):
        raise EngineError("slow")
    assert list(worker._clients) == [nobody]


def test_top_p_cuts_what_is_sampled_and_not_the_log_probs_recorded(engine: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "top_p", 1e-6)  # so little that the most likely token alone is left
    siblings = engine.rollout(served(), trajectories(engine, [5] * 4, [0, 1, 2, 3]))
    assert len({tuple(row) for row in siblings.responses.tolist()}) == 1
    said = siblings.rollout_log_probs[0][siblings.response_mask[0]]
    assert float(said.max()) < -0.01  # of the cut distribution they would all be 0


def test_the_environment_answers_between_turns_and_trains_nothing(engine: Embedded) -> None:
    game = HigherLower(turns=2, higher="up\n", lower="down\n", unclear="no\n")
    sample = engine.rollout_turns(served(), trajectories(engine, [5], [0], "guess 0-9: ", "6"), environment=game)
    own = sample.response_mask[0].tolist()
    assert own[: len("guess 0-9: ") - 1] == [False] * (len("guess 0-9: ") - 1)
    runs = [value for i, value in enumerate(own) if i == 0 or value != own[i - 1]]
    assert runs == [False, True, False, True]  # prompt, guess, reply, guess
    text = engine._text(sample.input_ids[0].tolist())
    assert any(reply in text for reply in ("up", "down", "no"))


def test_the_greedy_evaluation_tells_what_has_to_be_beaten(engine: Embedded) -> None:
    ids = torch.tensor([engine.tokenizer.encode(PROMPT, add_special_tokens=False).ids] * 2)
    prompts = Prompts(prompt_ids=ids, uid=torch.arange(2), answer=["6", "7"], template=["t", "t"])
    numbers = engine.evaluate(served(), prompts, reward=exact_match, every=1)
    assert numbers["prompts"] == 2.0
    assert (numbers["best_constant"], numbers["best_blind"]) == (0.5, 0.5)
    assert numbers == engine.evaluate(served(), prompts, reward=exact_match, every=1)


def test_with_an_environment_one_constant_answer_is_no_yardstick(engine: Embedded) -> None:
    ids = torch.tensor([engine.tokenizer.encode("guess 0-9: ", add_special_tokens=False).ids] * 2)
    prompts = Prompts(prompt_ids=ids, uid=torch.arange(2), answer=["6", "7"], template=["t", "t"])
    numbers = engine.evaluate(served(), prompts, reward=exact_match, every=1, environment=HigherLower(turns=2))
    assert numbers.keys() == {"reward", "prompts", "episode_reward"}


def test_a_prompt_that_the_engine_refuses_names_the_trajectory_and_the_prompt(engine: Embedded) -> None:
    long = trajectories(engine, [5], [2], PROMPT * 400)  # longer than the model's context
    with pytest.raises(
        EngineRefused, match=r"trajectory 5\.2, of the prompt 'largest of 3, 0, 6\? largest.*refused /generate: 400"
    ) as refused:
        engine.rollout(served(), long)
    assert refused.value.status == 400


def held_out_prompts(engine: Embedded, texts: list[str], answers: list[str]) -> Prompts:
    ids: Any = [torch.tensor(engine.tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    return Prompts(prompt_ids=ids, uid=torch.arange(3, 3 + len(texts)), answer=answers, template=["t"] * len(texts))


def test_a_held_out_prompt_that_the_engine_refuses_fails_the_evaluation_by_name(engine: Embedded) -> None:
    prompts = held_out_prompts(engine, [PROMPT, PROMPT * 400], ["6", "6"])
    said = r"held-out prompt 4 failed on 3 attempts, the last one: held-out prompt 4, of the prompt 'largest of 3.*: 400"
    with pytest.raises(EngineError, match=said):
        engine.evaluate(served(), prompts, reward=exact_match, every=1)


def test_samples_of_an_evaluation_are_drawn_anew_but_the_same_at_every_version(engine: Embedded) -> None:
    prompts = held_out_prompts(engine, [PROMPT, "largest of 1, 2, 2? "], ["6", "2"])
    exam = Exam(prompts, HeldOut(samples=5, temperature=1.0), with_episodes=False)
    once, again = (engine._answered_at_once(exam, 0) for _ in range(2))
    assert once == again
    assert len({one.text for one in once[:5] if one}) > 1
    alone = [engine._answered(exam, served(), Rules(), item) for item in exam.items]
    assert alone == once  # in one request or alone: the same answers


def test_an_evaluation_takes_no_answer_of_other_weights(engine: Embedded) -> None:
    prompts = held_out_prompts(engine, [PROMPT], ["6"])
    with pytest.raises(EngineError, match=r"held-out prompt 3 is pinned to version 7 of the weights, and was answered by \['0'\]"):
        engine.evaluate(Served("policy", "served", 7), prompts, reward=exact_match, every=1)


def test_an_answer_ends_where_the_context_does(engine: Embedded) -> None:
    sample = engine.rollout(served(), trajectories(engine, [5], [0], "1" * 511))  # max_new_tokens is 3
    assert (int(sample.attention_mask.sum()), int(sample.response_mask.sum())) == (512, 1)


MORE = Scripted(script=("say:more\n",))  # for ever


def test_an_episode_without_end_is_cut_after_max_turns_and_told(engine: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    collected()
    sample = engine.rollout_turns(served(), trajectories(engine, [5], [0], "go: "), environment=MORE, max_turns=3)
    own = sample.response_mask[0].tolist()
    assert sum(value and not own[i - 1] for i, value in enumerate(own)) == 3  # three turns of the model, the last one at the end
    assert own[-1]
    assert collected() == {"episodes/cut": 1.0}
    assert "trajectory 5.0: the episode was still going after 3 turns and ends there (max_turns)" in caplog.text


def test_an_episode_ends_before_a_reply_that_the_context_has_no_room_for(engine: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    wordy = Scripted(script=("say:" + "more\n" * 70,))
    sample = engine.rollout_turns(served(), trajectories(engine, [5], [0], "go: "), environment=wordy, max_turns=9)
    assert int(sample.attention_mask.sum()) <= 512
    assert sample.response_mask[0].tolist()[-1]
    assert "after 350 more tokens the model's context of 512 is full" in caplog.text


def test_a_reply_that_is_no_text_ends_the_trajectory_by_name(engine: Embedded) -> None:
    with pytest.raises(DataError, match=r"trajectory 5\.1: Scripted\.step of turn 1, '.*' is 5; return Reply"):
        engine.rollout_turns(served(), trajectories(engine, [5], [1], "go: "), environment=Scripted(script=("return:5",)))


def test_the_evaluation_bounds_its_turns_too(engine: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    ids = torch.tensor([engine.tokenizer.encode("go: ", add_special_tokens=False).ids])
    prompts = Prompts(prompt_ids=ids, uid=torch.tensor([3]), answer=["6"], template=["t"])
    engine.evaluate(served(), prompts, reward=exact_match, every=1, environment=MORE, max_turns=2)
    assert "held-out prompt 3: the episode was still going after 2 turns" in caplog.text


def test_a_held_out_episode_whose_environment_fails_scores_nothing_and_is_told(engine: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    ids = torch.tensor([engine.tokenizer.encode("go: ", add_special_tokens=False).ids] * 2)
    prompts = Prompts(prompt_ids=ids, uid=torch.tensor([3, 4]), answer=["6", "7"], template=["t", "t"])
    collected()
    broken = Scripted(script=("raise:broken",))
    numbers = engine.evaluate(served(), prompts, reward=exact_match, every=1, environment=broken, attempts=2, failing="zero")
    assert (numbers["reward"], numbers["episode_reward"], numbers["prompts"]) == (0.0, 0.0, 2.0)
    assert collected() == {"failed/environment": 2.0}
    assert "held-out prompt 4: Scripted.step of turn 1" in caplog.text
    assert "raised RuntimeError: broken" in caplog.text


def test_the_budget_holds_over_turns_of_a_real_engine(engine: Embedded) -> None:
    sample = engine.rollout_turns(served(), trajectories(engine, [5], [0], "go: "), environment=MORE, max_response_tokens=7)
    assert int(sample.response_mask.sum()) == 7  # turns of at most 3


def test_leaves_of_a_tree_share_their_prefix_and_go_their_own_ways(engine: Embedded) -> None:
    def play() -> Any:
        prompts = trajectories(engine, [5, 6], [0, 0], "go: ")
        return engine.rollout_tree(served(), prompts, environment=MORE, forks=(1, 3), max_turns=3)

    sample, again = play(), play()
    assert (sample.uid.tolist(), sample.leaf.tolist()) == ([5, 5, 5, 6, 6, 6], [0, 1, 2] * 2)
    assert len({tuple(row) for row in sample.input_ids.tolist()}) == 6
    first = sample.response_mask[0].tolist().index(True) + 1
    assert len({tuple(row[: first + 1]) for row in sample.input_ids[:3].tolist()}) == 1  # one first turn
    assert [row.tolist().index(True) == first - 1 for row in sample.response_mask[:3]] == [True, False, False]  # trained in leaf 0
    assert sample.input_ids.tolist() == again.input_ids.tolist()  # whatever branch was faster


# --- weights --------------------------------------------------------------------------------------------------------------------------
def test_a_version_that_a_worker_does_not_hold_is_not_published(tmp_path: Path) -> None:
    actor = trainer(tmp_path)
    with pytest.raises(EngineError, match="`actor` holds version 0 of the weights, the sync asks for 3"):
        list(actor.published(3, 1 << 20))
    actor.close()


def test_published_weights_are_all_parameters_in_buckets_under_the_bound(tmp_path: Path) -> None:
    actor = trainer(tmp_path)
    buckets = list(actor.published(0, 200_000))
    assert len(buckets) > 1
    assert all(sum(t.nbytes for t in bucket.values()) <= 200_000 or len(bucket) == 1 for bucket in buckets)
    names = [name for bucket in buckets for name in bucket]
    assert len(names) == len(set(names))
    assert set(names) == {name for name, _ in actor.engine.named_tensors()}
    actor.close()


def test_a_teacher_scores_rows_as_a_policy_of_its_weights_does(tmp_path: Path) -> None:
    actor, teacher = trainer(tmp_path), TorchTeacher("teacher")
    teacher.open(actor.site)
    rows = torch.randint(0, 20, (2, 7)), torch.arange(7).expand(2, 7), torch.ones(2, 7, dtype=torch.bool)
    theirs, own = teacher.log_probs(teacher.load(), *rows), actor.log_probs(cast(Any, actor.load()), *rows)
    assert theirs.shape == (2, 6)
    assert torch.equal(theirs, own)
    teacher.close()
    actor.close()


# --- evaluations that are not wanted any more -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("environment", [None, HigherLower()], ids=["at once", "one by one"])
def test_an_evaluation_that_is_given_up_ends_its_requests_on_the_engine(engine: Embedded, environment: HigherLower | None) -> None:
    """The engine is paused: none of them would come back by itself."""
    attempt, raised = Attempt("evaluation-0.0.7", engine.site.engine_url, None, 0.0), list[RlflowError]()
    prompts = held_out_prompts(engine, [PROMPT] * 3, ["6"] * 3)

    def evaluate() -> None:
        with attempt.running():
            try:
                engine.evaluate(Served("policy", "served", 0, None), prompts, reward=exact_match, every=1, environment=environment)
            except RlflowError as error:
                raised.append(error)

    engine.client.pause("retract")
    try:
        thread = threading.Thread(target=evaluate)
        thread.start()
        deadline = time.monotonic() + 30
        while len(attempt._open) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        attempt.give_up()
        thread.join(30)
        assert not thread.is_alive()
    finally:
        engine.client.continue_generation()
    assert [type(error) for error in raised] == [EngineError]
    assert "attempt evaluation-0.0.7 was given up" in str(raised[0])
