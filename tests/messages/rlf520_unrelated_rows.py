"""RLF520: rewards of one set of rollouts, mask of another. Sizes agree."""
from start import Start
from rlflow import pipeline
from vocabulary import dataset, dispatch, form_batch, grpo


@pipeline
def bad() -> None:
    s = Start()
    again = form_batch(s.engine.rollout(s.policy.served, dispatch(dataset("train.parquet"), n=8)), prompts=64)
    s.finish(s.rows(grpo(s.rewards, again.response_mask, s.ready.uid).advantages))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
