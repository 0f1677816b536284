"""GRPO with a tool: the model may call a calculator, reads what it says, and answers. The environment judges.

dataset → dispatch → rollout (call, result, answer) → form batch → reward → advantage → old log-probs → train
             ↑                                                                                    │
             └──────────────────────────────────────── sync ──────────────────────────────────────┘
"""

from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.calculator import Calculator
from operators.dataset import dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.reward import episode_scores, integer_match, shape_rewards
from operators.sync import sync
from pipelines.parts import Common, balanced, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def tools(
    options: Common = Common(entropy=0.02, max_new_tokens=1), data: str = "calculator.parquet", calls: int = 1, call_reward: float = 0.1,
    max_response_tokens: int = 2,
) -> None:  # fmt: skip
    actor, engine, policy = workers(options)
    tool = Calculator(calls=calls, call_reward=call_reward)

    prompt = dispatch(dataset(data, tokenizer=options.model), n=options.group_size)
    sample = engine.rollout_turns(policy.served, prompt, environment=tool, max_response_tokens=max_response_tokens)
    ready = form_batch(sample, prompts=options.prompts)
    score = episode_scores(ready.episode_reward, ready.response_mask)
    adv = grpo_advantage(
        shape_rewards(score.token_level_scores), ready.response_mask, ready.uid, traj_uid=ready.traj_uid, scale_by_std=False
    )
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    held_out = dataset(data, split="test", tokenizer=options.model)
    engine.evaluate(
        policy.served, held_out, reward=integer_match, every=options.eval_every, samples=options.eval_samples,
        temperature=options.eval_temperature, environment=tool, max_response_tokens=max_response_tokens,
    )  # fmt: skip
