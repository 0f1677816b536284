"""The pool between real processes: who is killed when, nothing is left in /dev/shm and nobody reads another's rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlflow.data.batch import Block, Column
from rlflow.data.pool.arena import ArenaHandle, ShmArena
from rlflow.data.pool.protocol import Key
from rlflow.data.pool.shm import ShmPool
from rlflow.errors import PoolError

ROOT = Path(__file__).parents[3]
PRELUDE = """
import sys, msgspec
from rlflow.data.batch import Block, Column
from rlflow.data.pool.arena import ArenaHandle, ShmArena
from rlflow.data.pool.protocol import Key
from rlflow.data.pool.shm import ShmPool
say = lambda thing: print(msgspec.json.encode(thing).decode(), flush=True)
hear = lambda type: msgspec.json.decode(sys.stdin.readline(), type=type)
"""
CONTROLLER = PRELUDE + "arena = ShmArena.create(['a', 'b'], 1 << 20); say(arena.handle()); sys.stdin.readline()"
WRITER = (
    PRELUDE
    + """
pool = ShmPool.attach(hear(ArenaHandle), "a")
say(pool.put(Block({"input_ids": Column.ragged("i64", [[1, 2, 3], [4]]), "answer": Column.texts(["x", "yy"])})))
sys.stdin.readline()
"""
)
READER = PRELUDE + "pool = ShmPool.attach(hear(ArenaHandle)); say(pool.view(hear(Key)).to_lists()); sys.stdin.readline()"

Process = subprocess.Popen[str]


class Crew:
    """Processes of this test, ended by their ids."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    def start(self, code: str, *lines: object) -> Process:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.processes.append(process)
        assert process.stdin
        for line in lines:
            process.stdin.write(msgspec.json.encode(line).decode() + "\n")
        process.stdin.flush()
        return process

    def kill(self, process: Process) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(20)


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew()
    yield made
    for process in made.processes:
        made.kill(process)


def said(process: Process) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_what_one_process_puts_another_views(crew: Crew) -> None:
    handle = msgspec.json.decode(said(crew.start(CONTROLLER)), type=ArenaHandle)
    key = msgspec.json.decode(said(crew.start(WRITER, handle)), type=Key)
    assert msgspec.json.decode(said(crew.start(READER, handle, key))) == {"input_ids": [[1, 2, 3], [4]], "answer": ["x", "yy"]}


def named() -> set[int]:
    """Inodes of what /dev/shm shows."""
    return {entry.inode() for entry in os.scandir("/dev/shm")}


def test_kill_of_everybody_leaves_nothing(crew: Crew) -> None:
    controller = crew.start(CONTROLLER)
    handle = msgspec.json.decode(said(controller), type=ArenaHandle)
    writer = crew.start(WRITER, handle)
    assert msgspec.json.decode(said(writer), type=Key).rows == 2
    files = [os.stat(f"/proc/{handle.pid}/fd/{lane.fd}") for lane in handle.lanes]
    assert [file.st_nlink for file in files] == [0, 0]  # no name, not even while it runs
    assert named().isdisjoint(file.st_ino for file in files)
    crew.kill(controller)
    with pytest.raises(PoolError, match=f"is the controller \\(pid {handle.pid}\\) still running"):
        ShmPool.attach(handle)
    crew.kill(writer)
    assert named().isdisjoint(file.st_ino for file in files)


def test_rows_outlive_the_process_that_put_them(crew: Crew) -> None:
    with ShmArena.create(["a"], 1 << 20) as arena:
        writer = crew.start(WRITER, arena.handle())
        key = msgspec.json.decode(said(writer), type=Key)
        crew.kill(writer)
        assert ShmPool.attach(arena.handle()).view(key)["answer"].to_list() == ["x", "yy"]
        with pytest.raises(PoolError, match=f"lane `a` was written by pid {writer.pid}, and may hold what others read"):
            ShmPool.attach(arena.handle(), "a")


def test_a_lane_is_taken_over_from_a_killed_writer_alone(crew: Crew) -> None:
    with ShmArena.create(["a"], 1 << 20) as arena:
        writer = crew.start(WRITER, arena.handle())
        key = msgspec.json.decode(said(writer), type=Key)
        with pytest.raises(PoolError, match=f"lane `a` is written by pid {writer.pid}"):
            ShmPool.attach(arena.handle(), "a", live=[key])
        crew.kill(writer)
        pool = ShmPool.attach(arena.handle(), "a", live=[key])
        assert pool.view(key)["answer"].to_list() == ["x", "yy"]
        assert pool.put(pool.view(key)).serial == (1 << 40) + 1  # another writer's: the dead one may have given out 2


def test_a_forked_child_may_view_but_not_put() -> None:
    with ShmArena.create(["a"], 1 << 20) as arena:
        pool = ShmPool.attach(arena.handle(), "a")
        block = Block({"uid": Column.scalars("i64", [5])})
        key = pool.put(block)
        child = os.fork()
        if child == 0:
            os._exit(_child(pool, key, block))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.stats().keys == 1


def _child(pool: ShmPool, key: Key, block: Block) -> int:
    """0 when all is as it should be."""
    if pool.view(key) != block:
        return 1
    try:
        pool.put(block)
    except PoolError as error:
        return 0 if "this is its fork" in str(error) else 2
    return 3
