"""RLF123: the reference scores at another temperature than the policy trains at, and the old log-probs are not there to tell."""
from start import Start
from rlflow import Loss, pipeline
from vocabulary import KlRows, ModelRows, PolicyForward, Torch, micro_pack, pad, shard, sync


class distance(Loss[PolicyForward, KlRows]):
    """Pulls towards the reference, and nothing else."""


class Rows(ModelRows, KlRows):
    """What the forward and the distance read."""


def loop(temperature: float) -> None:
    s = Start()
    reference = Torch("reference", temperature=temperature)
    ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
    rows = Rows(input_ids=s.ready.input_ids, response_mask=s.ready.response_mask, ref_log_probs=ref)
    micro = micro_pack(shard(pad(rows, multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(distance())), s.engine))


@pipeline
def bad() -> None:
    loop(temperature=0.6)


@pipeline
def good() -> None:
    loop(temperature=1.0)
