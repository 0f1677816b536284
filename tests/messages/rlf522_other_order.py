"""RLF522: reordered rows meet advantages in the old order. Sizes agree, so it would train, each row on another's advantage."""
from start import Start
from rlflow import pipeline
from vocabulary import TrainRows, rebalance


@pipeline
def bad() -> None:
    s = Start()
    rows = rebalance(s.rows(), pieces=8)
    mixed = TrainRows(input_ids=rows.input_ids, response_mask=rows.response_mask, old_log_probs=rows.old_log_probs, advantages=s.advantages)
    s.finish(mixed)


@pipeline
def good() -> None:
    s = Start()
    rows = rebalance(s.rows(), pieces=8)
    same = TrainRows(input_ids=rows.input_ids, response_mask=rows.response_mask, old_log_probs=rows.old_log_probs, advantages=rows.advantages)
    s.finish(same)
