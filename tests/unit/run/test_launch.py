"""Processes started together, watched and ended together: real ones, small ones."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from rlflow.errors import EngineError, WaitTimeout, WorkerDied
from rlflow.run.launch import Fleet
from rlflow.run.rundir import RunDir

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
STUBBORN = [sys.executable, "-c", IGNORES]


told: list[tuple[str, WorkerDied]] = []  # whose end was news


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.clear()


def with_fleet(tmp_path: Path, body: Callable[[Fleet], Awaitable[None]]) -> None:
    async def run() -> None:
        run_dir = RunDir.create(tmp_path, "run", "small")
        fleet = Fleet(run_dir, run_dir.path / "sites" / "s", lambda name, error: told.append((name, error)))
        try:
            await fleet.listen()
            await asyncio.wait_for(body(fleet), 30)
        finally:
            await fleet.stop(grace=1.0)
            run_dir.close()

    asyncio.run(run())


def serves(ready: Path, then: str) -> list[str]:
    """A server that says where it is, and then does something."""
    write = f'import os, pathlib, sys, time; pathlib.Path({str(ready)!r}).write_text(\'{{"url": "http://here"}}\')'
    return [sys.executable, "-c", f"{write}; {then}"]


def test_a_process_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        ready = tmp_path / "ready.json"
        await fleet.start_server("host", serves(ready, "time.sleep(0.5); print('the last words'); raise SystemExit(3)"), ready, 20)
        process = fleet.processes["host"]
        assert await fleet.ended(["host"], 20)
        [(name, error)] = told
        assert name == "host"
        assert str(error) == f"`host` (pid {process.pid}) died: exit code 3\n--- end of logs/host.log\nthe last words"

    with_fleet(tmp_path, body)


def test_the_signal_that_ended_it_is_named(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        process = await fleet.start("actor", SLEEPS)
        psutil.Process(process.pid).kill()
        assert "died: killed by SIGKILL" in str(await process.gone)

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
        assert not told  # they were asked to

    with_fleet(tmp_path, body)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not (tmp_path / "run" / "sites" / "s").exists()


def test_a_server_that_dies_before_it_is_ready_is_not_waited_for(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        with pytest.raises(WorkerDied, match=r"`engine` .* died: exit code 1"):
            await fleet.start_server("engine", [sys.executable, "-c", "raise SystemExit(1)"], tmp_path / "ready.json", 20)
        assert not told  # but to whom started it

    with_fleet(tmp_path, body)


def test_a_server_says_where_it_is(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        ready = tmp_path / "ready.json"
        assert await fleet.start_server("engine", serves(ready, "time.sleep(60)"), ready, 20) == "http://here"

    with_fleet(tmp_path, body)


def test_a_ready_file_without_a_url_is_an_error(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        ready = tmp_path / "ready.json"
        ready.write_text("{}")
        with pytest.raises(EngineError, match=f"the ready file of `engine` gives no url: {ready}"):
            await fleet.start_server("engine", SLEEPS, ready, 20)

    with_fleet(tmp_path, body)


def test_a_stranger_on_the_socket_is_sent_away(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x02\x00\x00\x00\xc1\xc1"):
            reader, writer = await asyncio.open_unix_connection(fleet.address)
            writer.write(words)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert not told

    with_fleet(tmp_path, body)


def test_a_stranger_that_says_nothing_is_sent_away_after_a_while(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        fleet.hello_seconds = 0.2
        reader, writer = await asyncio.open_unix_connection(fleet.address)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        assert not told

    with_fleet(tmp_path, body)


def test_one_that_is_ended_makes_room_for_another_and_is_no_news(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        ready = tmp_path / "ready.json"
        await fleet.start_server("engine", serves(ready, "time.sleep(60)"), ready, 20)
        first = fleet.processes["engine"]
        assert not await fleet.ended(["engine"], 0.05)
        await fleet.end(["engine", "nobody"])
        assert first.gone.done()
        await fleet.start_server("engine", serves(ready, "time.sleep(60)"), ready, 20)
        assert fleet.processes["engine"].pid != first.pid
        assert not told

    with_fleet(tmp_path, body)


def test_a_start_that_takes_too_long_is_named(tmp_path: Path) -> None:
    async def body(fleet: Fleet) -> None:
        with pytest.raises(WaitTimeout, match=r"start of `engine` took more than 0\.1 s"):
            await fleet.start_server("engine", SLEEPS, tmp_path / "ready.json", 0.1)

    with_fleet(tmp_path, body)


def test_the_socket_lies_in_the_folder_of_the_run_however_deep_that_is(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)

    async def body(fleet: Fleet) -> None:
        assert fleet.socket.is_socket()
        assert len(str(fleet.socket)) > 107
        _, writer = await asyncio.open_unix_connection(fleet.address)
        writer.close()

    with_fleet(deep, body)
    assert not (deep / "run" / "sites" / "s").exists()
