"""RLF121: the log-probs recorded while sampling stand in for those of the version that is trained."""
from start import Start
from rlflow import pipeline
from vocabulary import TrainRows, anchor_on_rollout


@pipeline
def bad() -> None:
    s = Start()
    old = s.ready.rollout_log_probs
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))


@pipeline
def good() -> None:
    s = Start()
    old = anchor_on_rollout(s.ready.rollout_log_probs)
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))
