"""What telling the controller of a turn costs it: the way from a trajectory's thread through `decide` and back, over a real socket.

    python benchmarks/turns.py [--in-flight 256] [--turns 16] [--turn-ms 50]

    rollout process    one thread a trajectory: next_turn, then a turn of about `--turn-ms` in which it waits, as for an engine
    controller         Peer, `decide` on a state with all of them in flight, the answer

A figure is what the next turn waits for, once alone and once with all of them in flight, and as a share of a turn. Where other processes
take the cores, the CPU time of both ends says what is left without them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from rlflow.attempt import Attempt
from rlflow.measure import collected
from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.state import Config, State
from rlflow.run.messages import Call, Continue, Done, Shutdown, Turn
from rlflow.run.transport import Channel, Peer

TIMEOUT = 120.0  # seconds for all turns of a trajectory


class Rollout:
    """The rollout process, without an engine."""

    def __init__(self, socket: Path, turns: int, seconds: float) -> None:
        self.channel, self.turns, self.seconds = Channel(socket), turns, seconds
        self.attempts, self.start = dict[int, Attempt](), time.process_time()

    def serve(self) -> None:
        while True:
            match self.channel.receive():
                case Continue(call=call, turn=turn, address=address):
                    self.attempts[call].go_on(turn, address)
                case Call(id=call):
                    self.attempts[call] = Attempt(str(call), "http://a", partial(self._tell, call), TIMEOUT)
                    threading.Thread(target=self._play, args=(call,), daemon=True).start()
                case _:
                    return

    def _tell(self, call: int, turn: int) -> None:
        self.channel.send(Turn(call, turn))

    def _play(self, call: int) -> None:
        chance, waited = random.Random(call), dict[str, float]()
        collected()
        for turn in range(self.turns + 1):
            self.attempts[call].next_turn()
            if turn:
                waited[str(turn)] = collected()["turns/waited_seconds"]
            time.sleep(self.seconds * chance.uniform(0.5, 1.5))
        self.channel.send(Done(call, metrics=waited | {"cpu": time.process_time() - self.start}))


class Controller:
    """`decide` and the one peer; nothing lands, so that all trajectories stay in flight."""

    def __init__(self, in_flight: int) -> None:
        config = Config(n=8, groups_per_batch=max(in_flight // 8, 1), max_lag=0, last=9, engines=("engine",), watermark=max(in_flight, 8))
        self.state = State(config)
        started = [*self._feed(ev.RunStarted()), *self._feed(ev.WorkersUp(1)), *self._feed(ev.EngineUp("engine", 1, in_flight))]
        (sync,) = [action.sync for action in started if isinstance(action, ev.Sync)]
        self.trajectories = [action.trajectory for action in self._feed(ev.Synced(sync)) if isinstance(action, ev.Dispatch)]

    def _feed(self, event: ev.AnyEvent) -> list[ev.AnyAction]:
        return decide(self.state, event)

    async def play(self, peer: Peer) -> list[Done]:
        return await asyncio.gather(*(self._call(peer, number) for number in range(len(self.trajectories))))

    def _call(self, peer: Peer, number: int) -> Any:
        def turned(turn: int) -> None:
            for action in self._feed(ev.Turn(self.trajectories[number], turn)):
                assert isinstance(action, ev.Continue)
                peer.send(Continue(number, action.turn, "http://a"))

        return peer.call(Call(number, 0), what="turns", timeout=TIMEOUT, turned=turned)


def measure(in_flight: int, turns: int, seconds: float) -> tuple[list[float], float]:
    """What each turn waited, in seconds, and the CPU seconds of one, of both ends."""
    with tempfile.TemporaryDirectory() as folder:
        child = -1
        socket = Path(folder) / "socket"

        async def run() -> tuple[list[Done], float]:
            nonlocal child
            connected: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
            server = await asyncio.start_unix_server(lambda r, w: connected.set_result(Peer("rollout", r, w)), path=str(socket))
            child = os.posix_spawn(sys.executable, [sys.executable, __file__, "--rollout", str(socket), *sys.argv[1:]], dict(os.environ))
            peer = await connected
            listening = asyncio.ensure_future(peer.listen())
            controller, start = Controller(in_flight), time.process_time()
            done = await controller.play(peer)
            took = time.process_time() - start
            peer.send(Shutdown())
            await listening
            peer.close()
            server.close()
            return done, took

        done, took = uvloop.run(run())
        os.waitpid(child, 0)
    cpu = took + max(one.metrics.pop("cpu") for one in done)
    return [waited for one in done for waited in one.metrics.values()], cpu / (len(done) * turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=256, help="trajectories, a multiple of 8")
    parser.add_argument("--turns", type=int, default=16, help="of each trajectory, after its first")
    parser.add_argument("--turn-ms", type=float, default=50.0, help="of one turn at its engine")
    parser.add_argument("--rollout", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rollout is not None:
        Rollout(args.rollout, args.turns, args.turn_ms / 1000).serve()
        return
    for name, in_flight in (("alone", 1), ("at once", args.in_flight)):
        waited, cpu = measure(in_flight, args.turns, args.turn_ms / 1000)
        waited.sort()
        middle, tail = statistics.median(waited) * 1e3, waited[int(0.99 * (len(waited) - 1))] * 1e3
        print(f"{name:8} {len(waited):6} turns: waits p50 {middle:.2f} ms, p99 {tail:.2f} ms; CPU {cpu * 1e3:.2f} ms; "
              f"p50 is {middle / args.turn_ms:.1%} of a turn of {args.turn_ms:g} ms")  # fmt: skip


if __name__ == "__main__":
    main()
