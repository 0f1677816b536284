"""The field map, as text and as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_loops import penalised
from start import Start

from pipelines.grpo import grpo
from rlflow import Devices, pipeline
from rlflow.compile.codes import CODES
from rlflow.errors import RlflowError, UsageError
from rlflow.show.codes import explain_code
from rlflow.show.explain import explain, explain_json


def line(text: str, start: str) -> str:
    found = [row for row in text.splitlines() if row.startswith(start)]
    assert len(found) == 1, f"{len(found)} lines start with {start!r}"
    return " ".join(found[0].split())


def test_a_field_says_who_reads_it_and_after_whom_it_dies() -> None:
    text = penalised().explain()
    assert line(text, "    input_ids") == "input_ids i64[8*P, S] tokens stream policy@served actor.log_probs, dies after actor.train"
    assert line(text, "    old ") == "old f32[512, S - 1] log_prob(current) batch policy@current,served dies after actor.train"


def test_what_nobody_reads_is_marked() -> None:
    text = penalised(kl=0.0).explain()
    assert line(text, "x   returns") == "x returns f32[512, S - 1] returns batch policy@served nobody: dropped"
    assert line(text, "x reference.log_probs") == "x reference.log_probs on reference, per row, dropped"


def test_hops_are_counted_in_bytes() -> None:
    text = penalised(kl=0.1).explain()
    assert line(text, "  host → actor ") == "host → actor advantages: 2048*S - 2048 bytes, 4*S - 4 a row"
    # 512 rows of input_ids i64[S] + response_mask flag[S - 1]
    assert line(text, "  engine.rollout → reference").endswith(" input_ids, response_mask: 4608*S - 512 bytes, 9*S - 1 a row")
    assert line(grpo().explain(), "  actor → engine ") == "actor → engine weights of policy, version k + 1: 4*N_actor bytes"


def test_what_the_controller_says_and_hears_is_a_line_a_process() -> None:
    said = line(penalised().explain(), "  controller ↔ actor")
    assert said.startswith("controller ↔ actor > keys, version, rows, cuts: ")
    assert "; < key, metrics: " in said


def test_rows_that_change_their_rank_cross_too() -> None:
    assert line(penalised(dp=2).explain(), "  actor → actor (other ranks)").endswith(" old: 2048*S - 2048 bytes, 4*S - 4 a row")
    assert "other ranks" not in penalised(dp=1).explain()


def test_what_lives_across_steps_comes_first() -> None:
    text = grpo(max_lag=1).explain()
    assert text.splitlines()[2] == "state (all that lives across steps; bytes of one copy)"
    state = text[text.index("\nstate (") : text.index("\nprocesses\n")].strip().splitlines()[1:]
    assert [row.split()[0] for row in state if row[2] != " "] == ["actor", "engine", "dataset", "integer_match", "controller"]
    assert "in the checkpoint: weights 4*N_actor, optimizer 8*N_actor, " in state[0]


def test_how_far_trained_rows_lag() -> None:
    text = " ".join(grpo(max_lag=2).explain().split())
    assert "; trained rows are at most 2 behind, with up to 768 trajectories in flight" in text  # (2 + 1) * 32 * 8


@pipeline
def together() -> None:
    s = Start(on=Devices("gpus", count=8))
    s.finish(s.rows())


def test_workers_on_shared_devices_take_turns() -> None:
    text = together().explain()
    assert line(text, "  actor             Torch") == "actor Torch, dp 2, on gpus 0, 1"
    turns = text[text.index("\nturns on shared devices\n") : text.index("\nfeedbacks\n")].strip().splitlines()[1:]
    assert [" ".join(row.split()) for row in turns] == [
        "gpus before engine.rollout: offload actor.weights, resume engine.kv_cache",
        "gpus before actor.log_probs: release engine.kv_cache, release engine.weights, onload actor.weights",
        "gpus before actor.train: onload actor.optimizer",
        "gpus before sync: offload actor.optimizer, resume engine.weights",
    ]


def test_row_operators_that_are_one_plan() -> None:
    assert line(grpo().explain(), "  controller   ") == "controller form_batch, pad → rebalance → shard → micro_pack (one row plan)"


def test_no_line_is_wider_than_a_terminal() -> None:
    assert max(len(row) for row in penalised(kl=0.1, dp=2).explain().splitlines()) <= 140


def test_what_is_dropped_and_why() -> None:
    text = penalised(kl=0.0).explain()
    said = text[text.index("\ndropped\n") :].splitlines()
    assert said[2:6] == [
        "  no call that the step needs reads its result",
        "    reference.load",
        "    reference.log_probs ref",
        "  no call reads it: it never leaves its writer",
    ]


def test_peak_bytes_are_polynomials_until_sizes_are_given() -> None:
    plan = penalised(kl=0.1)
    # input_ids 8*S + response_mask S - 1 + ref 4*(S - 1), of 512 rows
    assert line(plan.explain(), "  reference         in") == "reference in reference.log_probs: 6656*S - 2560"
    text = explain(plan, {"S": 1025, "Q": 128, "text": 200, "b2": 4})
    assert "\npeak bytes of columns at S=1025, Q=128, text=200, b2=4\n" in text
    found = line(text, "  reference         6")
    assert found == "reference 6.5 MiB in reference.log_probs: input_ids 4.0 MiB, ref 2.0 MiB, response_mask 512.0 KiB"


def test_sizes_are_letters_of_the_plan() -> None:
    with pytest.raises(UsageError, match="no size is called `Z`"):
        explain(penalised(), {"Z": 3})


def test_the_same_as_json() -> None:
    data = json.loads(json.dumps(explain_json(penalised())))
    uid = next(f for f in data["fields"] if f["name"] == "uid" and f["writer"] == "engine.rollout")
    assert {key: uid[key] for key in ("dtype", "shape", "scope", "role", "readers", "born", "dies", "version")} == {
        "dtype": "i64",
        "shape": ["8*P"],
        "scope": "stream",
        "role": "group",
        "readers": ["grpo"],
        "born": "engine.rollout",
        "dies": "grpo",
        "version": "policy@served",
    }
    assert data["warnings"] == []


@pytest.mark.parametrize("code", CODES)
def test_the_page_of_a_code_shows_programs_and_messages(code: str) -> None:
    page = explain_code(code.lower())
    assert page.startswith(f"# {code}: ")
    assert f"[{code}]" in page


def test_a_page_that_is_missing_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RlflowError, match=r"RLF202: .* its page is missing, looked for in .*here and .*there"):
        explain_code("RLF202", (tmp_path / "here", tmp_path / "there"))


def test_an_unknown_code_has_a_near_miss() -> None:
    with pytest.raises(UsageError, match=r"there is no code RLF203x; did you mean `RLF203`\?"):
        explain_code("RLF203x")


def test_the_page_says_whether_the_code_can_be_suppressed() -> None:
    assert explain_code("RLF202").endswith("\nIt cannot be suppressed.")
    assert "\nWhere it is meant: `# rlflow: ignore[RLF210] why`, on a line of the call" in explain_code("RLF210")
