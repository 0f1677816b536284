"""Frames between the controller and a worker, over a real Unix socket: what is counted, what is refused, who is told what."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from rlflow.data.pool.protocol import Key
from rlflow.errors import OperatorError, WaitTimeout, WorkerDied
from rlflow.run import transport
from rlflow.run.messages import MAX_FRAME, Call, Continue, Done, Failed, Hello, Shutdown, Source, Turn
from rlflow.run.transport import BadFrame, Channel, Peer

KEY = Key(0, 64, 128, 1, 1)


def with_peer(tmp_path: Path, body: Callable[[Peer, Channel], Awaitable[None]]) -> None:
    """Run `body` with both ends of one connection; the controller's end listens."""

    async def run() -> None:
        connected: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        listening: list[asyncio.Task[None]] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set_result(peer := Peer("actor", reader, writer))
            listening.append(asyncio.ensure_future(peer.listen()))

        server = await asyncio.start_unix_server(accept, path=str(tmp_path / "s"))
        channel = await asyncio.to_thread(Channel, tmp_path / "s")
        peer = await connected
        try:
            await asyncio.wait_for(body(peer, channel), 10)
        finally:
            channel.close()
            await asyncio.gather(*listening, return_exceptions=True)
            peer.close()
            server.close()

    asyncio.run(run())


def test_a_call_comes_back_with_its_answer(tmp_path: Path) -> None:
    async def body(peer: Peer, channel: Channel) -> None:
        call = asyncio.ensure_future(peer.call(Call(7, 3, sources=(Source(1, (KEY,), (0, -1)),)), what="`grpo`", timeout=5))
        assert await asyncio.to_thread(channel.receive) == Call(7, 3, sources=(Source(1, (KEY,), (0, -1)),))
        channel.send(Done(7, KEY, metrics={"loss": 0.5}))
        assert await call == Done(7, KEY, metrics={"loss": 0.5})

    with_peer(tmp_path, body)


def test_a_call_tells_of_its_turns_before_it_is_answered(tmp_path: Path) -> None:
    async def body(peer: Peer, channel: Channel) -> None:
        told: list[int] = []
        call = asyncio.ensure_future(peer.call(Call(7, 3), what="`rollout`", timeout=5, turned=told.append))
        await asyncio.to_thread(channel.receive)
        channel.send(Turn(8, 1))  # of a call that nobody waits for any more
        for turn in (1, 2):
            channel.send(Turn(7, turn))
            while turn not in told:
                await asyncio.sleep(0.01)
            peer.send(Continue(7, turn, "http://b"))
            assert await asyncio.to_thread(channel.receive) == Continue(7, turn, "http://b")
        channel.send(Done(7))
        assert await call == Done(7)
        channel.send(Turn(7, 3))
        channel.send(Done(7))
        peer.late = (late := asyncio.get_running_loop().create_future()).set_result
        await late
        assert told == [1, 2]

    with_peer(tmp_path, body)


def test_a_turn_and_its_answer_take_less_than_96_bytes() -> None:
    told, answer = Turn(123_456, 15), Continue(123_456, 15, "http://127.0.0.1:54321")
    assert len(msgspec.msgpack.encode(told)) + len(msgspec.msgpack.encode(answer)) + 8 < 96


def test_every_byte_of_both_directions_is_counted(tmp_path: Path) -> None:
    async def body(peer: Peer, channel: Channel) -> None:
        call = asyncio.ensure_future(peer.call(Call(1, 2), what="`x`", timeout=5))
        await asyncio.to_thread(channel.receive)
        channel.send(Done(1))
        await call
        assert peer.bytes_out == 4 + len(msgspec.msgpack.encode(Call(1, 2)))
        assert peer.bytes_in == 4 + len(msgspec.msgpack.encode(Done(1)))

    with_peer(tmp_path, body)


def test_one_trajectory_takes_less_than_256_bytes(tmp_path: Path) -> None:
    call = Call(123_456, 12, 1000, prompt=(2**31, 2**40, 7), engine=1, address="http://127.0.0.1:54321")
    done = Done(123_456, Key(3, 2**30, 2**20, 8, 2**40), (4096,), ((1000, 0, 4095),), {"engine.rollout/rollout_log_probs": -0.5})
    assert len(msgspec.msgpack.encode(call)) + len(msgspec.msgpack.encode(done)) + 8 < 256


def test_what_an_operator_raised_names_it_and_its_process(tmp_path: Path) -> None:
    async def body(peer: Peer, channel: Channel) -> None:
        call = asyncio.ensure_future(peer.call(Call(1, 2), what="`grpo`", timeout=5))
        await asyncio.to_thread(channel.receive)
        channel.send(Failed(1, "ValueError", "no group", "Traceback ...\n"))
        with pytest.raises(OperatorError, match=r"^`grpo` on `actor` raised ValueError: no group\nTraceback \.\.\.$"):
            await call

    with_peer(tmp_path, body)


def test_a_wait_that_runs_out_carries_its_name_and_the_late_block_is_handed_on(tmp_path: Path) -> None:
    async def body(peer: Peer, channel: Channel) -> None:
        late: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        peer.late = late.set_result
        with pytest.raises(WaitTimeout, match=r"`grpo` on `actor` did not return within 0\.05 s"):
            await peer.call(Call(1, 2), what="`grpo`", timeout=0.05)
        channel.send(Done(1, KEY))
        assert (await late).key == KEY

    with_peer(tmp_path, body)


def test_a_late_failure_left_nothing_behind(tmp_path: Path) -> None:
    async def body(peer: Peer, channel: Channel) -> None:
        late: list[Done] = []
        peer.late = late.append
        with pytest.raises(WaitTimeout):
            await peer.call(Call(1, 2), what="`grpo`", timeout=0.05)
        channel.send(Failed(1, "ValueError", "", ""))
        channel.send(Done(1, KEY))
        while not late:
            await asyncio.sleep(0.01)
        assert late == [Done(1, KEY)]

    with_peer(tmp_path, body)


def test_who_waits_for_a_lost_worker_is_told_and_later_calls_too(tmp_path: Path) -> None:
    async def body(peer: Peer, channel: Channel) -> None:
        call = asyncio.ensure_future(peer.call(Call(1, 2), what="`grpo`", timeout=5))
        await asyncio.sleep(0)
        peer.lost(WorkerDied("`actor` died: killed by SIGKILL"))
        peer.lost(WorkerDied("and once more"))
        for lost in (call, peer.call(Call(2, 2), what="`grpo`", timeout=5)):
            with pytest.raises(WorkerDied, match=r"^`actor` died: killed by SIGKILL$"):
                await lost
        sent = peer.bytes_out
        peer.send(Shutdown())
        assert peer.bytes_out == sent

    with_peer(tmp_path, body)


def test_a_message_over_the_limit_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_FRAME", 100)

    async def body(peer: Peer, channel: Channel) -> None:
        with pytest.raises(BadFrame, match=r"a Call of 176 bytes is over the limit of 100"):
            await peer.call(Call(1, 2, sources=(Source(1, (), tuple(range(200, 270))),)), what="`x`", timeout=5)
        with pytest.raises(BadFrame, match=r"a Hello of .* bytes is over the limit of 100"):
            channel.send(Hello("x" * 200, 1))
        channel.send(Done(9))
        await asyncio.sleep(0.05)
        assert (peer.bytes_out, peer.bytes_in) == (0, 4 + len(msgspec.msgpack.encode(Done(9))))

    with_peer(tmp_path, body)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (struct.pack("<I", MAX_FRAME + 1), f"a frame of {MAX_FRAME + 1} bytes is over the limit"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "`actor` sent what is no message of ours"),
        (struct.pack("<I", len(hello := msgspec.msgpack.encode(Hello("a", 1)))) + hello, "`actor` sent a second Hello"),
    ],
)
def test_a_peer_that_speaks_nonsense_is_not_listened_to(sent: bytes, said: str) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        peer = Peer("actor", *await asyncio.open_connection(sock=ours))
        theirs.sendall(sent)
        with pytest.raises(BadFrame, match=said):
            await asyncio.wait_for(peer.listen(), 5)
        peer.close()
        theirs.close()

    asyncio.run(run())


def test_half_a_frame_is_the_end(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    channel = object.__new__(Channel)
    channel._socket, channel._reader = ours, ours.makefile("rb")
    theirs.sendall(struct.pack("<I", 50) + b"half")
    theirs.close()
    assert channel.receive() is None
    channel.close()
