"""RLF001: a record is given a field that it does not have."""
from start import Start
from rlflow import pipeline
from vocabulary import TrainRows


@pipeline
def bad() -> None:
    s = Start()
    s.finish(TrainRows(
        input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_logprobs=s.old(), advantages=s.advantages,  # type: ignore[call-arg]
    ))


@pipeline
def good() -> None:
    s = Start()
    s.finish(TrainRows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=s.old(), advantages=s.advantages))
