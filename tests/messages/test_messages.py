"""Each page says exactly what the compiler says of its bad programs, and its repaired programs pass. How a page is written: README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import PAGES, Case, cases_of, check, found_in

from rlflow.compile.codes import CODES

CASES = [pytest.param(case, id=case.name) for page in PAGES for case in cases_of(page)]


@pytest.mark.parametrize("case", CASES)
def test_the_message_is_exactly_this(case: Case, tmp_path: Path) -> None:
    said, _ = found_in(case.name, case.bad, tmp_path)
    assert said + "\n" == case.message


@pytest.mark.parametrize("case", CASES)
def test_a_bad_program_has_the_code_of_its_page_and_no_other(case: Case, tmp_path: Path) -> None:
    _, found = found_in(case.name, case.bad, tmp_path)
    assert {diagnostic.code for diagnostic in found} == {case.code}


@pytest.mark.parametrize("case", CASES)
def test_the_repaired_program_is_accepted_without_a_warning(case: Case, tmp_path: Path) -> None:
    plan = check(case.name, case.good, tmp_path)
    assert plan is None or plan.warnings == ()


def test_each_code_has_a_page() -> None:
    assert [page.stem for page in PAGES] == list(CODES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_opens_with_the_title_of_its_code(page: Path) -> None:
    assert page.read_text().startswith(f"# {page.stem}: {CODES[page.stem]}\n\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_made_of_cases_and_nothing_else_is_in_a_block(page: Path) -> None:
    cases = list(cases_of(page))
    assert cases
    assert page.read_text().count("```") == 6 * len(cases)
    assert len({case.name for case in cases}) == len(cases)
