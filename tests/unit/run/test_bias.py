from __future__ import annotations

from rlflow.run.bias import bias_line, bias_text
from rlflow.run.controller.tally import Tally
from rlflow.run.controller.totals import Totals

TOTALS = Totals(
    kept=Tally(groups=96, landed=384, tokens=9216, tries=384, passes=157),
    lost={
        "stale": Tally(groups=8, landed=12, unfinished=20, tokens=378),
        "pass rate": Tally(groups=2),
        "keep_mixed": Tally(groups=2, landed=8, tokens=184, tries=8, passes=8),
    },
)


def test_lengths_and_pass_rates_of_what_was_dropped_stand_below_those_of_what_was_trained() -> None:
    assert bias_text(TOTALS) == [
        "trained 96 groups: 24.0 tokens a trajectory, 41% right",
        "dropped 12 groups, 11% of all that were drawn:",
        "  keep_mixed 2: 23.0 tokens a trajectory, 100% right",
        "  pass rate 2",
        "  stale 8: 31.5 tokens a trajectory, 20 of 32 trajectories unfinished",
    ]


def test_where_nothing_is_dropped_nothing_is_said() -> None:
    assert bias_text(Totals(kept=TOTALS.kept)) == []


def test_the_sums_go_into_the_metrics() -> None:
    line = bias_line(Totals(kept=Tally(groups=1), lost={"stale": Tally(groups=1, unfinished=4)}))
    zeros = {"landed": 0, "tokens": 0, "tries": 0, "passes": 0}
    assert line == {
        "kept": {"groups": 1, "unfinished": 0} | zeros,
        "dropped": {"stale": {"groups": 1, "unfinished": 4} | zeros},
        "taken_out": {},
    }


def test_what_filters_took_out_of_groups_that_were_trained_is_told_even_if_no_group_was_dropped() -> None:
    """As many tokens as the bound has, and hardly ever right."""
    taken_out = {"keep_ended": Tally(landed=32, tokens=2048, tries=32, passes=1)}
    assert bias_text(Totals(kept=TOTALS.kept, taken_out=taken_out)) == [
        "trained 96 groups: 24.0 tokens a trajectory, 41% right",
        "32 trajectories were taken out of their groups, 8% of these and those that were trained:",
        "  keep_ended 32: 64.0 tokens a trajectory, 3% right",
    ]
    assert bias_line(Totals(taken_out=taken_out))["taken_out"]["keep_ended"]["tokens"] == 2048
