"""The drawing of a pipeline: what mermaid is given, statement by statement."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_loops import penalised
from vocabulary import Torch

from rlflow import Plan, pipeline
from rlflow.cli import main
from rlflow.show.mermaid import mermaid

GRPO = str(Path(__file__).parents[3] / "pipelines" / "grpo.py")
STATEMENT = re.compile(
    r"flowchart LR|end|subgraph p\d+\[\"[^\"]+\"\]|n\d+\[\"[^\"]+\"\]|f\d+\{\{\"[^\"]+\"\}\}"
    r"|[nf]\d+ (-->|-\.->|==>)\|\"[^\"]+\"\| [nf]\d+|classDef dropped stroke-dasharray: 5 5|class n\d+(,n\d+)* dropped"
)


def block(text: str, site: str) -> list[str]:
    """The calls of one process."""
    return re.findall(r'"(.*)"', text.split(f'["{site}"]\n')[1].split("  end")[0])


def test_a_process_is_a_subgraph_of_its_calls() -> None:
    assert block(mermaid(penalised()), "actor") == ["actor.load", "actor.log_probs", "actor.train", "sync"]


def test_an_edge_names_its_fields_and_from_process_to_process_its_bytes() -> None:
    text = mermaid(penalised(kl=0.1))
    assert '  n5 -->|"token_level_scores"| n6\n' in text  # exact_match → shaping, both on the host
    assert '  n3 -->|"input_ids, response_mask, uid + 2 more"| n4\n' in text  # rollout → form_batch, a plan of rows
    assert '  n4 -->|"input_ids, response_mask: 9*S - 1 bytes a row"| n10\n' in text  # form_batch → reference.log_probs
    # micro_pack → actor.train: old_log_probs were made there
    assert '  n15 -->|"ref_log_probs, response_mask, old_log_probs + 2 more: 17*S - 9 bytes a row"| n16\n' in text


def test_a_feedback_closes_the_ring() -> None:
    text = mermaid(penalised())
    assert '  f0{{"policy"}}\n' in text
    assert [line.strip() for line in text.splitlines() if "f0" in line and ("|" in line)] == [
        'f0 -->|"served"| n3',
        'f0 -->|"current"| n8',
        'f0 -->|"move"| n16',
        'f0 -->|"served"| n19',
        'n0 -->|"version 0"| f0',
        'n17 ==>|"policy k + 1"| f0',
    ]


def test_what_is_dropped_is_dashed() -> None:
    text = mermaid(penalised(kl=0.0))
    assert text.endswith("  classDef dropped stroke-dasharray: 5 5\n  class n9,n10 dropped")
    assert '  n4 -.->|"input_ids, response_mask: 9*S - 1 bytes a row"| n10\n' in text
    assert "dropped" not in mermaid(penalised(kl=0.1))


@pipeline
def oddly_named() -> None:
    Torch('a"]|<b>`#1;').load()


def test_what_mermaid_would_take_for_syntax_is_a_character_code() -> None:
    assert block(mermaid(oddly_named()), "a#34;#93;#124;#60;b#62;#96;#35;1#59;") == ["a#34;#93;#124;#60;b#62;#96;#35;1#59;.load"]


@pytest.mark.parametrize("plan", [penalised(), penalised(kl=0.1, dp=2)], ids=["on-policy", "penalised"])
def test_every_line_is_a_statement(plan: Plan) -> None:
    assert [line for line in mermaid(plan).splitlines() if not STATEMENT.fullmatch(line.strip())] == []


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", GRPO, "--mermaid", "--kl", "0.1"]) == 0
    assert capsys.readouterr().out.startswith('flowchart LR\n  subgraph p0["actor"]\n')


def test_the_command_wants_to_know_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", GRPO]) == 2
    assert "--mermaid" in capsys.readouterr().err
