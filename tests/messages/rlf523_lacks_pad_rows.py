"""RLF523: padded rows meet a field without the pad rows."""
from start import Start
from rlflow import pipeline
from vocabulary import TrainRows, pad


@pipeline
def bad() -> None:
    s = Start()
    rows = pad(s.rows(), multiple=2)
    mixed = TrainRows(input_ids=rows.input_ids, response_mask=rows.response_mask, old_log_probs=rows.old_log_probs, advantages=s.advantages)
    s.finish(mixed)


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
