"""The turn loop, with answers that are written down in place of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from scripted import Scripted
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from operators.environment import Environment, HigherLower
from operators.models import tokenizer_of
from operators.samples import Played
from operators.turns import Course, Rules, TurnLoop
from rlflow.attempt import Attempt, current
from rlflow.engines.rollout import Generation
from rlflow.engines.rollout.protocol import FinishReason, WeightVersionSpan
from rlflow.errors import DataError, OperatorError
from rlflow.measure import collected

TINY = tokenizer_of("tiny")
MORE = Scripted(script=("say:more\n",))


def ids(text: str) -> list[int]:
    return list(TINY.encode(text).ids)


def generation(tokens: Sequence[int], spans: Sequence[tuple[str, int, int]] = (), ends: Literal["stop", "length"] = "stop") -> Generation:
    whole = spans or [("0", 0, len(tokens))]
    return Generation(
        rid="r", output_ids=list(tokens), log_probs=[-0.5] * len(tokens), text="", finish_reason=FinishReason(type=ends),
        prompt_tokens=0, weight_version="0", spans=[WeightVersionSpan(*span) for span in whole], num_retractions=0,
    )  # fmt: skip


class Model:
    """Says the next of its lines, by the branches taken so far; notes what it was asked."""

    def __init__(self, *lines: str, branches: dict[tuple[int, ...], Sequence[str]] | None = None) -> None:
        self.lines, self.branches, self.asked = lines, branches or {}, list[Course]()

    def __call__(self, course: Course) -> Generation:
        self.asked.append(course)
        lines = self.branches.get(course.branch, self.lines)
        said = ids(lines[min(course.turn, len(lines) - 1)])
        return generation(said[: course.room], ends="length" if len(said) > course.room else "stop")


def play(model: Any, environment: Environment | None, prompt: str = "go: ", answer: str = "6", **rules: Any) -> list[Played]:
    context = rules.pop("context", None)
    played = Rules(environment=environment, **({"max_turns": 4} | rules))
    loop = TurnLoop(model, TINY, lambda row: TINY.decode(list(row)), played, max_new_tokens=8, context=context)
    return loop.play(ids(prompt), answer, seed=0, place="trajectory 5.0")


def texts(leaves: list[Played]) -> list[str]:
    """All tokens of each leaf, what is trained in capitals."""
    found = []
    for leaf in leaves:
        characters = TINY.decode(leaf.row.input_ids.tolist())
        trained = [False, *leaf.row.response_mask.tolist()]
        found.append("".join(c.upper() if own else c for c, own in zip(characters, trained, strict=True)))
    return found


# --- no fork ------------------------------------------------------------------------------------------------------------------------------
def test_without_an_environment_there_is_one_turn() -> None:
    model = Model("abc")
    (leaf,) = play(model, None)
    assert (texts([leaf]), leaf.text, leaf.reward) == (["go: ABC"], "abc", 0.0)
    assert model.asked == [Course(history=tuple(ids("go: ")), turn=0, branch=(), spent=0, room=8)]


def test_turns_go_on_until_the_episode_is_over() -> None:
    model = Model("a", "b", "c")
    (leaf,) = play(model, Scripted(script=("reward:0.5", "say:and?\n", "end:1")))
    assert texts([leaf]) == ["go: Ago on\nBand?\nC"]
    assert (leaf.text, leaf.reward) == ("c", 1.5)
    assert [(course.turn, course.spent) for course in model.asked] == [(0, 0), (1, 1), (2, 2)]


def test_turns_that_begin_in_the_same_state_have_its_number_and_each_turn_its_own_reward() -> None:
    (one,), (other,) = (play(Model(*guesses), HigherLower()) for guesses in (("3", "8", "6"), ("8", "3", "6")))
    first, second = (leaf.row.step_states[leaf.row.response_mask].tolist() for leaf in (one, other))
    assert (first[0], first[2]) == (second[0], second[2])
    assert len({*first, *second}) == 4
    assert min(*first, *second) > 0
    assert one.row.step_rewards[one.row.response_mask].tolist() == [0.0, 0.0, 1.0]


def test_an_environment_that_names_no_states_has_one_for_each_thing_that_was_said() -> None:
    said = [play(Model(*lines), MORE, max_turns=3)[0].row for lines in (("a", "b", "c"), ("a", "b", "d"), ("b", "a", "c"))]
    first, second, third = (row.step_states[row.response_mask].tolist() for row in said)
    assert first == second
    assert third[0] == first[0]
    assert not {*third[1:]} & {*first[1:]}


def test_what_the_environment_says_first_follows_the_prompt() -> None:
    model = Model("a")
    assert texts(play(model, Scripted(script=("end",), opening="begin "))) == ["go: begin A"]
    assert model.asked[0].history == tuple(ids("go: begin "))


def test_versions_of_several_syncs_stay_with_their_tokens() -> None:
    def said(course: Course) -> Generation:
        return generation(ids("abc"), [("3", 0, 1), ("4", 1, 3)] if course.turn == 0 else [("4", 0, 2), ("6", 2, 3)])

    (leaf,) = play(said, MORE, max_turns=2)
    assert texts([leaf]) == ["go: ABCmore\nABC"]
    assert leaf.row.token_versions.tolist() == [-1, -1, -1, 3, 4, 4, -1, -1, -1, -1, -1, 4, 4, 6]


# --- where it ends ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rules", "turns", "why"),
    [
        ({"max_turns": 2}, 2, "max_turns"),
        ({"max_response_tokens": 6}, 2, "max_response_tokens: all 6 are used up"),
        ({"max_response_tokens": 7}, 3, "max_response_tokens: all 7 are used up"),
        ({"context": 16}, 2, "after 5 more tokens the model's context of 16 is full"),
    ],
)
def test_an_episode_that_goes_on_is_cut_and_told(rules: dict[str, Any], turns: int, why: str, caplog: pytest.LogCaptureFixture) -> None:
    collected()
    model = Model("abc")
    (leaf,) = play(model, MORE, **rules)
    assert len(model.asked) == turns
    assert leaf.row.response_mask[-1]  # a reply that nobody answers is not kept
    assert leaf.is_truncated
    assert collected() == {"episodes/cut": 1.0}
    assert f"trajectory 5.0: the episode was still going after {turns} turns and ends there ({why})" in caplog.text


def test_what_is_left_of_the_budget_is_the_room_of_the_next_turn() -> None:
    model = Model("abcde")
    (leaf,) = play(model, MORE, max_response_tokens=12)
    assert [course.room for course in model.asked] == [8, 7, 2]
    assert texts([leaf]) == ["go: ABCDEmore\nABCDEmore\nAB"]
    assert int(leaf.row.response_mask.sum()) == 12


def test_a_budget_that_is_reached_by_the_last_turn_cuts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    collected()
    play(Model("ab"), Scripted(script=("say:more\n", "end")), max_response_tokens=4)
    assert collected() == {}


def test_the_room_ends_with_the_context() -> None:
    model = Model("abcdefgh")
    play(model, None, context=7)
    assert model.asked[0].room == 3


def test_an_answer_that_the_bound_of_a_turn_cut_off_is_truncated() -> None:
    """8 tokens are the bound: one that ends by itself there is whole."""
    assert [play(Model(line), None)[0].is_truncated for line in ("abcdefgh", "abcdefghi")] == [False, True]


def test_an_episode_that_is_over_is_not_truncated_however_long_its_turns_are_together() -> None:
    """Two turns of 6 tokens under a bound of 8 a turn; a turn on the way may have been cut."""
    (leaf,) = play(Model("abcdef"), Scripted(script=("say:more\n", "end")))
    assert (int(leaf.row.response_mask.sum()), leaf.is_truncated) == (12, False)
    (leaf,) = play(Model("abcdefghi", "b"), Scripted(script=("say:more\n", "end")))
    assert not leaf.is_truncated


def test_what_the_context_or_the_budget_cut_off_is_truncated() -> None:
    assert play(Model("abcdefgh"), None, context=7)[0].is_truncated
    assert play(Model("abcdefgh"), MORE, max_response_tokens=4)[0].is_truncated


# --- forks --------------------------------------------------------------------------------------------------------------------------------
def test_a_trajectory_of_three_turns_forks_after_its_first() -> None:
    model = Model("a", branches={(0,): ("", "b", "c"), (1,): ("", "d", "e")})
    leaves = play(model, Scripted(script=("say: u\n", "echo", "end:1")), forks=(1, 2))
    assert texts(leaves) == ["go: A u\nBb\nC", "go: a u\nDd\nE"]
    assert [leaf.row.leaf for leaf in leaves] == [0, 1]
    assert [(leaf.text, leaf.reward) for leaf in leaves] == [("c", 2.0), ("e", 2.0)]
    asked = sorted((course.turn, course.branch, course.spent) for course in model.asked)
    assert asked == [(0, (), 0), (1, (0,), 1), (1, (1,), 1), (2, (0,), 2), (2, (1,), 2)]


def test_forks_of_forks_are_leaves_in_order() -> None:
    words = {(0,): "a", (1,): "b"} | {(i, j): "cdef"[2 * i + j] for i in (0, 1) for j in (0, 1)}
    model = Model("z", branches={branch: (word, word) for branch, word in words.items()})
    leaves = play(model, Scripted(script=("say:-", "end")), forks=(2, 2))
    assert texts(leaves) == ["go: A-C", "go: a-D", "go: B-E", "go: b-F"]


def test_leaves_may_be_of_different_lengths_and_each_has_its_own_score() -> None:
    model = Model("3", branches={(0,): ("", "6"), (1,): ("", "9", "6"), (2,): ("", "1")})
    leaves = play(model, HigherLower(turns=3), "guess 0-9: ", forks=(1, 3))
    assert texts(leaves) == ["guess 0-9: 3 higher\n6", "guess 0-9: 3 higher\n9 lower\n6", "guess 0-9: 3 higher\n1 higher\n1"]
    assert [int(leaf.row.response_mask.sum()) for leaf in leaves] == [2, 2, 2]
    assert [leaf.reward for leaf in leaves] == [1.0, 1.0, 0.0]


def test_an_episode_that_is_over_before_the_fork_is_one_leaf() -> None:
    assert texts(play(Model("6"), HigherLower(), "guess 0-9: ", forks=(1, 4))) == ["guess 0-9: 6"]


def test_one_continuation_is_no_fork() -> None:
    model = Model("a", "b")
    assert texts(play(model, Scripted(script=("say:-", "end")), forks=(1, 1))) == ["go: A-B"]
    assert [course.branch for course in model.asked] == [(), ()]


def test_a_fork_without_an_environment_is_two_answers_to_one_prompt() -> None:
    assert texts(play(Model("z", branches={(0,): ("a",), (1,): ("b",)}), None, forks=(2,))) == ["go: A", "go: B"]


def test_the_budget_is_that_of_the_way_to_each_leaf() -> None:
    model = Model("abc", branches={(0,): ("", "d"), (1,): ("", "efgh")})
    leaves = play(model, MORE, forks=(1, 2), max_response_tokens=5, max_turns=8)
    assert texts(leaves) == ["go: ABCmore\nDmore\nD", "go: abcmore\nEF"]


def test_cuts_of_every_branch_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    collected()
    play(Model("a"), MORE, forks=(1, 3), max_turns=2)
    assert collected() == {"episodes/cut": 3.0}


def test_a_branch_that_fails_fails_its_trajectory() -> None:
    with pytest.raises(OperatorError, match=r"trajectory 5\.0: Scripted\.step of turn 2, 'a' raised RuntimeError: no"):
        play(Model("a"), Scripted(script=("say:-", "raise:no")), forks=(1, 2))


def test_every_branch_is_of_the_attempt_at_its_trajectory() -> None:
    attempt, seen = Attempt("5.0.0", "", lambda _: None, 1.0), dict[tuple[int, ...], Attempt | None]()

    def ask(course: Course) -> Generation:
        seen[course.branch] = current()
        return generation(ids("a"))

    with attempt.running():
        play(ask, None, forks=(3,))
    assert seen == {(0,): attempt, (1,): attempt, (2,): attempt}


@pytest.mark.parametrize("wrong", [{"max_turns": 0}, {"max_response_tokens": 0}, {"forks": (1, 0)}])
def test_rules_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="at least one"):
        Rules(**wrong)


# --- tokens -------------------------------------------------------------------------------------------------------------------------------
def merging() -> Tokenizer:
    """ "ab" is one token or two: its own encoding of a text is not the only one."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, ":": 3}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(":", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def test_S13_what_was_sampled_is_what_is_asked_about_and_trained_never_text_that_was_encoded_again() -> None:
    tokenizer = merging()
    assert tokenizer.encode("ab").ids == [2]  # the model below says "ab" as two tokens
    asked = list[tuple[int, ...]]()

    def said(course: Course) -> Generation:
        asked.append(course.history)
        return generation([0, 1] if course.turn == 0 else [1, 0, 1])

    rules = Rules(environment=Scripted(script=("echo2", "end")), max_turns=2)
    loop = TurnLoop(said, tokenizer, lambda row: tokenizer.decode(list(row)), rules, max_new_tokens=8, context=None)
    (leaf,) = loop.play([3], "", seed=0, place="trajectory 5.0")
    assert asked == [(3,), (3, 0, 1, 2, 3)]  # the environment's "ab:" is encoded, as it is text
    assert leaf.row.input_ids.tolist() == [3, 0, 1, 2, 3, 1, 0, 1]
    assert leaf.row.responses[leaf.row.response_mask].tolist() == [0, 1, 1, 0, 1]
    assert leaf.text == "bab"
