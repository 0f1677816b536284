"""RLF122: old and reference log-probs are exchanged. Dtype and shape agree, so it would train, on the wrong ratio."""
from start import Start
from rlflow import Tensor, pipeline
from vocabulary import KlTrainRows, Torch, kl_penalty, micro_pack, pad, ppo_clip, shard, sync


def reference_log_probs(s: Start) -> Tensor:
    reference = Torch("reference")
    return reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)


def train(s: Start, rows: KlTrainRows) -> None:
    micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip(), kl_penalty(0.1))), s.engine))


@pipeline
def bad() -> None:
    s = Start()
    ready, old, ref = s.ready, s.old(), reference_log_probs(s)
    train(s, KlTrainRows(
        input_ids=ready.input_ids, response_mask=ready.response_mask, advantages=s.advantages, old_log_probs=ref, ref_log_probs=old,
    ))


@pipeline
def good() -> None:
    s = Start()
    ready, old, ref = s.ready, s.old(), reference_log_probs(s)
    train(s, KlTrainRows(
        input_ids=ready.input_ids, response_mask=ready.response_mask, advantages=s.advantages, old_log_probs=old, ref_log_probs=ref,
    ))
