"""`# rlflow: ignore[CODE]` at a call: what it hides, what it does not, and which comments are idle."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import PAGES, Case, cases_of, check, found_in

from rlflow import CheckFailed, Plan
from rlflow.compile.codes import CODES, SUPPRESSIBLE

HEAD = """from rlflow import pipeline
from start import Start
from vocabulary import grpo, keep_mixed, length_penalty, truncated_importance


"""
LOOP = HEAD + "@pipeline\ndef loop(twice: bool = False) -> None:\n    s = Start()\n{}    s.finish(s.rows())\n"
DEAD = "length_penalty(s.rewards, s.ready.response_mask, limit=100)"


def plan_of(folder: Path, program: str) -> Plan:
    plan = check("suppressed_h", program, folder)
    assert plan is not None
    return plan


def codes(plan: Plan) -> tuple[list[str], list[str]]:
    """Warnings, suppressed."""
    return [d.code for d in plan.warnings], [d.code for d in plan.suppressed]


@pytest.mark.parametrize(
    "lines",
    [
        f"    {DEAD}  # rlflow: ignore[RLF210]\n",
        f"    {DEAD}  # rlflow: ignore[RLF307, rlf210] to look at\n",
        f"    # rlflow: ignore[RLF210]\n    {DEAD}\n",
        f"    # rlflow: ignore[RLF210]\n    # to look at\n    {DEAD}\n",
        "    length_penalty(  # rlflow: ignore[RLF210]\n        s.rewards, s.ready.response_mask, limit=100\n    )\n",
        "    length_penalty(\n        s.rewards,  # rlflow: ignore[RLF210]\n        s.ready.response_mask, limit=100\n    )\n",
        "    length_penalty(\n        # rlflow: ignore[RLF210]\n        s.rewards, s.ready.response_mask, limit=100\n    )\n",
        "    length_penalty(\n        s.rewards, s.ready.response_mask, limit=100\n    )  # rlflow: ignore[RLF210]\n",
        f"    if True:\n        kept = {DEAD}  # rlflow: ignore[RLF210]\n",
    ],
)
def test_a_comment_on_any_line_of_the_call_or_alone_above_it_hides(lines: str, tmp_path: Path) -> None:
    told, suppressed = codes(plan_of(tmp_path, LOOP.format(lines)))
    assert suppressed == ["RLF210"]
    assert set(told) <= {"RLF017"}  # RLF307 of the second


@pytest.mark.parametrize(
    "lines",
    [
        f"    {DEAD}\n    # rlflow: ignore[RLF210]\n",
        f"    # rlflow: ignore[RLF210]\n\n    {DEAD}\n",
        f"    x = 1  # rlflow: ignore[RLF210]\n    {DEAD}\n",
        f"    {DEAD}\n    x = 1  # rlflow: ignore[RLF210]\n",
    ],
)
def test_a_comment_elsewhere_hides_nothing(lines: str, tmp_path: Path) -> None:
    told, suppressed = codes(plan_of(tmp_path, LOOP.format(lines)))
    assert (sorted(told), suppressed) == (["RLF017", "RLF210"], [])


def test_a_string_is_no_comment(tmp_path: Path) -> None:
    assert codes(plan_of(tmp_path, LOOP.format(f'    {DEAD}; "# rlflow: ignore[RLF210]"\n'))) == (["RLF210"], [])


def test_a_comment_in_a_branch_that_is_not_taken_is_not_idle(tmp_path: Path) -> None:
    assert codes(plan_of(tmp_path, LOOP.format(f"    if twice:\n        {DEAD}  # rlflow: ignore[RLF210]\n"))) == ([], [])


def test_a_comment_of_another_pipeline_is_not_idle(tmp_path: Path) -> None:
    other = "\n\n@pipeline\ndef other() -> None:\n    s = Start()\n    s.finish(s.rows())  # rlflow: ignore[RLF307]\n"
    assert codes(plan_of(tmp_path, LOOP.format("") + other)) == ([], [])


LAGGING = (
    HEAD
    + """@pipeline
def loop() -> None:
    s = Start(max_lag=1{more})
    s.finish(s.rows({weighed})){comment}
"""
)
WEIGHED = "truncated_importance(s.advantages, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)"


@pytest.mark.parametrize(
    ("code", "program"),
    [
        ("RLF307", LAGGING.replace("{more}", "").replace("{weighed}", "")),
        ("RLF123", LAGGING.replace("{more}", ", temperature=0.7").replace("{weighed}", WEIGHED)),
    ],
)
def test_an_error_that_is_hidden_leaves_a_whole_graph(code: str, program: str, tmp_path: Path) -> None:
    """RLF123 poisons what its call makes. Hidden, it does not."""
    with pytest.raises(CheckFailed) as refused:
        check("told_h", program.replace("{comment}", ""), tmp_path)
    assert [d.code for d in refused.value.diagnostics] == [code]
    plan = plan_of(tmp_path, program.replace("{comment}", f"  # rlflow: ignore[{code}]"))
    assert codes(plan) == ([], [code])
    assert plan.facts.failed == set()
    assert plan.facts.specs.keys() == {field.id for field in plan.graph.fields}
    assert Plan.from_json(plan.to_json()) == plan


LATE = (
    HEAD
    + """from rlflow import Record
from vocabulary import InputIds, ResponseMask, TokenScores, Uid


class Scored(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    token_level_scores: TokenScores
    uid: Uid


@pipeline
def loop() -> None:
    s = Start(dp=1)
    scores = s.score.token_level_scores
    rows = Scored(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, token_level_scores=scores, uid=s.ready.uid)
    kept = keep_mixed(rows, scores)  # rlflow: ignore[RLF503]
    late = keep_mixed(kept, kept.token_level_scores)
    s.finish(s.rows())
"""
)


def test_what_follows_from_a_hidden_error_is_judged(tmp_path: Path) -> None:
    """Told of the first filter, the check would keep quiet about the second."""
    with pytest.raises(CheckFailed) as refused:
        check("late_h", LATE, tmp_path)
    assert [d.code for d in refused.value.suppressed] == ["RLF503"]
    assert [d.code for d in refused.value.diagnostics if d.severity == "error"] == ["RLF503"]
    assert str(refused.value).endswith("1 error, 1 warning, 1 suppressed")


HELPED = (
    HEAD
    + """def helper(s: Start) -> None:
    length_penalty(s.rewards, s.ready.response_mask, limit=100)


@pipeline
def loop() -> None:
    s = Start()
{calls}    s.finish(s.rows())
"""
)


def test_a_comment_at_the_line_that_calls_a_helper(tmp_path: Path) -> None:
    once = HELPED.format(calls="    helper(s)  # rlflow: ignore[RLF210]\n")
    assert codes(plan_of(tmp_path, once)) == ([], ["RLF210"])


SPREAD = HEAD + """def helper(s: Start) -> None:
    s.finish(s.rows(truncated_importance(
        s.advantages, s.old(),
        s.ready.rollout_log_probs, s.ready.response_mask
    )))


@pipeline
def loop() -> None:
    helper(Start(temperature=0.7, max_lag=1)){comment}
"""


def test_a_mistake_in_an_argument_on_another_line_of_the_helper(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as refused:
        check("spread_h", SPREAD.replace("{comment}", ""), tmp_path)
    (found,) = refused.value.diagnostics
    assert (found.where.line, [label.text for label in found.related][-1]) == (9, "called from here")
    assert codes(plan_of(tmp_path, SPREAD.replace("{comment}", "  # rlflow: ignore[RLF123]"))) == ([], ["RLF123"])


def test_a_comment_at_one_of_two_callers_of_a_helper_is_not_for_the_other(tmp_path: Path) -> None:
    twice = HELPED.format(calls="    helper(s)  # rlflow: ignore[RLF210]\n    helper(s)\n")
    assert codes(plan_of(tmp_path, twice)) == (["RLF210", "RLF017"], [])  # one place: told once, with both callers


def test_a_comment_in_the_helper_is_for_all_its_callers(tmp_path: Path) -> None:
    inside = HELPED.replace("limit=100)", "limit=100)  # rlflow: ignore[RLF210]").format(calls="    helper(s)\n    helper(s)\n")
    assert codes(plan_of(tmp_path, inside)) == ([], ["RLF210"])


def test_what_can_be_suppressed_is_a_code() -> None:
    assert CODES.keys() >= SUPPRESSIBLE


def test_nothing_of_a_lost_graph_can_be_suppressed() -> None:
    """Names, dtypes, shapes and owners: without them no field could be told from another."""
    assert [code for code in SUPPRESSIBLE if code.startswith(("RLF00", "RLF01", "RLF10", "RLF13", "RLF20"))] == []


CASES = [pytest.param(case, id=case.name) for page in PAGES if page.stem in SUPPRESSIBLE for case in cases_of(page)]


def test_every_code_that_can_be_suppressed_has_a_program_here() -> None:
    assert {case.values[0].code for case in CASES} == SUPPRESSIBLE


@pytest.mark.parametrize("case", CASES)
def test_the_bad_program_of_a_page_with_a_comment_is_a_whole_graph(case: Case, tmp_path: Path) -> None:
    _, found = found_in(f"{case.name}_told", case.bad, tmp_path)
    lines = case.bad.splitlines()
    for diagnostic in found:
        places = [diagnostic.where, *(label.place for label in diagnostic.related if label.text == "called from here")]
        line = next(place.end_line for place in places if place.file.endswith(f"{case.name}_told.py"))
        if not lines[line - 1].endswith("]"):
            lines[line - 1] += f"  # rlflow: ignore[{case.code}]"
    plan = check(f"{case.name}_hidden", "\n".join(lines) + "\n", tmp_path)
    assert plan is not None
    assert (set(codes(plan)[0]), set(codes(plan)[1])) == (set(), {case.code})
    assert plan.facts.failed == set()
    assert plan.facts.specs.keys() == {field.id for field in plan.graph.fields}
