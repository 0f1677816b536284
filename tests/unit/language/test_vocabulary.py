"""The shipped aliases: each says what it means, and no two that a call could exchange say the same."""

from __future__ import annotations

from itertools import combinations

from operators import fields
from rlflow.language.spec import Spec, spec_of

SPECS: dict[str, Spec] = {name: spec for name, alias in vars(fields).items() if (spec := spec_of(alias)) is not None}


def test_the_vocabulary_is_seen() -> None:
    assert {"Uid", "ResponseText", "OldLogProbs", "PromptTemplate"} <= SPECS.keys()


def test_every_alias_has_a_role() -> None:
    assert [name for name, spec in SPECS.items() if spec.role is None] == []


def test_fields_of_one_dtype_and_shape_differ_in_their_role() -> None:
    alike = [
        {one, two}
        for (one, a), (two, b) in combinations(SPECS.items(), 2)
        if (a.dtype, a.shape) == (b.dtype, b.shape) and a.role is not None and a.role.accepts(b.role)
    ]
    of_any_weights = ("RolloutLogProbs", "OldLogProbs", "RefLogProbs", "TeacherLogProbs")
    generic = [{"LogProbs", name} for name in of_any_weights]  # takes the reading of the weights
    assert alike == generic
