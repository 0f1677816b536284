"""RLF007: an array of a field would hold the object that stands for it, and no number."""
import numpy as np

from start import Start
from rlflow import pipeline


@pipeline
def bad() -> None:
    s = Start()
    print(np.array(s.rewards).mean())
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
