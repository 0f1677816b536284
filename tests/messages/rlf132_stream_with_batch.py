"""RLF132: the answers of the stream meet the responses of the batch that was formed out of it."""
from start import Start
from rlflow import pipeline
from vocabulary import exact_match, grpo, shaping


@pipeline
def bad() -> None:
    s = Start()
    score = exact_match(s.ready.response_text, s.sample.answer, s.ready.response_mask)
    s.finish(s.rows(grpo(shaping(score.token_level_scores), s.ready.response_mask, s.ready.uid).advantages))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
