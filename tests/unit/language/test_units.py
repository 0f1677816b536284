"""Counts: what may be computed with them, what not, and that they are ints to everybody else."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from start import Start
from vocabulary import (
    B,
    Embedded,
    ModelRows,
    PolicyForward,
    ResponseMask,
    Torch,
    dataset,
    dispatch,
    imitate,
    micro_pack,
    pad,
    rebalance,
    shard,
)

from rlflow import CheckFailed, Diagnostic, Feedback, Loss, Plan, Tensor, count, i64, operator, pipeline
from rlflow.errors import UsageError
from rlflow.language.config import to_config
from rlflow.language.source import Ref
from rlflow.language.units import RATIOS, UNITS, Count, product, quotient

HERE = ("here", Ref("", "", "", 0))


def a(value: int, unit: str) -> Count:
    return Count(value, unit, HERE)


def unit(value: object) -> str | None:
    return value.unit if isinstance(value, Count) else None


# --- the table ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("prompts", "trajectories a prompt", "trajectories"),
        ("trajectories a prompt", "prompts", "trajectories"),
        ("rows a rank", "ranks", "rows"),
        ("prompts a rank", "trajectories a prompt", "trajectories a rank"),
        ("tokens a row", "rows", "tokens"),
        ("devices a rank", "ranks", "devices"),
        ("ranks", "ranks", "ranks"),
    ],
)
def test_products(one: str, two: str, expected: str) -> None:
    assert product(one, two) == expected


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("trajectories", "prompts", "trajectories a prompt"),
        ("trajectories", "trajectories a prompt", "prompts"),
        ("rows", "ranks", "rows a rank"),
        ("tokens", "rows", "tokens a row"),
        ("devices", "ranks", "devices a rank"),
        ("trajectories a rank", "prompts a rank", "trajectories a prompt"),
        ("rows", "rows", None),
    ],
)
def test_quotients(one: str, two: str, expected: str | None) -> None:
    assert quotient(one, two) == expected


@pytest.mark.parametrize(
    ("one", "two"), [("rows", "prompts"), ("rows", "trajectories"), ("prompts", "rows"), ("prompts", "tokens"), ("ranks", "devices")]
)
def test_quotients_that_count_nothing(one: str, two: str) -> None:
    assert told(lambda: a(8, one) // a(2, two)) == [f"{one} divided by {two}: nothing counts that"]


@pytest.mark.parametrize(
    ("one", "two"), [("prompts", "prompts"), ("ranks", "prompts"), ("rows", "trajectories a prompt"), ("tokens", "devices")]
)
def test_products_that_count_nothing(one: str, two: str) -> None:
    assert told(lambda: a(8, one) * a(2, two)) == [f"{one} × {two}: nothing counts that"]


def test_every_ratio_is_of_two_units() -> None:
    assert {name: f"{over} a {under}" for name, (over, under) in RATIOS.items()} == {
        "trajectories a prompt": "trajectories a prompts",
        "tokens a prompt": "tokens a prompts",
        "tokens a trajectory": "tokens a trajectories",
        "tokens a row": "tokens a rows",
        "prompts a rank": "prompts a ranks",
        "trajectories a rank": "trajectories a ranks",
        "rows a rank": "rows a ranks",
        "tokens a rank": "tokens a ranks",
        "devices a rank": "devices a ranks",
    }


def test_an_unknown_unit_names_the_near_miss() -> None:
    with pytest.raises(UsageError, match=r"no such unit; did you mean `prompts`\?"):
        count("promts")


# --- arithmetic -----------------------------------------------------------------------------------------------------------------------
def told(compute: Callable[[], Any]) -> list[str]:
    """What is said of an expression in a pipeline function; the loop around it is right."""

    @pipeline
    def loop() -> None:
        compute()
        s = Start()
        s.finish(s.rows())

    return [d.message for d in found(loop)]


def found(loop: Callable[[], Plan]) -> list[Diagnostic]:
    """What is wrong with a loop; for a count, nothing else may be."""
    try:
        return [*loop().warnings]
    except CheckFailed as refused:
        return refused.diagnostics


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: a(3, "prompts") + a(4, "prompts"), (7, "prompts")),
        (lambda: a(3, "prompts") + 4, (7, "prompts")),
        (lambda: 4 + a(3, "prompts"), (7, "prompts")),
        (lambda: 10 - a(3, "prompts"), (7, "prompts")),
        (lambda: a(10, "prompts") - a(3, "prompts"), (7, "prompts")),
        (lambda: 4 * a(3, "ranks"), (12, "ranks")),
        (lambda: a(3, "ranks") * 4, (12, "ranks")),
        (lambda: a(7, "rows") // 2, (3, "rows")),
        (lambda: a(7, "rows") % a(2, "ranks"), (1, "rows")),
        (lambda: -(-a(7, "rows") // a(2, "ranks")), (4, "rows a rank")),
        (lambda: sum([a(3, "prompts"), a(4, "prompts")]), (7, "prompts")),
        (lambda: max(a(3, "prompts"), a(4, "prompts")), (4, "prompts")),
        (lambda: a(8, "rows") // a(2, "rows"), (4, None)),
        (lambda: 100 // a(8, "rows"), (12, None)),
        (lambda: int(a(8, "rows")) // a(2, "prompts"), (4, None)),
        (lambda: a(8, "rows") * 0.5, (4.0, None)),
        (lambda: divmod(a(8, "rows"), 0.5), ((16.0, 0.0), None)),
        (lambda: len([0] * a(8, "rows")), (8, None)),
        (lambda: a(8, "rows") / a(2, "ranks"), (4.0, None)),
    ],
)
def test_what_comes_out(compute: Callable[[], Any], expected: tuple[float, str | None]) -> None:
    found: list[Any] = []
    assert told(lambda: found.append(compute())) == []
    assert [(one, unit(one)) for one in found] == [expected]


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda: a(3, "prompts") + a(4, "trajectories"), "prompts + trajectories: counts of two things do not add up"),
        (lambda: a(3, "prompts") - a(4, "ranks"), "prompts - ranks: counts of two things do not add up"),
        (lambda: a(8, "rows") / a(2, "prompts"), "rows divided by prompts: nothing counts that"),
        (lambda: divmod(a(8, "rows"), a(2, "prompts")), "rows divided by prompts: nothing counts that"),
        (lambda: a(8, "rows") % a(2, "prompts"), "rows divided by prompts: nothing counts that"),
        (lambda: [a(8, "rows") // a(2, "prompts") for _ in range(3)], "rows divided by prompts: nothing counts that"),
        (lambda: sum([a(3, "prompts"), a(4, "rows")]), "prompts + rows: counts of two things do not add up"),
    ],
)
def test_what_is_refused(compute: Callable[[], Any], message: str) -> None:
    assert told(compute) == [message]


def test_what_follows_from_a_refused_count_is_no_news() -> None:
    assert told(lambda: (a(8, "rows") // a(2, "prompts")) + a(3, "ranks") * 2) == ["rows divided by prompts: nothing counts that"]


@given(st.integers(-50, 50), st.integers(1, 50), st.sampled_from(UNITS), st.sampled_from(UNITS))
def test_the_number_is_that_of_plain_ints_whatever_the_units(x: int, y: int, one: str, two: str) -> None:
    left, right = a(x, one), a(y, two)
    counted = (left + right, left - right, left * right, left // right, left % right, left / right, -left, divmod(left, right), left**2)
    assert counted == (x + y, x - y, x * y, x // y, x % y, x / y, -x, divmod(x, y), x**2)


# --- an int to everybody else ---------------------------------------------------------------------------------------------------------
def test_a_count_leaves_as_a_plain_int() -> None:
    one = a(3, "prompts")
    assert json.dumps({"n": one, "text": f"{one}"}) == '{"n": 3, "text": "3"}'
    assert [type(x) for x in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), to_config(one), to_config([one])[0])] == [int] * 4
    assert {one: "x"}[3] == "x"


def test_plans_hold_plain_ints() -> None:
    @pipeline
    def loop(prompts: Annotated[int, count("prompts")] = 64, dp: Annotated[int, count("ranks")] = 2) -> None:
        s = Start(prompts=prompts, dp=dp)
        s.finish(s.rows(), multiple=dp)

    plan = loop()
    node = next(n for n in plan.graph.nodes if n.name == "form_batch")
    kept = [*plan.graph.parameters.values(), node.params["prompts"], plan.graph.workers[0].options["dp"], plan.graph.workers[0].dp_size]
    assert [(value, type(value)) for value in kept] == [(64, int), (2, int), (64, int), (2, int), (2, int)]
    assert type(plan).from_json(plan.to_json()) == plan


# --- where counts come from and go to -------------------------------------------------------------------------------------------------
def test_parameters_and_workers_say_what_they_count() -> None:
    seen: dict[str, str | None] = {}

    @pipeline
    def loop(
        prompts: Annotated[int, count("prompts")] = 64,
        group_size: Annotated[int, count("trajectories a prompt")] = 8,
        optional: Annotated[int, count("tokens")] | None = 5,
        updates: int = 1,
    ) -> None:
        s = Start(prompts=prompts)
        twin = Torch("twin", dp=2, tp=3)
        counts = {"prompts": prompts, "group_size": group_size, "optional": optional, "updates": updates, "batch": prompts * group_size}
        seen.update({name: unit(value) for name, value in (counts | {"dp": twin.dp_size, "world": twin.world_size}).items()})
        s.finish(s.rows())

    loop()
    assert seen == {
        "prompts": "prompts",
        "group_size": "trajectories a prompt",
        "optional": "tokens",
        "updates": None,
        "batch": "trajectories",
        "dp": "ranks",
        "world": "devices",
    }
    assert (Torch("twin", dp=2, tp=3).world_size, unit(Torch("twin", dp=2).dp_size)) == (6, None)


class Sized(Embedded):
    def __init__(self, name: str, *, capacity: Annotated[int, count("trajectories")] = 8) -> None:
        super().__init__(name)
        self.capacity = capacity


class Budgeted(Loss[PolicyForward, ModelRows]):
    budget: Annotated[int, count("tokens")] = 1

    def __call__(self, forward: PolicyForward, rows: ModelRows) -> Tensor:
        return forward.log_probs


def _handed(what: str, prompts: int) -> None:
    s = Start(prompts=prompts)
    match what:
        case "operator":
            dispatch(dataset("x"), n=prompts)
        case "worker":
            Sized("sized", capacity=prompts)
        case "ranks":
            Torch("twin", dp=prompts)
        case "loss":
            twin = Torch("twin")
            other = Feedback("other", init=twin.load())
            other.close(twin.train(other.move, micro_pack(shard(s.rows(), on=twin), max_tokens=64).loss(Budgeted(prompts))))
    s.finish(s.rows())


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("operator", "`n` of `dispatch` counts trajectories a prompt, got prompts"),
        ("worker", "`capacity` of `Sized` counts trajectories, got prompts"),
        ("ranks", "`dp` of `Torch` counts ranks, got prompts"),
        ("loss", "`budget` of `Budgeted` counts tokens, got prompts"),
    ],
)
def test_a_count_of_another_unit_is_not_taken(what: str, message: str) -> None:
    @pipeline
    def loop(prompts: Annotated[int, count("prompts")] = 8) -> None:
        _handed(what, prompts)

    @pipeline
    def plain(prompts: int = 8) -> None:
        _handed(what, prompts)

    assert message in [d.message for d in found(loop) if d.code == "RLF016"]
    assert "RLF016" not in [d.code for d in found(plain)]


def test_D5_balanced_over_all_devices_instead_of_the_ranks_that_cut_rows() -> None:
    @pipeline
    def loop(world: bool) -> None:
        s = Start()
        twin = Torch("twin", dp=2, tp=4)
        other = Feedback("other", init=twin.load())
        rows = rebalance(pad(s.rows(), multiple=2), pieces=4 * (twin.world_size if world else twin.dp_size))
        other.close(twin.train(other.move, micro_pack(shard(rows, on=twin), max_tokens=64).loss(imitate())))
        s.finish(s.rows())

    assert loop(world=False).warnings == ()
    with pytest.raises(CheckFailed, match="`pieces` of `rebalance` counts ranks, got devices"):
        loop(world=True)


def test_a_type_of_a_pipeline_that_does_not_exist_is_named() -> None:
    def loop(prompts: Missing = 8) -> None:  # type: ignore[name-defined]  # noqa: F821
        Start()

    with pytest.raises(CheckFailed, match="`Missing` in the signature of `loop` does not exist at run time"):
        pipeline(loop)()


# --- fields of counts -----------------------------------------------------------------------------------------------------------------
RowCounts = Annotated[Tensor, i64[B], count("rows")]
TokenCounts = Annotated[Tensor, i64[B], count("tokens")]


@operator(per="row")
def leaves(response_mask: ResponseMask) -> RowCounts: ...  # type: ignore[empty-body]


@operator(per="batch", sink=True)
def normalise(lengths: TokenCounts) -> None: ...


def test_counts_of_two_units_differ_in_their_role() -> None:
    assert not count("tokens").accepts(count("rows"))
    assert str(count("tokens a row")) == "count(tokens a row)"


def test_a_field_of_rows_is_not_taken_for_one_of_tokens() -> None:
    @pipeline
    def loop() -> None:
        s = Start()
        normalise(leaves(s.ready.response_mask))
        s.finish(s.rows())

    with pytest.raises(CheckFailed, match=r"`lengths` of `normalise` is count\(tokens\), got count\(rows\)"):
        loop()
