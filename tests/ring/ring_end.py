"""From anywhere on everything goes well: the run must come to its end, and every prompt must have had its one fate."""

from __future__ import annotations

import random
from dataclasses import replace

from ring_world import Ring

__all__ = ["drive_to_the_end"]

SLOW = 100
"""Events in which stragglers are held up."""


def drive_to_the_end(ring: Ring, at_most: int = 3000) -> None:
    """A fair scheduler; runs that stopped, failed or were too short are resumed with enough batches for every prompt."""
    rng = random.Random(0)
    for _ in range(4):
        _finish_fairly(ring, rng, at_most)
        if not _is_left(ring):
            break
        prompts = ring.config.prompts and ring.config.prompts - ring.accounts.origin.uid
        last = max(ring.config.last, ring.accounts.checkpoint + (prompts or 3))
        ring.kill(replace(ring.config, last=last, engine_restarts=6))
    assert ring.finish is not None
    assert not _is_left(ring), ring.finish.why
    _account_for_every_prompt(ring)


def _finish_fairly(ring: Ring, rng: random.Random, at_most: int) -> None:
    """For a while the oldest trajectories are slow; then nobody is left out."""
    stragglers = ring.transitions % 4
    for step in range(at_most):
        if ring.finish is not None:
            return
        if ring.ghosts and step % 5 == 0:
            ring.late(rng.getrandbits(16), rng.getrandbits(16))
        waits = ring.outstanding()
        if step < SLOW:
            waits = waits[min(stragglers, len(waits) - 1) :]
        ring.answer(waits[rng.randrange(len(waits))], rng.randint(1, 4))
    raise AssertionError(f"not finished after {at_most} events: waiting for {sorted(ring.state.armed)}")


def _is_left(ring: Ring) -> bool:
    """A run that did not do all that it could; one over an endless source is done at its last batch."""
    assert ring.finish is not None
    accounts = ring.accounts
    return (
        ring.finish.outcome != "done"
        or (accounts.next_draw() is None and bool(accounts.live))
        or (ring.config.prompts > 0 and accounts.next_draw() is not None)
    )


def _account_for_every_prompt(ring: Ring) -> None:
    """Trained once, in one batch of the surviving timeline, or dropped; of an endless source some may be live, or pending again."""
    accounts = ring.accounts
    trained = [uid for uids in accounts.trained_in.values() for uid in uids]
    dropped = [prompt.uid for prompt in accounts.of("dropped")]
    assert sorted(trained + dropped) == sorted(set(accounts.prompts) - accounts.live)
    if accounts.next_draw() is None:
        first = accounts.origin.uid
        assert sorted(accounts.prompts) == list(range(first, first + len(accounts.prompts))), "a prompt was left out"
    assert not accounts.live or accounts.next_draw() is not None
