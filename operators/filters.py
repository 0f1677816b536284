"""What is not trained on: groups, trajectories, rows. Any record in, the same record on fewer rows out; or a mask, on the same rows.

    keep_mixed     before form_batch: a group whose raw scores are all alike is dropped, and refilled
    keep_ended     before form_batch: trajectories that a bound cut off are taken out of their group, and of its baseline
    mask_overlong  at the losses: rows that a bound cut off keep their place in the baseline, and are not trained

A filter takes rows of the record as a whole, so no field of it can be forgotten, one of a user's own neither. The two before form_batch
are named in the bias that a run tells; how many groups are sampled to spare is `--oversample`, and which prompts are worth sampling
`--pass-rate`. What only costs reward is in shaping.py (`overlong_penalty`); what the mismatch of engines rejects, in mismatch.py.
"""

from __future__ import annotations

from rlflow import RowsT, operator
from rlflow.errors import DataError
from rlflow.measure import note

from .fields import IsTruncated, ResponseMask, TokenScores, TrajUid, Uid
from .rows import take

__all__ = ["keep_ended", "keep_mixed", "mask_overlong"]


@operator(per="group", rows="filter", least_group=2)
def keep_mixed(
    rows: RowsT, token_level_scores: TokenScores, uid: Uid, response_mask: ResponseMask | None = None, *, tolerance: float = 1e-6
) -> RowsT:
    """Rows of those groups whose raw scores differ by more than `tolerance`: where all are alike, every advantage is zero.

    token_level_scores f32[B, R], uid i64[B]. response_mask flag[B, R]: with it only rows with a trained token are compared, as in the
    estimators, whose baselines no other row is in; without it all are. Reads what the verifier said, not what shaping made of it: a length
    penalty would keep a group whose answers are all right. Dynamic sampling of DAPO (Yu et al. 2025, section 3.2); stands before
    form_batch, which refills.
    Raises DataError for a score that is not finite.

    Example: uid [1, 1, 2, 2] with scores [1, 1, 0, 1] keeps rows 2 and 3; if row 2 has no trained token, none.
    """
    import torch

    score = token_level_scores.sum(-1)
    compared = torch.ones_like(score, dtype=torch.bool) if response_mask is None else response_mask.bool().any(-1)
    if not bool(score.isfinite().all()):
        row = int((~score.isfinite()).nonzero()[0])
        raise DataError(f"row {row} (uid {int(uid[row])}) has the score {float(score[row])}: drop it where it is judged")
    groups, member = uid.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    lowest = score.new_full(groups.shape, torch.inf).scatter_reduce(0, member, score.where(compared, torch.inf), "amin")
    highest = score.new_full(groups.shape, -torch.inf).scatter_reduce(0, member, score.where(compared, -torch.inf), "amax")
    return take(rows, (highest - lowest > tolerance)[member].nonzero()[:, 0].cpu().numpy())


@operator(per="group", rows="filter", least_kept=2)
def keep_ended(rows: RowsT, is_truncated: IsTruncated, uid: Uid, traj_uid: TrajUid) -> RowsT:
    """Rows of those trajectories that ended by themselves; where fewer than two of a group did, the group is dropped.

    is_truncated flag[B], uid i64[B], traj_uid i64[B]. One that a bound ended (the tokens of its last turn, the context, the turns of its
    episode) has the score of an unfinished answer. A trajectory of several leaves goes with any of them.
    After Overlong Filtering of DAPO (Yu et al. 2025, section 3.4), which masks such answers. Stands before form_batch and before the
    estimator, whose baseline is then over what is left.

    Example: uid [1, 1, 1, 2, 2] with is_truncated [1, 0, 0, 1, 0] keeps rows 1 and 2.
    """
    import torch

    cut = is_truncated.long()
    trajectories, whose = torch.stack([uid, traj_uid], 1).unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
    ended = cut.new_zeros(len(trajectories)).scatter_reduce(0, whose, cut, "amax") == 0
    of_group, group = trajectories[:, 0].unique(return_inverse=True)
    count = cut.new_zeros(len(of_group)).scatter_add(0, group, ended.long())
    return take(rows, (ended & (count[group] >= 2))[whose].nonzero()[:, 0].cpu().numpy())


@operator(per="row")
def mask_overlong(response_mask: ResponseMask, is_truncated: IsTruncated) -> ResponseMask:
    """`response_mask` without the rows that a bound cut off. Only the losses are to read it; estimators read the whole mask.

    response_mask flag[B, R], is_truncated flag[B]. The score of an unfinished answer still pulls its group's baseline; its own tokens have
    no gradient, and no denominator counts them or their row. Of a forked trajectory only the leaves that were cut off are masked.
    Notes `masked_rows` and `masked_tokens`. Overlong Filtering of DAPO (Yu et al. 2025, arXiv:2503.14476, section 3.4).

    Example: masks [1, 1, 0] and [0, 1, 1] with is_truncated [1, 0] become [0, 0, 0] and [0, 1, 1].
    """
    mask, cut = response_mask.bool(), is_truncated.bool()
    kept = mask & ~cut.unsqueeze(-1)
    note("masked_rows", float((cut & mask.any(-1)).sum()))
    note("masked_tokens", float(mask.sum() - kept.sum()))
    return kept
