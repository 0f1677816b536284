"""RLF003: two workers of one name. Here the reference was meant to be a second copy."""
from start import Start
from rlflow import pipeline
from vocabulary import KlTrainRows, Torch, kl_penalty, micro_pack, pad, ppo_clip, shard, sync


def train_with_reference(s: Start, reference: Torch) -> None:
    ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
    rows = KlTrainRows(
        input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=s.old(), ref_log_probs=ref, advantages=s.advantages
    )
    micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip(), kl_penalty(0.1))), s.engine))


@pipeline
def bad() -> None:
    s = Start()
    train_with_reference(s, Torch("actor"))


@pipeline
def good() -> None:
    s = Start()
    train_with_reference(s, Torch("reference"))
