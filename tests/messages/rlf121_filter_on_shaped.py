"""RLF121: groups are filtered by shaped rewards: a length penalty makes a group of right answers look mixed."""
from rlflow import Record, pipeline
from start import Start
from vocabulary import InputIds, ResponseMask, TokenScores, TrainRows, Uid, form_batch, exact_match, grpo, keep_mixed, length_penalty, shaping


class Scored(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    token_level_scores: TokenScores
    uid: Uid


def loop(by_shaped: bool) -> None:
    s = Start()
    scores = exact_match(s.sample.response_text, s.sample.answer, s.sample.response_mask).token_level_scores
    sampled = Scored(
        input_ids=s.sample.input_ids, response_mask=s.sample.response_mask, token_level_scores=scores, uid=s.sample.uid
    )
    if by_shaped:
        scores = length_penalty(shaping(scores), s.sample.response_mask, limit=100)
    kept = form_batch(keep_mixed(sampled, scores), prompts=64)
    advantages = grpo(shaping(kept.token_level_scores), kept.response_mask, kept.uid).advantages
    old = s.actor.log_probs(s.policy.current, kept.input_ids, kept.response_mask)
    s.finish(TrainRows(input_ids=kept.input_ids, response_mask=kept.response_mask, old_log_probs=old, advantages=advantages))


@pipeline
def bad() -> None:
    loop(by_shaped=True)


@pipeline
def good() -> None:
    loop(by_shaped=False)
