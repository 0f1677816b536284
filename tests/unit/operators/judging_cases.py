"""Verifiers that go wrong, at the top level of a module so that a judging process can import them."""

from __future__ import annotations

import os
import sys
import time
from typing import cast

from operators.verifiers import needs


def by_word(response_text: str, answer: str) -> float:
    """Does what the response says: hang, exit, leave, raise, nan, none, slow, or a number."""
    if response_text == "hang":
        time.sleep(3600)
    if response_text == "exit":
        os._exit(3)
    if response_text == "leave":
        sys.exit(0)
    if response_text == "raise":
        raise ValueError(f"no {answer}")
    if response_text == "none":
        return cast(float, None)
    if response_text == "slow":
        time.sleep(0.4)
        return 1.0
    return float(response_text)


def always_hangs(response_text: str, answer: str) -> float:
    time.sleep(3600)
    return 1.0


def always_raises(response_text: str, answer: str) -> float:
    raise KeyError(answer)


def raises_in_turn(response_text: str, answer: str) -> float:
    """A verifier of its own for a test that counts over calls."""
    return by_word(response_text, answer)


def deaf(response_text: str, answer: str) -> float:
    """Catches whatever a polite timeout would raise."""
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            continue


def hungry(response_text: str, answer: str) -> float:
    return float(len(bytearray(int(response_text))) > 0)


def with_torch(response_text: str, answer: str) -> float:
    return float("torch" in sys.modules)


def process_id(response_text: str, answer: str) -> float:
    return float(os.getpid())


@needs("no_such_library_is_installed")
def without_library(response_text: str, answer: str) -> float:
    return 1.0
