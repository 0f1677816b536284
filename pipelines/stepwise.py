"""GRPO on turns that are compared one by one: multiturn.py, with a baseline for each state of the game beside that of the whole episode.

dataset → dispatch → rollout (guess, reply, guess ...) → form batch → reward → advantage → old log-probs → train
             ↑                                                                                        │
             └────────────────────────────────────────── sync ───────────────────────────────────────┘

Feng et al. 2025, GiGPO (arXiv:2505.10978): guesses that were made knowing the same are compared with each other, by what came of them.
"""

from operators.advantage import gigpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.environment import HigherLower
from operators.loss import entropy_bonus, ppo_clip
from operators.reward import shape_rewards
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def stepwise(
    options: Options = Options(data="guess.parquet", entropy=0.05, max_new_tokens=1), turns: int = 4, gamma: float = 0.95,
    step_weight: float = 1.0,
) -> None:  # fmt: skip
    actor, engine, policy = workers(options)
    game = HigherLower(turns=turns)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout_turns(policy.served, prompt, environment=game), prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)  # of the last guess
    adv = gigpo(
        shape_rewards(score.token_level_scores), ready.response_mask, ready.uid, ready.step_states, ready.step_rewards,
        traj_uid=ready.traj_uid, gamma=gamma, step_weight=step_weight,
    )  # fmt: skip
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options, environment=game)
