"""RLF520: two records of the stream, each formed into a batch of its own. As many prompts in both; nothing says that they are the same ones."""
from start import Start
from rlflow import pipeline
from vocabulary import Sample, Scores, exact_match, form_batch, grpo, shaping


class Judged(Sample, Scores):
    """What was sampled, with its scores."""


@pipeline
def bad() -> None:
    s = Start()
    score = exact_match(s.sample.response_text, s.sample.answer, s.sample.response_mask)
    scores = form_batch(score, prompts=64)
    s.finish(s.rows(grpo(shaping(scores.token_level_scores), s.ready.response_mask, s.ready.uid).advantages))


@pipeline
def good() -> None:
    s = Start()
    score = exact_match(s.sample.response_text, s.sample.answer, s.sample.response_mask)
    s.sample = Judged(**vars(s.sample), **vars(score))
    scores = form_batch(s.sample, prompts=64)
    s.ready = scores
    s.finish(s.rows(grpo(shaping(scores.token_level_scores), s.ready.response_mask, s.ready.uid).advantages))
