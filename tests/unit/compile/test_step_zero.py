"""A feedback is closed with its own next version only: every way to write a cycle whose version stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from start import Start
from vocabulary import Policy, Torch, imitate, micro_pack, pad, shard, sync

from rlflow import CheckFailed, Current, Feedback, Next, Served, operator, pipeline


class Copies(Torch):
    """Makes a next version of one that nobody trained."""

    @operator(per="batch")
    def copy(self, weights: Current[Policy]) -> Next[Policy]: ...  # type: ignore[empty-body]

    @operator(per="batch")
    def copy_served(self, weights: Served[Policy]) -> Next[Policy]: ...  # type: ignore[empty-body]

    @operator(per="batch")
    def invent(self) -> Next[Policy]: ...  # type: ignore[empty-body]


def codes(close: Callable[[Start, Feedback[Policy], Copies], Any]) -> list[str]:
    """What is said of a loop whose second policy is closed in this way; the first one is right."""

    @pipeline
    def loop() -> None:
        s = Start()
        twin = Copies("twin")
        other = Feedback("other", init=twin.load())
        other.close(close(s, other, twin))
        s.finish(s.rows())

    try:
        loop()
    except CheckFailed as refused:
        return [d.code for d in refused.diagnostics if d.severity == "error"]
    return []


def train(s: Start, other: Feedback[Policy], twin: Copies) -> Next[Policy]:
    return twin.train(other.move, micro_pack(shard(pad(s.rows(), multiple=2), on=twin), max_tokens=64).loss(imitate()))


@pytest.mark.parametrize(
    ("close", "code"),
    [
        (lambda s, other, twin: other.current, "RLF204"),
        (lambda s, other, twin: other.served, "RLF204"),
        (lambda s, other, twin: other.move, "RLF204"),
        (lambda s, other, twin: twin.load(), "RLF204"),
        (lambda s, other, twin: other, "RLF005"),
        (lambda s, other, twin: None, "RLF005"),
        (lambda s, other, twin: s.advantages, "RLF005"),
        (lambda s, other, twin: sync(other.current, s.engine), "RLF204"),
        (lambda s, other, twin: twin.copy(other.current), "RLF204"),
        (lambda s, other, twin: sync(twin.copy(other.current), s.engine), "RLF204"),
        (lambda s, other, twin: twin.invent(), "RLF302"),
        (lambda s, other, twin: twin.copy(s.policy.current), "RLF203"),
    ],
)
def test_weights_that_no_call_of_train_made_do_not_close_a_feedback(close: Callable[..., Any], code: str) -> None:
    assert code in codes(close)


def test_a_copy_of_the_replica_is_no_next_version() -> None:
    assert codes(lambda s, other, twin: twin.copy_served(other.served)) == ["RLF204"]


def test_the_next_version_of_another_feedback_does_not_close_this_one() -> None:
    assert codes(
        lambda s, other, twin: s.actor.train(s.policy.move, micro_pack(shard(s.rows(), on=s.actor), max_tokens=64).loss(imitate()))
    )


def test_what_the_train_call_returns_closes_it() -> None:
    assert codes(train) == []


def test_and_so_does_what_is_made_of_that() -> None:
    assert codes(lambda s, other, twin: sync(train(s, other, twin), s.engine)) == []
