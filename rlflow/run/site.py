"""What a worker process is told at its start: one JSON file, written by the controller.

role "worker"    one dp rank of a worker with an engine: actor, critic, reference
role "rollout"   the turn loop beside a rollout engine
role "host"      operators that belong to no worker: reward, advantage, ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from ..data.pool.arena import ArenaHandle
from ..data.pool.protocol import Key


class SiteFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # of the process: "actor", "actor.1", "engine.rollout", "host"
    role: Literal["worker", "rollout", "host"]
    worker: int | None  # its id in the plan
    rank: int
    dp_size: int
    seed: int
    threads: int  # the most trajectories at once in a rollout process: some may have their turns on other replicas
    turn_seconds: float  # that the controller may take to say where a turn goes on
    plan: str  # path of the plan's JSON
    modules: tuple[tuple[str, str], ...]  # (name, path) of user files to import first
    run_dir: str
    socket: str
    parent: int
    arena: ArenaHandle
    rendezvous: str = ""
    live: tuple[Key, ...] | None = None  # it takes its lane over, with these blocks; None: it is the first to write it
    checkpoint: str = ""  # folder of the worker in the checkpoint that it goes on from

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def read_site(path: Path) -> SiteFile:
    return msgspec.json.decode(path.read_bytes(), type=SiteFile)
