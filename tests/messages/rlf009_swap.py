"""RLF009: an estimator that needs values takes the place of one that does not."""
from start import Start
from rlflow import Plan, pipeline
from vocabulary import gae, rloo


@pipeline
def loop() -> None:
    s = Start()
    s.finish(s.rows())


def bad() -> Plan:
    return loop().replace("grpo", gae)


def good() -> Plan:
    return loop().replace("grpo", rloo)
