"""A hop, a field and a model added in a user's own file: examples/judge. Nothing else knows of them."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM

from operators.encoding import encode
from operators.models import tokenizer_of
from operators.records import ModelRows, PpoRows
from operators.rows import micro_pack, pad, rebalance
from pipelines.grpo import grpo
from rlflow import CheckFailed, Plan, Site
from rlflow.cli import main
from rlflow.flags import command_of
from rlflow.run.graph import GraphView

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "judge" / "judge.py"


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    command_of(str(FILE))  # imports it as a run does
    return importlib.import_module("judge")


@pytest.fixture(scope="module")
def plan(judge: ModuleType) -> Plan:
    made: Plan = judge.grpo_judged()
    return made


def operators(plan: Plan) -> set[str]:
    return {node.name for node in plan.graph.nodes if node.operator is not None and node.id in plan.facts.needed}


def written(plan: Plan) -> set[tuple[str, str]]:
    return {(plan.graph.nodes[f.node].name, f.name) for f in plan.graph.fields if f.source is None}


# --- it is small, and nobody else knows of it --------------------------------------------------------------------------------------------
def test_it_is_sixty_lines() -> None:
    assert len(FILE.read_text().splitlines()) <= 60
    assert [path.name for path in FILE.parent.glob("*.py")] == ["judge.py"]


def test_no_file_of_the_three_packages_names_the_field_or_the_hop() -> None:
    sources = [path for package in ("rlflow", "operators", "pipelines") for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 100
    names = ("judge_scores", "JudgeScores", "grpo_judged")
    assert [path for path in sources if any(name in path.read_text() for name in names)] == []


def test_it_adds_a_worker_three_calls_and_two_fields_and_changes_nothing(plan: Plan) -> None:
    before = grpo()
    assert operators(plan) - operators(before) == {"judge.load", "judge.judge", "mix"}
    assert operators(before) - operators(plan) == set()
    assert written(plan) - written(before) == {("judge.judge", "judge_scores"), ("mix", "mix")}
    assert written(before) - written(plan) == set()
    assert {w.name for w in plan.graph.workers} - {w.name for w in before.graph.workers} == {"judge"}
    assert plan.warnings == ()


def test_diff_shows_what_it_adds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(ROOT / "pipelines" / "grpo.py"), str(FILE)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("  + ") and " → " not in line] == [
        "  + judge: Judge, 1 rank",
        "  + judge.load: on judge, reads no field",
        "  + judge.judge: on judge, reads response_text, answer",
        "  + mix: on host, reads token_level_scores, judge_scores, response_mask",
        "  + judge.judge.judge_scores: f32[256] reward(judged), read by mix",
        "  + mix.mix: f32[256, S - 1] reward(raw), read by shape_rewards",
        "  + judge.weights: 4*N_judge bytes",
    ]
    crossing = [line.partition(": ")[::2] for line in lines if line.startswith("  + ") and " → " in line]
    assert [(where, what.partition(":")[0]) for where, what in crossing] == [
        ("  + engine.rollout → judge", "response_text, answer"),
        ("  + judge → host", "judge_scores"),
    ]
    assert [line for line in lines if line.startswith("  - ")] == []  # nothing is taken away


def test_the_run_time_takes_it_as_it_is(plan: Plan) -> None:
    view = GraphView(plan)
    view.check_runnable()
    assert {"judge.judge", "mix"} <= {node.name for node in view.batch}
    assert view.reward_metric == "integer_match/is_correct"


def test_explain_says_where_the_field_comes_from_and_when_it_dies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(FILE)]) == 0
    row = next(" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.startswith("    judge_scores"))
    assert row == "judge_scores f32[256] reward(judged) batch policy@served dies after mix"


def test_its_role_keeps_it_from_being_taken_for_another_reward(judge: ModuleType) -> None:
    from operators.reward import shape_rewards

    def unmixed(response_text, answer, response_mask):  # type: ignore[no-untyped-def]
        scores = judge.judged(response_text, answer, response_mask)
        one = judge.Judge("second")
        shape_rewards(one.judge(one.load(), response_text, answer))
        return scores

    with pytest.raises(CheckFailed) as refused:
        grpo(reward=unmixed, held_out=judge.integer_match)
    assert [d.code for d in refused.value.diagnostics if d.severity == "error"] == ["RLF102"]  # a number a row is none a token


# --- what it computes --------------------------------------------------------------------------------------------------------------------
def test_the_mix_stands_at_the_last_trained_token(judge: ModuleType) -> None:
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    rule = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    mixed = judge.mix(rule, torch.tensor([0.5, 1.0, 1.0]), mask, share=0.4)
    torch.testing.assert_close(mixed, torch.tensor([[0.0, 0.0, 0.8, 0.0], [0.0, 0.0, 0.0, 0.4], [0.0, 0.0, 0.0, 0.0]]))


def test_an_opinion_is_what_the_model_would_say_next(judge: ModuleType, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    worker = judge.Judge("judge")
    worker.open(Site(name="judge", rank=0, dp_size=1, run_dir=tmp_path, seed=3, rendezvous=""))
    found = worker.judge(worker.load(), ["7", "a longer answer"], ["9", "12"])
    worker.close()

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path / "model" / "policy"), tokenizer_of("tiny")
    for said, right, opinion in zip(["7", "a longer answer"], ["9", "12"], found.tolist(), strict=True):
        question = encode(tokenizer, f"is {said} the same as {right}? ")
        yes, no = (_probability(model, question, encode(tokenizer, verdict)) for verdict in ("yes", "no"))
        assert opinion == pytest.approx(yes / (yes + no), abs=1e-5)


def _probability(model: torch.nn.Module, question: list[int], verdict: list[int]) -> float:
    """Of a verdict after a question, one row alone and unpadded."""
    with torch.no_grad():
        logits = model(torch.tensor([question + verdict])).logits[0].double()
    table = logits.log_softmax(-1)
    return math.exp(sum(float(table[len(question) + i - 1, token]) for i, token in enumerate(verdict)))


# --- a new field among the rows that are trained on ---------------------------------------------------------------------------------------
def test_a_new_field_goes_through_every_row_operator(judge: ModuleType) -> None:
    judged_rows = type("JudgedRows", (ModelRows, PpoRows), {"__annotations__": {"judge_scores": judge.JudgeScores}})
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
    rows = judged_rows(
        input_ids=torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0], [5, 6, 7, 0]]),
        position_ids=torch.tensor([[0, 1, 2, 3], [0, 1, 0, 0], [0, 1, 2, 0]]),
        response_mask=mask, old_log_probs=mask * -1.0, advantages=mask * 1.0, is_pad=torch.zeros(3, dtype=torch.bool),
        judge_scores=torch.tensor([0.4, 0.2, 0.3]),
    )  # fmt: skip
    micro = micro_pack(rebalance(pad(rows, multiple=4), pieces=2), max_tokens=8)
    parts = [part for minis in micro.parts for part in minis]
    scores = torch.cat([part.judge_scores for part in parts])
    lengths = torch.cat([part.response_mask.sum(-1) for part in parts])
    assert sorted(scores.tolist()) == pytest.approx([0.0, 0.2, 0.3, 0.4])  # the pad row has 0
    by_length = {0: 0.0, 1: 0.2, 2: 0.3, 3: 0.4}  # each is still with its own row
    assert scores.tolist() == pytest.approx([by_length[int(n)] for n in lengths])
