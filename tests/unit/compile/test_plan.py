"""A plan is plain data, and can be traced again with one operator replaced."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_loops import filtered, penalised
from vocabulary import (
    Advantage,
    ResponseMask,
    TokenRewards,
    Torch,
    Uid,
    Values,
    dataset,
    dispatch,
    exact_match,
    gae,
    grpo,
    length_penalty,
    rloo,
    shaping,
)

from rlflow import CheckFailed, Feedback, Plan, Worker, absent, operator, pipeline
from rlflow.compile.dump import TABLES
from rlflow.compile.facts import Facts
from rlflow.errors import UsageError
from rlflow.flags import command_of

SHIPPED = [file for file in sorted((Path(__file__).parents[3] / "pipelines").rglob("*.py")) if "\n@pipeline\n" in file.read_text()]


@operator(per="group")
def scaled(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, by: float) -> Advantage: ...  # type: ignore[empty-body]


def halved(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    """No operator: a plain function of operators."""
    return rloo(length_penalty(token_level_rewards, response_mask, limit=9), response_mask, uid)


def names(plan: Plan) -> list[str]:
    return [node.name for node in plan.graph.nodes]


@pytest.mark.parametrize("make", [penalised, functools.partial(penalised, kl=0.1, dp=2), filtered, functools.partial(filtered, tree=True)])
def test_json_round_trip(make: functools.partial[Plan]) -> None:
    plan = make()
    data = plan.to_json()
    again = Plan.from_json(data)
    assert again == plan
    assert again.to_json() == data


def test_what_is_no_plan_is_refused_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.graph"):
        Plan.from_json(b'{"graph": 3, "facts": {}, "schema": 2}')
    with pytest.raises(msgspec.ValidationError, match="missing required field `schema`"):
        Plan.from_json(b"{}")


def test_a_plan_of_another_schema_is_refused() -> None:
    data = penalised().to_json().replace(b'"schema":2', b'"schema":1')
    with pytest.raises(UsageError, match=r"^this plan is of schema 1, rlflow reads schema 2: make it again from its pipeline$"):
        Plan.from_json(data)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_pipeline_loads_back_equal(file: Path) -> None:
    plan = command_of(str(file)).plan({})
    assert Plan.from_json(plan.to_json()) == plan


def test_ids_and_names_are_stable() -> None:
    first, second = penalised(), penalised()
    assert first.graph == second.graph
    assert first.facts == second.facts
    assert names(first) == [
        "actor.load",
        "dataset",
        "dispatch",
        "engine.rollout",
        "form_batch",
        "exact_match",
        "shaping",
        "grpo",
        "actor.log_probs",
        "reference.load",
        "reference.log_probs",
        "KlTrainRows",
        "pad",
        "rebalance",
        "shard",
        "micro_pack",
        "actor.train",
        "sync",
        "dataset#2",
        "engine.evaluate",
    ]


def test_parameters_are_resolved() -> None:
    assert penalised(kl=0.5).graph.parameters == {"kl": 0.5, "dp": 1, "reward": {"$ref": "vocabulary:exact_match"}}


def test_config_of_calls_and_workers_is_resolved() -> None:
    graph = penalised(dp=2).graph
    node = next(n for n in graph.nodes if n.name == "shard")
    assert node.params == {"on": {"$worker": 0}, "mini_batches": 1}
    assert graph.workers[0].options.items() >= {"name": "actor", "dp": 2, "temperature": 1.0}.items()
    assert (graph.workers[0].ref, node.operator, node.order) == ("vocabulary:Torch", "vocabulary:shard", ("rows", "on", "mini_batches"))


def test_replace_by_name() -> None:
    plan = penalised()
    other = plan.replace("grpo", rloo)
    assert names(other)[7] == "rloo"
    assert names(plan)[7] == "grpo"


def test_replace_again_by_the_new_name() -> None:
    assert names(penalised().replace("grpo", rloo).replace("rloo", grpo)) == names(penalised())


def test_two_replacements_stand_together() -> None:
    plan = penalised().replace("grpo", rloo).replace("exact_match", exact_match)
    assert "rloo" in names(plan)


def test_replace_with_a_partial_fills_its_configuration() -> None:
    plan = penalised().replace("grpo", functools.partial(scaled, by=0.5))
    assert next(n for n in plan.graph.nodes if n.name == "scaled").params == {"by": 0.5}


def test_replace_with_a_plain_function_traces_through_it() -> None:
    assert names(penalised().replace("grpo", halved))[7:9] == ["length_penalty", "rloo"]


def test_replace_a_method() -> None:
    plan = filtered().replace("engine.rollout", sys.modules["vocabulary"].Embedded.rollout_tree)
    assert "engine.rollout_tree" in names(plan)


def test_a_replacement_that_needs_more_is_refused() -> None:
    with pytest.raises(CheckFailed, match="`gae` cannot replace `grpo`: nothing gives its `values`"):
        penalised().replace("grpo", gae)


def test_a_replacement_with_another_result_is_refused() -> None:
    with pytest.raises(CheckFailed, match="`shaping` cannot replace `exact_match`"):
        penalised().replace("exact_match", shaping)


def test_a_name_that_no_call_has() -> None:
    with pytest.raises(UsageError, match=r"no call named `gropo`; did you mean `grpo`\?\n  its calls: actor.load, dataset, "):
        penalised().replace("gropo", rloo)


def test_a_plan_from_a_file_cannot_be_traced_again() -> None:
    with pytest.raises(UsageError, match="read from a file"):
        Plan.from_json(penalised().to_json()).replace("grpo", rloo)


def test_a_pipeline_inside_another_is_refused() -> None:
    @pipeline
    def outer() -> None:
        penalised()

    with pytest.raises(UsageError, match="called inside another pipeline"):
        outer()


def test_every_pass_is_timed() -> None:
    timed = ["trace", "freeze", "own", "infer", "version", "live", "order", "place", "drops", "transport"]
    assert list(penalised().timings_ms) == timed


def test_every_pass_can_be_dumped() -> None:
    plan = penalised()
    assert list(TABLES) == list(plan.timings_ms)
    assert all(plan.dump(name).startswith(f"{name}: ") for name in TABLES)


def test_every_fact_is_in_a_dump() -> None:
    """Row sets are told with the fields that are about them, letters with their shapes."""
    assert {table for tables in TABLES.values() for table in tables} == set(Facts.__struct_fields__) - {"rowsets", "letters"}


def test_a_dump_of_the_trace_shows_what_each_call_is_given() -> None:
    lines = penalised().dump("trace").splitlines()
    assert lines[9].startswith("  8 actor.log_probs  ")
    assert lines[9].endswith(
        "small_loops.py:53  (input_ids=form_batch.input_ids, response_mask=form_batch.response_mask, weights=policy@current)"
    )


def test_dump_prints_the_tables_of_a_pass() -> None:
    assert "1 dataset  engine.rollout" in penalised().dump("place")
    with pytest.raises(UsageError, match="there is no pass `inferr`"):
        penalised().dump("inferr")


def test_check_loads_no_torch() -> None:
    here = Path(__file__).parent
    program = (
        f"import sys; sys.path[:0] = [{str(here)!r}, {str(here.parents[1] / 'messages')!r}]\n"
        "from small_loops import penalised\npenalised().explain()\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=here.parents[2], check=True)
    assert done.stdout == "False\n"


@operator(per="group")
def weighted(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, values: Values | None = None) -> Advantage: ...  # type: ignore[empty-body]


def weighted_by_absent(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    return weighted(token_level_rewards, response_mask, uid, values=absent("there is no critic"))


@pytest.mark.parametrize("estimator", [weighted, weighted_by_absent])
def test_an_optional_field_may_be_left_out(estimator: Any) -> None:
    plan = penalised().replace("grpo", estimator)
    assert next(n for n in plan.graph.nodes if n.name == "weighted").params == {"values": None}


def test_an_optional_field_that_is_given_is_checked() -> None:
    def with_rewards(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
        return weighted(token_level_rewards, response_mask, uid, values=token_level_rewards)

    with pytest.raises(CheckFailed, match=r"`values` of `weighted` is value, got reward\(shaped\)"):
        penalised().replace("grpo", with_rewards)


def test_a_replacement_is_a_function() -> None:
    with pytest.raises(UsageError, match="got 3"):
        penalised().replace("grpo", 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="by keyword"):
        penalised().replace("grpo", functools.partial(rloo, 1))


class Odd(Worker):
    def __init__(self, name: str, *, device: object) -> None:
        super().__init__(name)


def test_an_option_of_a_worker_that_is_not_plain_is_refused() -> None:
    @pipeline
    def odd() -> None:
        Odd("actor", device=object())

    with pytest.raises(CheckFailed, match="`device` of `Odd` is configuration") as refused:
        odd()
    assert [d.code for d in refused.value.diagnostics if d.severity == "error"] == ["RLF010"]


def test_a_feedback_starts_from_loaded_weights() -> None:
    @pipeline
    def twice() -> None:
        policy = Feedback("policy", init=Torch("actor").load())
        Feedback("again", init=policy.current)  # type: ignore[arg-type]

    with pytest.raises(CheckFailed, match="feedback `again` starts from current of `policy`, not from loaded weights"):
        twice()


def test_a_worker_made_outside_of_the_pipeline_belongs_to_it() -> None:
    actor = Torch("actor", dp=2)

    @pipeline
    def outside() -> None:
        actor.load()

    graph = outside().graph
    assert [(w.name, w.dp_size) for w in graph.workers] == [("actor", 2)]
    assert graph.nodes[0].worker == 0


def test_a_thousand_calls_have_a_thousand_names() -> None:
    @pipeline
    def long() -> None:
        prompts = dataset("train.parquet")
        for _ in range(1000):
            dispatch(prompts, n=2)

    plan = long()
    assert len(set(names(plan))) == 1001
    assert names(plan)[-1] == "dispatch#1000"


def test_a_parameter_without_a_written_form_is_the_same_in_every_run() -> None:
    class Odd:
        """Its repr holds its address."""

        def __call__(self, response_text: Any, answer: Any, response_mask: Any) -> Any:
            return sys.modules["vocabulary"].exact_match(response_text, answer, response_mask)

    one, two = penalised(reward=Odd()), penalised(reward=Odd())
    assert one.graph.parameters["reward"] == two.graph.parameters["reward"] == {"$repr": "a `Odd`"}
