"""`plan.fields`, `plan.operators` ...: by name, and with the keys that machines rely on."""

from __future__ import annotations

from typing import Any

import msgspec
from small_loops import penalised

from pipelines.grpo import grpo
from rlflow.compile.views import Reason

OWN_FORWARD = "`actor.train` takes `old_log_probs` from its own forward: a batch is one optimizer step"


def data(kl: float = 0.0) -> Any:
    return msgspec.to_builtins(penalised(kl=kl).views)


def by_name(rows: Any, name: str) -> dict[str, Any]:
    return next(dict(row) for row in rows if row["name"] == name)


def test_the_keys_that_machines_rely_on() -> None:
    seen = data()
    assert seen.keys() >= {"fields", "operators", "edges", "feedbacks", "state", "dropped"}
    assert seen["fields"][0].keys() >= {"name", "dtype", "shape", "scope", "role", "writer", "readers", "born", "dies", "version"}
    assert seen["operators"][0].keys() >= {"name", "worker", "per", "reads", "writes", "frees"}
    assert seen["edges"][0].keys() >= {"from", "to", "fields", "bytes"}
    assert seen["state"][0].keys() >= {"name", "owner", "bytes", "in_checkpoint"}
    assert seen["dropped"].keys() >= {"fields", "operators"}


def test_a_field() -> None:
    old = by_name(data()["fields"], "old")
    assert {key: old[key] for key in ("dtype", "shape", "scope", "role", "writer", "readers", "dies", "version")} == {
        "dtype": "f32",
        "shape": ("512", "S - 1"),
        "scope": "batch",
        "role": "log_prob(current)",
        "writer": "actor.log_probs",
        "readers": ("actor.train",),
        "dies": "actor.train",
        "version": "policy@current, policy@served",
    }


def test_a_call_reads_writes_and_frees_by_name() -> None:
    call = by_name(data()["operators"], "grpo")
    assert call.pop("at").endswith("small_loops.py:52")
    assert call == {
        "name": "grpo",
        "operator": "vocabulary:grpo",
        "worker": "host",
        "per": "group",
        "rows": "keep",
        "reads": ("shaping", "response_mask", "uid"),
        "writes": ("advantages", "returns"),
        "frees": ("uid", "shaping"),
        "frees_rows": (),
        "from_forward": {},
        "dropped": False,
    }


def test_every_read_field_is_freed_by_the_call_after_which_it_dies() -> None:
    plan = penalised(kl=0.1)
    freed = {(call.name, name) for call in plan.operators for name in call.frees}
    assert freed == {(field.dies, field.name) for field in plan.fields if field.dies is not None}


def test_what_is_taken_from_the_training_forward_is_not_read() -> None:
    plan = grpo()
    train = next(call for call in plan.operators if call.name == "actor.train")
    assert (train.from_forward, "old" in train.reads) == ({"old_log_probs": "log_probs"}, False)
    old = next(field for field in plan.fields if field.name == "old")
    assert (old.readers, old.dies) == ((), None)
    assert Reason(name="actor.log_probs", writer=None, why=OWN_FORWARD) in plan.dropped.reasons
    assert Reason(name="old", writer="actor.log_probs", why=OWN_FORWARD) in plan.dropped.reasons


def test_a_feedback() -> None:
    assert by_name(data()["feedbacks"], "policy")["worst_gap"] == 0
    assert by_name(data()["feedbacks"], "policy")["readers"] == {
        "served": ("engine.rollout", "engine.evaluate"),
        "current": ("actor.log_probs",),
        "move": ("actor.train",),
        "next": ("sync",),
    }


def test_an_edge() -> None:
    (edge,) = (edge for edge in data(kl=0.1)["edges"] if edge["to"] == "reference" and edge["fields"])
    assert edge == {
        "from": "engine.rollout",
        "to": "reference",
        "fields": ("input_ids", "response_mask"),
        "bytes": "4608*S - 512",
        "row_bytes": "9*S - 1",
        "text": (),
        "inline": (),
        "weights": (),
    }


def test_what_lives_across_steps() -> None:
    kept = {(one.owner, one.name): (one.bytes, one.in_checkpoint) for one in grpo().state}
    assert kept["actor", "optimizer"] == ("8*N_actor", True)
    assert kept["engine", "replica"] == ("4*N_engine", False)


def test_what_is_dropped_has_a_reason() -> None:
    dropped = penalised().dropped
    assert dropped.operators == ("reference.load", "reference.log_probs")
    assert dropped.fields == ("rollout_log_probs", "is_correct", "returns", "ref")
    assert dropped.reasons[-1] == Reason(name="ref", writer="reference.log_probs", why="no call that the step needs reads its result")
    assert penalised(kl=0.1).dropped.operators == ()
