"""RLF122: two texts of one dtype and shape are exchanged: every answer is judged against itself, the wrong way round."""
from start import Start
from rlflow import pipeline
from vocabulary import exact_match, grpo, shaping


@pipeline
def bad() -> None:
    s = Start()
    score = exact_match(s.ready.answer, s.ready.response_text, s.ready.response_mask)
    s.finish(s.rows(grpo(shaping(score.token_level_scores), s.ready.response_mask, s.ready.uid).advantages))


@pipeline
def good() -> None:
    s = Start()
    score = exact_match(s.ready.response_text, s.ready.answer, s.ready.response_mask)
    s.finish(s.rows(grpo(shaping(score.token_level_scores), s.ready.response_mask, s.ready.uid).advantages))
