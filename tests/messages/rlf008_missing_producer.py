"""RLF008: the penalty is on, but this variant of the pipeline makes no reference log-probs."""
from start import Start
from rlflow import absent, pipeline
from vocabulary import KlTrainRows, Torch, kl_penalty, micro_pack, pad, ppo_clip, shard, sync


def loop(kl: float, use_reference: bool) -> None:
    s = Start()
    ref = absent("use_reference is False")
    if use_reference:
        reference = Torch("reference")
        ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
    rows = KlTrainRows(
        input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, old_log_probs=s.old(), ref_log_probs=ref, advantages=s.advantages
    )
    micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip(), kl_penalty(kl))), s.engine))


@pipeline
def bad() -> None:
    loop(kl=0.1, use_reference=False)


@pipeline
def good() -> None:
    loop(kl=0.0, use_reference=False)
