"""Version spans and limits of one request."""

from __future__ import annotations

from rollout_requests import request

from rlflow.engines.rollout.protocol import WeightVersionSpan


def test_spans_cover_the_output_and_skip_versions_without_tokens() -> None:
    r = request("a", max_new_tokens=9)
    r.note_version("1", 0)
    r.note_version("1", 2)  # admitted again under the same version
    r.note_version("2", 3)
    r.note_version("3", 3)  # two updates in one pause
    r.output_ids = [7] * 5
    assert r.version_spans() == [WeightVersionSpan("1", 0, 3), WeightVersionSpan("3", 3, 5)]


def test_no_output_has_no_spans() -> None:
    r = request("a")
    assert r.version_spans() == []
    r.note_version("1", 0)
    assert r.version_spans() == []


def test_the_limit_counts_prompt_and_output() -> None:
    assert request("a", [5, 6, 7], max_new_tokens=4).limit == 7
