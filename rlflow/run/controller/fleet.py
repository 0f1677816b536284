"""The engines: up and down, and which weights they hold.

    down ──EngineUp──→ stale ──Sync──→ syncing ──Synced──→ serving ──a newer version is published──→ stale
      ↑                  ↑────SyncFailed / an older version───┘
      └── EngineDown from everywhere: its trajectories fail, the evaluation on it is void

An engine serves only after the weights it really holds were probed. The others take work while some still sync.
"""

from __future__ import annotations

from .evaluation import pin, void
from .events import EngineDown, EngineUp, Free, Start, Sync, Synced, SyncFailed
from .ids import SyncId
from .rollout import engine_failed
from .routing import Routing
from .state import Engine, State
from .waits import wait_name

__all__ = [
    "engine_down",
    "engine_lost",
    "engine_up",
    "forget_weights",
    "free",
    "make_stale",
    "start",
    "sync",
    "sync_failed",
    "sync_lost",
    "synced",
]


def start(state: State, engine: Engine, after: float = 0.0) -> None:
    engine.start += 1
    engine.is_starting = True
    state.emit(Start(engine.name, engine.start, after))
    state.arm("engine start", engine.name, after=after)


def engine_up(state: State, event: EngineUp) -> bool:
    """It holds no known version yet: the first edge is a sync."""
    engine = _current(state, event.engine, event.start)
    if engine is None or not engine.is_starting:
        return False
    state.disarm("engine start", engine.name)
    state.rows = event.rows or state.rows
    engine.is_starting = False
    engine.state, engine.held, engine.sync_failures = "stale", None, 0
    _take_capacity(state, engine, event.capacity)
    state.unsynced[engine.name] = None
    return True


def engine_down(state: State, event: EngineDown) -> bool:
    engine = _current(state, event.engine, event.start)
    if engine is None or not (engine.is_starting or engine.state != "down"):
        return False
    engine_lost(state, engine, event.why)
    return True


def engine_lost(state: State, engine: Engine, why: str) -> None:
    """Fail its trajectories, void its evaluation, start it again while the bound allows."""
    state.totals.engine_deaths += 1
    state.disarm("engine start", engine.name)
    state.disarm("engine room", engine.name)
    if engine.sync is not None:
        state.disarm("sync", engine.sync)
    engine.state, engine.held, engine.sync, engine.is_starting = "down", None, None, False
    state.unsynced.pop(engine.name, None)
    for trajectory in list(engine.running.values()):
        if engine.running.get((trajectory.uid, trajectory.traj_uid)) is trajectory:  # a sibling's drop may have taken it off
            engine_failed(state, trajectory, f"engine {engine.name} went down: {why}")
    void(state, engine)
    if state.stops:  # what a stop still waits for needs no engine
        return
    _start_again(state, engine, why)


def _start_again(state: State, engine: Engine, why: str) -> None:
    """While the bound allows; deaths from before it has served for long do not count any more."""
    config = state.config
    if engine.since is not None and state.published - engine.since >= config.engine_recovery:
        engine.restarts = 0
    engine.since = None
    if engine.restarts < config.engine_restarts:
        start(state, engine, config.restart_delay * 2.0 ** min(engine.restarts, 10))
        engine.restarts += 1
    else:
        state.fail(f"engine {engine.name} went down: {why} (restarted {engine.restarts} times, engine_restarts={config.engine_restarts})")


def free(state: State, event: Free) -> bool:
    engine = state.engines.get(event.engine)
    if engine is None or engine.state == "down":
        return False
    _take_capacity(state, engine, event.capacity)
    state.routing.offer(engine)
    return True


def _take_capacity(state: State, engine: Engine, capacity: int) -> None:
    """An engine that takes nothing at all is waited for, by name."""
    engine.capacity = capacity
    if capacity > 0:
        state.disarm("engine room", engine.name)
    elif wait_name("engine room", engine.name) not in state.armed:
        state.arm("engine room", engine.name)


def make_stale(state: State) -> None:
    """A newer version is published: what served the older one takes no first request any more."""
    state.routing = Routing()
    for engine in state.fleet:
        if engine.state == "serving":
            engine.state = "stale"
            if engine.evaluation is None:
                state.unsynced[engine.name] = None


def forget_weights(state: State, engine: Engine) -> None:
    """A timeline begins: what the engine holds may be of one that died, what it runs is nobody's."""
    engine.running.clear()
    engine.sync, engine.held, engine.evaluation, engine.sync_failures = None, None, None, 0
    engine.since = None
    if engine.state != "down":
        engine.state = "stale"
        state.unsynced[engine.name] = None


def sync(state: State) -> None:
    """Sync every engine that is stale and not held by an evaluation to the published version."""
    if not state.workers_up or state.stops:
        return
    for name in list(state.unsynced):
        engine = state.engines[name]
        engine.sync_attempts += 1
        engine.sync = SyncId(state.timeline, state.published, name, engine.sync_attempts)
        engine.state, engine.held = "syncing", None
        state.emit(Sync(engine.sync))
        state.arm("sync", engine.sync)
    state.unsynced.clear()


def synced(state: State, event: Synced) -> bool:
    engine = _syncing(state, event.sync)
    if engine is None:
        return False
    state.disarm("sync", event.sync)
    engine.sync, engine.held, engine.sync_failures = None, event.sync.version, 0
    engine.since = engine.held if engine.since is None else engine.since
    engine.state = "serving" if engine.held == state.published else "stale"
    state.routing.offer(engine)
    pin(state, engine)
    if engine.state == "stale" and engine.evaluation is None:
        state.unsynced[engine.name] = None
    return True


def sync_failed(state: State, event: SyncFailed) -> bool:
    engine = _syncing(state, event.sync)
    if engine is None:
        return False
    sync_lost(state, engine, event.why)
    return True


def sync_lost(state: State, engine: Engine, why: str) -> None:
    """What it holds is unknown now: again, up to the bound."""
    assert engine.sync is not None
    state.disarm("sync", engine.sync)
    state.totals.failed_syncs += 1
    version, engine.sync = engine.sync.version, None
    engine.sync_failures += 1
    engine.state = "stale"
    state.unsynced[engine.name] = None
    if engine.sync_failures >= state.config.max_sync_attempts and not state.stops:
        state.fail(f"version {version} could not be synced to engine {engine.name} in {engine.sync_failures} attempts, the last one: {why}")


def _current(state: State, name: str, start: int) -> Engine | None:
    engine = state.engines.get(name)
    return engine if engine is not None and engine.start == start else None


def _syncing(state: State, sync: SyncId) -> Engine | None:
    engine = state.engines.get(sync.engine)
    return engine if engine is not None and engine.sync == sync else None
