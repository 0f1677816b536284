"""One mistake in a loop that is right: what a user gets wrong, where, and which code says so.

Each function (fault.py, faults_of_*.py) looks for the places where its mistake can be made in this loop, makes it at one of them (in
place), and returns what was broken; None where the loop has no such place. Whether a change *is* a mistake is decided by the model,
never by the compiler.

    fields     dropped_argument  dropped_field  left_out  dropped_base  swapped  mixed_up  wrong_dtype  wrong_axes  wrong_role  off_by_one
    rows       wrong_rows  late_group  late_filter  wrong_order  padded_after_balancing  not_cut  not_formed
    weights    wrong_reading  whole_feedback  not_owner  not_loader  read_after_move  moved_twice
               never_closed  closed_twice  crossed  unsynced
    numbers    indivisible_pad  indivisible_ranks  indivisible_prompts  count_of_nothing
    versions   lag_uncorrected  correction_forgotten  of_another_policy  temperature
    names      misspelt_field  misspelt_keyword  same_name
    python     number_for_field  record_for_field  arithmetic  branch  not_config  no_loss  dead_call  idle_worker
"""

from __future__ import annotations

from fault import Breaker, Fault
from faults_of_fields import (
    dropped_argument,
    dropped_base,
    dropped_field,
    left_out,
    mixed_up,
    off_by_one,
    swapped,
    wrong_axes,
    wrong_dtype,
    wrong_role,
)
from faults_of_python import (
    arithmetic,
    branch,
    dead_call,
    idle_worker,
    misspelt_field,
    misspelt_keyword,
    no_loss,
    not_config,
    number_for_field,
    record_for_field,
    same_name,
)
from faults_of_rows import (
    count_of_nothing,
    indivisible_pad,
    indivisible_prompts,
    indivisible_ranks,
    late_filter,
    late_group,
    not_cut,
    not_formed,
    padded_after_balancing,
    wrong_order,
    wrong_rows,
)
from faults_of_weights import (
    closed_twice,
    correction_forgotten,
    crossed,
    lag_uncorrected,
    moved_twice,
    never_closed,
    not_loader,
    not_owner,
    of_another_policy,
    read_after_move,
    temperature,
    unsynced,
    whole_feedback,
    wrong_reading,
)
from loop_model import Program
from loop_writer import Choose

FAULTS: tuple[Breaker, ...] = (
    dropped_argument, dropped_field, left_out, dropped_base, swapped, mixed_up, wrong_dtype, wrong_axes, wrong_role, off_by_one,
    wrong_rows, late_group, late_filter, wrong_order, padded_after_balancing, not_cut, not_formed,
    wrong_reading, whole_feedback, not_owner, not_loader, read_after_move, moved_twice, never_closed, closed_twice, crossed, unsynced,
    indivisible_pad, indivisible_ranks, indivisible_prompts, count_of_nothing,
    lag_uncorrected, correction_forgotten, of_another_policy, temperature,
    misspelt_field, misspelt_keyword, same_name,
    number_for_field, record_for_field, arithmetic, branch, not_config, no_loss, dead_call, idle_worker,
)  # fmt: skip


def break_loop(program: Program, choose: Choose, kinds: tuple[Breaker, ...] = FAULTS) -> tuple[str, Fault]:
    """One mistake of a random kind that this loop has a place for."""
    for kind in choose.order(kinds):
        fault = kind(program, choose)
        if fault is not None:
            return kind.__name__, fault
    raise AssertionError("every loop can be broken in some way")
