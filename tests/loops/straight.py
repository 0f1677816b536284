"""GRPO as one loop on one thread: what a run at max_lag=0 must give, bit for bit. No controller, ledger, pool, HTTP or second process.

Of rlflow it uses the engines' arithmetic (`EngineCore`, one request at a time; `policy_forward`), the losses, and the plan of rows.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from operators.loss import entropy_bonus, ppo_clip
from operators.verifiers import first_integer
from rlflow.data.rowplan import plan_rows
from rlflow.engines.rollout.embedded.config import ServerConfig
from rlflow.engines.rollout.embedded.core import EngineCore
from rlflow.engines.rollout.embedded.request import Request, Sampling
from rlflow.engines.tiny import EOS_ID, encode_text, load_tokenizer
from rlflow.engines.train.forward import policy_forward

LOSSES, LR, WARMUP = {"ppo_clip": ppo_clip(), "entropy_bonus": entropy_bonus(0.1)}, 1e-3, 5


def straight(path: Path, data: Path, *, seed: int, steps: int, prompts: int, group: int, new: int, dp: int = 1, minis: int = 1) -> Any:
    """From the model in `path` → (ids, log-probs) of every trajectory by (uid, traj_uid), metrics of each step, final weights by name."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").eval()
    adam = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    core, tokenizer = EngineCore(ServerConfig(model_path=path), None), load_tokenizer(path)
    table, played, metrics = pyarrow.parquet.read_table(data, filters=[("split", "==", "train")]).to_pylist(), {}, []
    for step in range(steps):
        rows, all_scores = list[Any](), list[float]()
        for uid in range(step * prompts, (step + 1) * prompts):
            epoch, at = divmod(uid, len(table))
            asked = table[int(np.random.default_rng([seed, epoch]).permutation(len(table))[at])]
            prompt = encode_text(tokenizer, asked["prompt"])
            said = [sampled(core, prompt, f"{seed}/{uid}/{k}/0", new) for k in range(group)]
            scores = [first_integer(tokenizer.decode(one.output_ids), asked["answer"]) for one in said]
            mean = sum(scores) / group
            deviation = (sum((score - mean) ** 2 for score in scores) / (group - 1)) ** 0.5
            played |= {(uid, k): (prompt + one.output_ids, one.log_probs) for k, one in enumerate(said)}
            rows += [row(uid, prompt, one.output_ids, (s - mean) / (deviation + 1e-6)) for one, s in zip(said, scores, strict=True)]
            all_scores += scores
        rates = [LR * min(step * minis + j + 1, WARMUP) / WARMUP for j in range(minis)]
        metrics.append(trained(model, adam, rows, rates, seed + step, dp) | {"reward": sum(all_scores) / len(all_scores)})
        core.update({name: p.detach().clone() for name, p in model.named_parameters()}, version=None, flush=True)
    return played, metrics, dict(model.named_parameters())


def sampled(core: EngineCore, prompt: list[int], name: str, new: int) -> Request:
    seed, done = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") >> 1, list[Request]()
    how = Sampling(max_new_tokens=new, min_new_tokens=0, temperature=1.0, greedy=False, top_p=1.0, top_k=0, min_p=0.0, stop_ids=(EOS_ID,),
                   stop_text=(), seed=seed, skip_special_tokens=True, trim_stop=True)  # fmt: skip
    core.submit(Request(rid=name, input_ids=prompt, sampling=how, return_logprob=True, prompt_logprobs=False, deliver=done.append))
    while not done:
        core.step()
    return done[0]


def row(uid: int, prompt: list[int], said: list[int], advantage: float) -> dict[str, torch.Tensor]:
    ids, mask = torch.tensor(prompt + said), torch.arange(1, len(prompt + said)) >= len(prompt)
    fields = {"input_ids": ids, "position_ids": torch.arange(len(ids)), "response_mask": mask, "uid": torch.tensor([uid])}
    return fields | {"advantages": torch.tensor(advantage) * mask, "old_log_probs": torch.zeros(len(mask))}


def batch(rows: Any) -> Any:
    fields = {name: pad_sequence([row[name] for row in rows], batch_first=True) for name in rows[0]}
    return SimpleNamespace(**fields, is_pad=fields["uid"][:, 0] < 0)


def trained(model: Any, adam: Any, rows: list[Any], rates: list[float], seed: int, dp: int) -> dict[str, float]:
    """One optimizer step a mini-batch: gradients summed over its micro-batches and ranks, of terms over all its tokens."""
    p, sizes = list(model.parameters()), np.array([(len(row["input_ids"]), int(row["uid"])) for row in rows])
    for share in np.array_split(np.array(rows), dp) if len(rates) > 1 else []:  # the weights will move: log-probs of before
        for one, old in zip(share, policy_forward(model, batch(share), temperature=1.0).log_probs.detach(), strict=True):
            one["old_log_probs"] = old[: len(one["old_log_probs"])]
    cuts = {"multiple": dp * len(rates), "pieces": 4 * dp, "dp": dp, "mini_batches": len(rates), "max_tokens": 16_384}
    plan, sums, norms, total = plan_rows(*sizes.T, seed=seed, **cuts), dict.fromkeys([*LOSSES, "entropy"], 0.0), list[float](), 0
    for mini, rate in enumerate(rates):
        micros = [batch([rows[i] for i in micro]) for rank in range(dp) for micro in plan.micros(rank)[mini]]
        tokens = sum(int(micro.response_mask.sum()) for micro in micros)
        adam.zero_grad()
        for micro in micros:
            forward = policy_forward(model, micro, temperature=1.0)
            micro.old_log_probs = forward.log_probs.detach() if len(rates) == 1 else micro.old_log_probs
            terms = {name: loss(forward, micro).sum() for name, loss in LOSSES.items()}
            sum(term / tokens for term in terms.values()).backward()
            for name, term in (terms | {"entropy": forward.entropy.double().where(micro.response_mask, 0.0).sum()}).items():
                sums[name] += float(term.detach())
        norms.append(float(torch.nn.utils.clip_grad_norm_(p, 1.0)))
        adam.param_groups[0]["lr"] = rate
        adam.step()
        total += tokens
    return {name: value / total for name, value in sums.items()} | {"grad_norm": sum(norms) / len(norms), "tokens": float(total)}
