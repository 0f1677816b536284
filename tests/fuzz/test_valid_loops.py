"""No false alarm: loops that are right by construction check without an error and without a warning."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from loop_judge import Drawn, check
from loop_maker import make_loop
from loop_model import render

FOLDER = tempfile.TemporaryDirectory()


@settings(settings.get_profile("loops"))
@given(data=st.data())
def test_a_loop_that_is_right_is_clean(data: st.DataObject) -> None:
    text = render(make_loop(Drawn(data))).text
    said = check(text, Path(FOLDER.name))
    assert not said, "\n\n".join([text, *map(str, said)])
