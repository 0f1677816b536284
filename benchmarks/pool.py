"""A batch to another process: through the shared-memory pool, and pickled through a Unix socket.

    python benchmarks/pool.py [--rows 256] [--tokens 2048] [--times 20]

    pool     writer puts the block, sends its key       reader views it     writer releases it
    pickle   writer pickles the same columns, sends     reader loads them

In both the reader touches every page of every column and answers, one batch at a time: a figure is what a hop waits for.
"""

from __future__ import annotations

import argparse
import os
import pickle
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from rlflow.data.batch import Block, Column
from rlflow.data.pool.arena import ShmArena
from rlflow.data.pool.protocol import Key
from rlflow.data.pool.shm import ShmPool

WARM = 2  # hops before the first that counts
TIMEOUT = 60.0  # seconds for one answer


def batch(rows: int, tokens: int) -> Block:
    """The token columns of a sample: lengths from half of `tokens` to one and a half."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(tokens // 2, tokens * 3 // 2, rows))])
    total = int(offsets[-1])
    numbers = {
        "input_ids": ("i64", rng.integers(0, 150_000, total)),
        "position_ids": ("i64", np.arange(total)),
        "response_mask": ("flag", rng.random(total) < 0.8),
        "rollout_log_probs": ("f32", rng.random(total, np.float32)),
        "advantages": ("f32", rng.random(total, np.float32)),
    }
    return Block({name: Column(dtype, values, offsets) for name, (dtype, values) in numbers.items()})


def touch(arrays: list[np.ndarray]) -> int:
    """One byte of every page."""
    return sum(int(array.view(np.uint8)[::4096].sum()) for array in arrays if array.size)


def send(sock: socket.socket, message: bytes) -> None:
    sock.sendall(len(message).to_bytes(8, "little"))
    sock.sendall(message)


def receive(sock: socket.socket) -> bytes:
    left = int.from_bytes(exactly(sock, 8), "little")
    return bytes(exactly(sock, left))


def exactly(sock: socket.socket, nbytes: int) -> bytearray:
    buffer = bytearray(nbytes)
    view = memoryview(buffer)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise EOFError("the other process is gone")
        view = view[got:]
    return buffer


def read_by_key(sock: socket.socket, pool: ShmPool) -> None:
    key = msgspec.msgpack.decode(receive(sock), type=Key)
    send(sock, str(touch([column.values for column in pool.view(key).columns.values()])).encode())


def read_pickled(sock: socket.socket) -> None:
    columns = pickle.loads(receive(sock))  # ours, over our own socket pair: what the pool is measured against
    send(sock, str(touch([values for values, _ in columns.values()])).encode())


def read(sock: socket.socket, pool: ShmPool, times: int) -> NoReturn:
    """The other process: so many batches by key, then as many pickled ones."""
    try:
        for _ in range(times):
            read_by_key(sock, pool)
        for _ in range(times):
            read_pickled(sock)
    finally:
        os._exit(0)  # nothing of the parent's is to run here; it notices a closed socket


def through_pool(sock: socket.socket, pool: ShmPool, block: Block) -> bytes:
    key = pool.put(block)
    send(sock, msgspec.msgpack.encode(key))
    answer = receive(sock)
    pool.release([key])
    return answer


def through_pickle(sock: socket.socket, block: Block) -> bytes:
    send(sock, pickle.dumps({name: (c.values, c.offsets) for name, c in block.columns.items()}, protocol=5))
    return receive(sock)


def seconds(times: int, hop: Callable[[], bytes], expected: bytes) -> float:
    """Median of one hop, the first WARM not counted."""
    taken = []
    for _ in range(times + WARM):
        start = time.perf_counter()
        if hop() != expected:
            raise SystemExit("the reader saw other bytes than were written")
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[WARM:])


def main() -> None:
    parser = argparse.ArgumentParser(description="put + view against pickle through a Unix socket")
    for name, default in (("rows", 256), ("tokens", 2048), ("times", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    block = batch(options.rows, options.tokens)
    expected = str(touch([column.values for column in block.columns.values()])).encode()
    here, there = socket.socketpair()
    with ShmArena.create(["writer"], max(1 << 20, 2 * block.nbytes)) as arena:
        child = os.fork()
        if child == 0:
            here.close()
            read(there, ShmPool.attach(arena.handle()), options.times + WARM)
        there.close()
        here.settimeout(TIMEOUT)
        writer = ShmPool.attach(arena.handle(), "writer")
        by_pool = seconds(options.times, lambda: through_pool(here, writer, block), expected)
        by_pickle = seconds(options.times, lambda: through_pickle(here, block), expected)
        os.waitpid(child, 0)
    megabytes = block.nbytes / 1e6
    print(f"{options.rows} rows, about {options.tokens} tokens each, {len(block.columns)} columns: {megabytes:.1f} MB")
    print(f"pool (put + view)      {by_pool * 1e3:8.2f} ms  {megabytes / by_pool:8.0f} MB/s")
    print(f"pickle, Unix socket    {by_pickle * 1e3:8.2f} ms  {megabytes / by_pickle:8.0f} MB/s")
    print(f"the pool is {by_pickle / by_pool:.1f} times as fast")


if __name__ == "__main__":
    main()
