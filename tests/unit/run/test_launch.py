"""Processes started together, watched and ended together: real ones, small ones."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from rlflow.errors import EngineError, WorkerDied
from rlflow.run.launch import Fleet
from rlflow.run.rundir import RunDir

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
STUBBORN = [sys.executable, "-c", IGNORES]


def with_fleet(tmp_path: Path, body: Callable[[Fleet], Awaitable[None]]) -> None:
    async def run() -> None:
        run_dir = RunDir(tmp_path, "run", "small")
        fleet = Fleet(run_dir, run_dir.path / "sites" / "s")
        try:
            await fleet.listen()
            await asyncio.wait_for(body(fleet), 30)
        finally:
            await fleet.stop(grace=1.0)
            run_dir.close()

    asyncio.run(run())


def test_a_process_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        process = await fleet.start("host", [sys.executable, "-c", "print('the last words'); raise SystemExit(3)"])
        name, error = await fleet.died
        assert name == "host"
        assert isinstance(error, WorkerDied)
        assert str(error) == f"`host` (pid {process.pid}) died: exit code 3\n--- end of logs/host.log\nthe last words"

    with_fleet(tmp_path, body)


def test_the_signal_that_ended_it_is_named(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        process = await fleet.start("actor", SLEEPS)
        psutil.Process(process.pid).kill()
        assert "died: killed by SIGKILL" in str((await fleet.died)[1])

    with_fleet(tmp_path, body)


def test_stop_ends_those_who_listen_and_those_who_do_not(tmp_path: Path) -> None:
    pids: list[int] = []

    async def body(fleet: Fleet) -> None:
        pids.append((await fleet.start("meek", SLEEPS)).pid)
        pids.append((await fleet.start("stubborn", STUBBORN)).pid)
        while not fleet.run_dir.tail("stubborn"):
            await asyncio.sleep(0.02)
        start = time.monotonic()
        await fleet.stop(grace=0.3)
        assert time.monotonic() - start < 5.0
        assert not fleet.died.done()  # they were asked to

    with_fleet(tmp_path, body)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not (tmp_path / "run" / "sites" / "s").exists()


def test_a_server_that_dies_before_it_is_ready_is_not_waited_for(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        with pytest.raises(WorkerDied, match=r"`engine` .* died: exit code 1"):
            await fleet.start_server("engine", [sys.executable, "-c", "raise SystemExit(1)"], tmp_path / "ready.json")

    with_fleet(tmp_path, body)


def test_a_server_says_where_it_is(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        ready = tmp_path / "ready.json"
        script = f'import pathlib, time; pathlib.Path({str(ready)!r}).write_text(\'{{"url": "http://here"}}\'); time.sleep(60)'
        assert await fleet.start_server("engine", [sys.executable, "-c", script], ready) == "http://here"

    with_fleet(tmp_path, body)


def test_a_ready_file_without_a_url_is_an_error(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        ready = tmp_path / "ready.json"
        ready.write_text("{}")
        with pytest.raises(EngineError, match=f"the ready file of `engine` gives no url: {ready}"):
            await fleet.start_server("engine", SLEEPS, ready)

    with_fleet(tmp_path, body)


def test_a_stranger_on_the_socket_is_sent_away(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x02\x00\x00\x00\xc1\xc1"):
            reader, writer = await asyncio.open_unix_connection(str(fleet.socket))
            writer.write(words)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert not fleet.died.done()

    with_fleet(tmp_path, body)
