"""For tests of losses, yours and ours: a loss on tensors alone, and whether a cut can change its gradient.

values.py   loss_value, loss_grad        a loss on whole right-padded tensors, divided as a train engine divides
cuts.py     assert_split_invariant       P17: micro-batches, dp, cp, packing, order of rows, padding rows
cutting.py  baton.py                     one cut, run; cp ranks in one process
drawn.py    the rows that it cuts        trees, tool gaps, a row without a trained token, junk outside the mask
given.py    tensors as a loss reads them, and what it says of one that is not there

All of it counts, weighs, divides and packs with the functions of the train engine (rlflow/engines/train): what passes here trains so.

    from rlflow.testing import assert_split_invariant, loss_grad, loss_value

    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    loss_value(ppo_clip(), log_probs=lp, old_log_probs=old, advantages=adv, response_mask=mask)      Σ over 3 tokens / 3
    assert_split_invariant(my_loss())
"""

from .cuts import assert_split_invariant
from .values import loss_grad, loss_value

__all__ = ["assert_split_invariant", "loss_grad", "loss_value"]
