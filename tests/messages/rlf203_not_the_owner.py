"""RLF203: the current weights are read on a worker that never had them."""
from start import Start
from rlflow import pipeline
from vocabulary import Torch, TrainRows


@pipeline
def bad() -> None:
    s = Start()
    reference = Torch("reference")
    old = reference.log_probs(s.policy.current, s.ready.input_ids, s.ready.response_mask)
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))


@pipeline
def good() -> None:
    s = Start()
    old = s.actor.log_probs(s.policy.current, s.ready.input_ids, s.ready.response_mask)
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=old, advantages=s.advantages))
