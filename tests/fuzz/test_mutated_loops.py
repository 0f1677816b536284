"""No miss: a loop with one mistake is refused with one error, of an expected code, at the mutated place."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from loop_faults import break_loop
from loop_judge import Drawn, check, problem
from loop_maker import make_loop
from loop_model import render

FOLDER = tempfile.TemporaryDirectory()


@settings(settings.get_profile("loops"))
@given(data=st.data())
def test_a_loop_with_one_mistake_is_refused_where_it_is(data: st.DataObject) -> None:
    program = make_loop(Drawn(data))
    kind, fault = break_loop(program, Drawn(data))
    rendered = render(program)
    said = check(rendered.text, Path(FOLDER.name))
    wrong = problem(fault, rendered, said)
    assert wrong is None, "\n\n".join([f"{kind}: {wrong}", rendered.text, *map(str, said)])
