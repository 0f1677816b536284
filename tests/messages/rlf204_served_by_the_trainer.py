"""RLF204: the trainer scores with a replica of what it owns itself. What the loss would make of the result is no news."""
from start import Start
from rlflow import pipeline
from vocabulary import TrainRows


@pipeline
def bad() -> None:
    s = Start()
    old = s.actor.log_probs(s.policy.served, s.ready.input_ids, s.ready.response_mask)
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))


@pipeline
def good() -> None:
    s = Start()
    old = s.actor.log_probs(s.policy.current, s.ready.input_ids, s.ready.response_mask)
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))
