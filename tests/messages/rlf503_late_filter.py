"""RLF503: groups are dropped from a batch that is already formed, so nothing takes their seats."""
from rlflow import Record, pipeline
from start import Start
from vocabulary import InputIds, ResponseMask, TokenScores, TrainRows, Uid, exact_match, form_batch, grpo, keep_mixed, shaping


class Scored(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    token_level_scores: TokenScores
    uid: Uid


def train(s: Start, kept: Scored) -> None:
    advantages = grpo(shaping(kept.token_level_scores), kept.response_mask, kept.uid).advantages
    old = s.actor.log_probs(s.policy.current, kept.input_ids, kept.response_mask)
    s.finish(TrainRows(input_ids=kept.input_ids, response_mask=kept.response_mask, old_log_probs=old, advantages=advantages))


@pipeline
def bad() -> None:
    s = Start()
    ready, scores = s.ready, s.score.token_level_scores
    scored = Scored(input_ids=ready.input_ids, response_mask=ready.response_mask, token_level_scores=scores, uid=ready.uid)
    train(s, keep_mixed(scored, scores))


@pipeline
def good() -> None:
    s = Start()
    sample = s.sample
    scores = exact_match(sample.response_text, sample.answer, sample.response_mask).token_level_scores
    scored = Scored(input_ids=sample.input_ids, response_mask=sample.response_mask, token_level_scores=scores, uid=sample.uid)
    train(s, form_batch(keep_mixed(scored, scores), prompts=64))
