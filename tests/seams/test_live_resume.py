"""W, C: what a resumed run does first, and where in the data it is."""

from __future__ import annotations

from dataclasses import replace

from decide_world import World
from ring_cases import ONE, sent

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import SyncId
from rlflow.run.controller.schedule import Origin


# --- W6: neither side waits for the other
def test_W6_the_first_edge_of_a_run_at_version_7_is_a_sync() -> None:
    world = World(ONE, Origin(version=7))
    world.feed(ev.RunStarted())
    world.engine_up("e")
    assert [action for action in world.come_up() if not isinstance(action, ev.Arm | ev.Disarm)] == [ev.Sync(SyncId(0, 7, "e", 1))]
    assert sent(world.sync("e")) == ["0.0.0"]


def test_W6_every_engine_is_synced_before_it_is_sent_anything() -> None:
    world = World(replace(ONE, groups_per_batch=2, engines=("e", "f")), Origin(version=7))
    world.feed(ev.RunStarted())
    world.come_up()
    world.engine_up("e", 1)
    assert sent(world.engine_up("f", 1)) == []
    assert sent(world.sync("f")) == ["0.0.0"]
    assert sent(world.sync("e")) == ["1.0.0"]
