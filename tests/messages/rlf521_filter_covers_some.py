"""RLF521: some fields passed the filter, one did not."""
from rlflow import Record, pipeline
from start import Start
from vocabulary import InputIds, ResponseMask, TokenScores, TrainRows, Uid, exact_match, form_batch, grpo, keep_mixed, shaping


class Scored(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    token_level_scores: TokenScores
    uid: Uid


def loop(mask_of_all: bool) -> None:
    s = Start()
    sample = s.sample
    scores = exact_match(sample.response_text, sample.answer, sample.response_mask).token_level_scores
    scored = Scored(input_ids=sample.input_ids, response_mask=sample.response_mask, token_level_scores=scores, uid=sample.uid)
    kept = keep_mixed(scored, scores)
    mask = sample.response_mask if mask_of_all else kept.response_mask
    ready = form_batch(Scored(input_ids=kept.input_ids, response_mask=mask, token_level_scores=kept.token_level_scores, uid=kept.uid), prompts=64)
    advantages = grpo(shaping(ready.token_level_scores), ready.response_mask, ready.uid).advantages
    old = s.actor.log_probs(s.policy.current, ready.input_ids, ready.response_mask)
    s.finish(TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=advantages))


@pipeline
def bad() -> None:
    loop(mask_of_all=True)


@pipeline
def good() -> None:
    loop(mask_of_all=False)
