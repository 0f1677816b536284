"""Every fault that is a number (loss scale, grouping and advantages, slices and masks, log-probs) has a test with the number in it.

The table names, for each, the tests that show it and what must stand in them. One that is renamed, moved or emptied fails here.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCALE, ENGINE, RANKS = "unit/train/test_loss_scale.py", "unit/train/test_split_invariance.py", "real/train/test_data_parallel.py"
LOSS, SHAPING, FILTERS = "unit/operators/test_loss.py", "unit/operators/test_shaping.py", "unit/operators/test_filters.py"
GROUPS, RULES = "unit/operators/test_advantage.py", "unit/operators/test_advantage_rules.py"
SCHEDULE = "unit/train/test_who_divides.py"
TOKENS, FORWARD, LIVE = "seams/test_number_tokens.py", "unit/train/test_forward.py", "seams/test_live_groups.py"
STATIC_GROUPS, STATIC_VERSIONS = "seams/test_static_groups.py", "seams/test_static_versions.py"

# id → (file, test, what stands in it)
SHOWN: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    # --- loss scale and normalisation
    "L1": ((SCALE, "token_mean_is_split_invariant", ("1.3", "[4.0]", "[1.0] * 9")),),
    "L3": (
        (SCALE, "eight_micro_batches_of_one_row_are_no_eightfold_loss", ("2.0", "range(8)")),
        (STATIC_GROUPS, "a_loss_is_divided_by_a_count_that_somebody_makes", ()),
    ),
    "L5": ((RANKS, "ranks_with_few_tokens_are_not_over_weighted", ("1.4",)),),
    "L6": ((SCHEDULE, "a_schedule_that_divides_by_micro_batches_makes_the_same_gradient", ("divides", "-1 / count")),),
    "L8": ((SCALE, "tokens_are_counted_where_they_are_accumulated", ("(4, 2)", "(8, 32)", "1.0")),),
    "L10": ((SCALE, "masked_completions_are_not_in_the_denominator", ("[2.0, 2.0], []", "2.0")),),
    "L12": ((SCALE, "metric_does_not_depend_on_micro_batches", ("1e-06",)),),
    "L13": ((ENGINE, "policy_gradient_does_not_depend_on_the_cut", ("LIMIT",)),),
    "L17": (
        (LOSS, "masked_sum_is_three", ("[1.0, 2.0, NAN]", "3.0")),
        (LOSS, "junk_outside_the_mask_touches_neither_value_nor_gradient", ()),
    ),
    "L18": ((LOSS, "kl_penalty_has_a_gradient_towards_the_reference", ("grad",)),),
    "L19": ((SHAPING, "the_kl_of_a_tools_token_is_in_no_return", ("[0.0, 9.0, 0.0]", "[[1.0, 0.0, 1.0]]")),),
    # --- grouping, advantages, filters
    "G1": ((GROUPS, "singleton_gets_zero_not_its_raw_score_and_not_nan", ("0.7", "[0.0, 0.0]")),),
    "G2": ((GROUPS, "identical_rewards_give_exactly_zero", ("(0.9, 3)", "== 0")), (FILTERS, "rounding_is_no_difference", ("0.9 + 6e-08",))),
    "G4": ((GROUPS, "every_group_is_normalised", ("[0] * 4 + [1] * 4", "1.5, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5, 1.5")),),
    "G7": ((TOKENS, "turns_of_an_assistant_in_the_prompt_are_the_prompt", ("[0, 0, 1, 1]",)),),
    "G8": (
        (GROUPS, "padding_rows_of_their_own_uid_change_nothing", ("0.70710678",)),
        (SCALE, "padding_rows_change_neither_loss_nor_metrics", ()),
    ),
    "G11": ((SCALE, "trajectories_weigh_alike_however_many_rows_they_became", ("(6 + 2) / 2",)),),
    "G13": ((FILTERS, "a_group_that_only_a_length_penalty_tells_apart_is_dropped", ("[1.0, 0.8]", "== []")),),
    "G15": ((GROUPS, "two_leaves_of_each_trajectory_give_what_one_leaf_gives", ()), (RULES, "fragments_of_a_trajectory_count_once", ())),
    "G19": ((LIVE, "whitening_of_0_0_on_one_rank_and_10_10_on_the_other_is_over_both", ("-0.866025", "0.866025")),),
    "G21": ((SHAPING, "a_score_of_zero_is_a_score", ("[0.0, 0.0]",)),),
    # --- slices, masks, alignment
    "S1": (
        (TOKENS, "log_probs_of_a_response_are_its_last_and_not_the_prompts", ("[-0.1, -0.2, -0.3]",)),
        (TOKENS, "a_response_of_no_token_has_no_log_prob", ("== []", "(1, 0)")),
    ),
    "S2": (
        (TOKENS, "the_first_token_of_a_response_is_trained", ("[2, 3, 4, 5]",)),
        (FORWARD, "slice_of_a_prompt_of_3_and_a_response_of_4", ()),
    ),
    "S6": ((TOKENS, "an_end_token_that_is_also_the_pad_is_inside_its_row", ("[5, 6, 0, 0, 0]", "[1, 1, 1, 0, 0]")),),
    "S15": (
        (TOKENS, "the_log_prob_is_that_of_the_sampled_token", ("-2.0",)),
        (TOKENS, "the_log_prob_of_another_token_is_refused", ("-0.1",)),
        (TOKENS, "the_embedded_engine_scores_what_it_drew", ()),
    ),
    # --- versions and log-probs
    "V13": (
        (TOKENS, "an_engine_and_a_trainer_at_one_temperature_have_a_ratio_of_1", ("-0.0415", "-0.1698", "1.137")),
        (STATIC_VERSIONS, "log_probs_at_two_temperatures_do_not_meet", ()),
    ),
    "V14": (
        (TOKENS, "a_log_prob_under_top_p_is_of_the_whole_distribution", ("0.9", "1.0")),
        (STATIC_VERSIONS, "log_probs_of_a_cut_distribution_do_not_meet_those_of_the_whole", ()),
    ),
}  # fmt: skip
IDS = (
    *("L1", "L3", "L5", "L6", "L8", "L10", "L12", "L13", "L17", "L18", "L19"),
    *("G1", "G2", "G4", "G7", "G8", "G11", "G13", "G15", "G19", "G21"),
    *("S1", "S2", "S6", "S15", "V13", "V14"),
)


@cache
def functions(file: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("seam", IDS)
def test_a_number_has_a_test_that_holds_it(seam: str) -> None:
    for file, name, numbers in SHOWN[seam]:
        test = functions(file).get(f"test_{seam}_{name}")
        assert test is not None, f"{file} has no test_{seam}_{name}"
        text = ast.unparse(test)  # its decorators too, without comments
        assert "assert" in ast.unparse(test.body[-1]) or "raises" in text
        assert [number for number in numbers if number not in text] == []


def test_the_table_is_of_these_rows_and_no_others() -> None:
    assert tuple(SHOWN) == IDS
