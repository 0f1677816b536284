"""The shared-memory pool within one process: keys, room, pins."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from rlflow.data import layout
from rlflow.data.batch import Block, Column
from rlflow.data.pool.arena import ShmArena
from rlflow.data.pool.protocol import Key, Pool
from rlflow.data.pool.shm import ShmPool
from rlflow.errors import PoolError, PoolFull

CAPACITY = 1 << 17


@pytest.fixture
def arena() -> Iterator[ShmArena]:
    with ShmArena.create(["rollout", "host"], CAPACITY) as made:
        yield made


@pytest.fixture
def pool(arena: ShmArena) -> Iterator[ShmPool]:
    attached = ShmPool.attach(arena.handle(), "rollout")
    yield attached
    attached.close()


def tokens(n: int) -> Block:
    return Block({"input_ids": Column.ragged("i64", [list(range(n))])})


def kilobytes(n: int) -> Block:
    return Block({"junk": Column.scalars("flag", np.ones(n << 10, np.bool_))})


def test_what_is_put_is_viewed(pool: ShmPool) -> None:
    key = pool.put(tokens(5))
    assert pool.view(key) == tokens(5)
    assert (key.lane, key.rows, key.offset % 64, key.serial) == (0, 1, 0, 1)


def test_it_is_a_pool(pool: ShmPool) -> None:
    as_pool: Pool = pool
    assert as_pool.stats().lane == "rollout"


def test_a_view_is_read_only_and_copies_nothing(pool: ShmPool) -> None:
    key = pool.put(tokens(5))
    first, second = pool.view(key)["input_ids"].values, pool.view(key)["input_ids"].values
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_a_key_is_at_most_20_bytes_on_the_wire() -> None:
    assert len(msgspec.msgpack.encode(Key(7, (1 << 32) - 64, 1 << 28, 8192, 1 << 20))) == 20


def test_the_handle_goes_through_json(arena: ShmArena) -> None:
    handle = msgspec.json.decode(msgspec.json.encode(arena.handle()), type=type(arena.handle()))
    writer, reader = ShmPool.attach(handle, "host"), ShmPool.attach(handle)
    assert reader.view(writer.put(tokens(3))) == tokens(3)


def test_stats_count_what_is_outstanding(pool: ShmPool) -> None:
    keys = [pool.put(kilobytes(1)) for _ in range(3)]
    pool.release(keys[:2])
    stats = pool.stats()
    assert (stats.keys, stats.bytes, stats.peak_bytes) == (1, keys[2].nbytes, sum(key.nbytes for key in keys))
    pool.release(keys[2:])
    assert (pool.stats().keys, pool.stats().bytes, pool.stats().peak_bytes) == (0, 0, 3 * keys[0].nbytes)


def test_bytes_that_are_free_again_are_taken_again(pool: ShmPool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[int]()
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, start, length: taken.append(length))
    monkeypatch.setattr("rlflow.data.pool.shm.GROW", 4096)
    for _ in range(100):
        pool.release([pool.put(tokens(5))])
    assert taken == [4096]


def test_a_put_that_fails_leaves_nothing_behind(pool: ShmPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(layout, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.put(tokens(1))
    assert (pool.stats().keys, pool.stats().bytes) == (0, 0)


# --- stale keys -----------------------------------------------------------------------------------------------------------------------
def test_a_released_key_is_stale(arena: ShmArena, pool: ShmPool) -> None:
    key, reader = pool.put(tokens(5)), ShmPool.attach(arena.handle())
    pool.release([key])
    for anyone in (pool, reader):
        with pytest.raises(PoolError, match="of lane `rollout` is stale: its bytes were released"):
            anyone.view(key)


def test_a_stale_key_does_not_show_the_rows_that_came_after(pool: ShmPool) -> None:
    old = pool.put(tokens(5))
    pool.release([old])
    new = pool.put(tokens(5))
    assert new.offset == old.offset
    with pytest.raises(PoolError, match="is stale"):
        pool.view(old)


@pytest.mark.parametrize(
    "key", [Key(0, 64, 64, 1, 1), Key(0, 64, 1 << 40, 1, 1), Key(0, 0, 64, 1, 0), Key(0, 64, 8, 1, 0), Key(9, 64, 64, 1, 1)]
)
def test_a_key_that_was_never_given(pool: ShmPool, key: Key) -> None:
    with pytest.raises(PoolError, match=r"Key\(lane="):
        pool.view(key)


def test_release_twice_names_the_key_and_frees_nothing(pool: ShmPool) -> None:
    gone, kept = pool.put(tokens(1)), pool.put(tokens(2))
    pool.release([gone])
    with pytest.raises(PoolError, match=r"Key\(lane=0, offset=64, .*\) is not in lane `rollout`: it was released before, or never put"):
        pool.release([kept, gone])
    with pytest.raises(PoolError, match="is released twice in one call"):
        pool.release([kept, kept])
    assert pool.view(kept) == tokens(2)


def test_only_the_owner_of_a_lane_releases(arena: ShmArena, pool: ShmPool) -> None:
    other = ShmPool.attach(arena.handle(), "host")
    key = pool.put(tokens(1))
    with pytest.raises(PoolError, match=r"is of lane 0: this process owns lane 1 \(`host`\)"):
        other.release([key])
    with pytest.raises(PoolError, match="cannot release: this process only reads the pool"):
        ShmPool.attach(arena.handle()).release([key])


# --- room -----------------------------------------------------------------------------------------------------------------------------
def test_full_names_the_lane_and_the_bytes(pool: ShmPool) -> None:
    keys = [pool.put(kilobytes(60)) for _ in range(2)]
    start = time.monotonic()
    outstanding = sum(key.nbytes for key in keys)
    with pytest.raises(PoolFull, match=rf"lane `rollout`: no room for \d+ bytes within 0.1 s, {outstanding} of 131008 .* in 2 keys"):
        pool.put(kilobytes(60), timeout=0.1)
    assert 0.1 <= time.monotonic() - start < 5
    assert [pool.view(key).rows for key in keys] == [60 << 10] * 2  # nothing was evicted


def test_what_can_never_fit_does_not_wait(pool: ShmPool) -> None:
    start = time.monotonic()
    with pytest.raises(PoolFull, match="can never fit"):
        pool.put(kilobytes(200), timeout=60)
    assert time.monotonic() - start < 5


def test_put_waits_for_a_release(pool: ShmPool) -> None:
    first = pool.put(kilobytes(100))
    timer = threading.Timer(0.1, pool.release, [[first]])
    timer.start()
    second = pool.put(kilobytes(100), timeout=20)
    timer.join()
    assert pool.view(second) == kilobytes(100)


def test_a_full_dev_shm_is_an_error_and_not_a_signal(pool: ShmPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(PoolFull, match="0 bytes of /dev/shm are taken: release keys earlier"):
        pool.put(tokens(1), timeout=0)
    monkeypatch.undo()
    assert pool.view(pool.put(tokens(1))) == tokens(1)


def test_more_than_dev_shm_has_is_refused_at_the_start() -> None:
    with pytest.raises(PoolFull, match=r"/dev/shm has \d+ MiB free, one lane of the pool is to hold \d+.0 MiB .*--shm-size"):
        ShmArena.create(["rollout"], 1 << 60)


def test_lanes_are_sparse(arena: ShmArena) -> None:
    pool = ShmPool.attach(arena.handle(), "host")
    fd = arena.handle().lanes[1].fd
    assert os.fstat(fd).st_blocks * 512 <= 4096
    pool.put(kilobytes(4))
    assert os.fstat(fd).st_blocks * 512 <= CAPACITY


def test_threads_put_and_release_at_once(pool: ShmPool) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            block = tokens(int(rng.integers(1, 200)))
            key = pool.put(block)
            if pool.view(key) != block:
                failures.append(str(key))
            pool.release([key])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert pool.stats().keys == 0
    assert pool.stats().bytes == 0


# --- pins -----------------------------------------------------------------------------------------------------------------------------
def test_a_pinned_bundle_outlives_its_release(pool: ShmPool) -> None:
    key = pool.put(tokens(5))
    pool.pin(key, "actor.0")
    pool.pin(key, "actor.0")
    pool.pin(key, "actor.1")
    pool.release([key])
    for holder in ("actor.0", "actor.1"):
        pool.unpin(key, holder)
        assert pool.view(key) == tokens(5)
        assert (pool.stats().pinned, pool.stats().held) == (1, 1)
    pool.unpin(key, "actor.0")
    assert pool.stats().keys == 0
    with pytest.raises(PoolError, match="is stale"):
        pool.view(key)


def test_a_pin_does_not_free_what_was_not_released(pool: ShmPool) -> None:
    key = pool.put(tokens(5))
    pool.pin(key, "actor.0")
    pool.unpin(key, "actor.0")
    assert pool.view(key) == tokens(5)


def test_a_released_bundle_takes_no_new_pin_and_no_second_release(pool: ShmPool) -> None:
    key = pool.put(tokens(5))
    pool.pin(key, "actor.0")
    pool.release([key])
    with pytest.raises(PoolError, match=r"was released before, pins of actor\.0 hold it"):
        pool.pin(key, "late")
    with pytest.raises(PoolError, match=r"was released before, pins of actor\.0 hold it"):
        pool.release([key])


def test_unpin_without_a_pin(pool: ShmPool) -> None:
    key = pool.put(tokens(5))
    with pytest.raises(PoolError, match=r"`actor\.0` has no pin on Key"):
        pool.unpin(key, "actor.0")


# --- lanes ----------------------------------------------------------------------------------------------------------------------------
def test_a_lane_has_one_writer(arena: ShmArena, pool: ShmPool) -> None:
    with pytest.raises(PoolError, match=f"lane `rollout` is written by pid {os.getpid()}"):
        ShmPool.attach(arena.handle(), "rollout")


def test_a_lane_is_taken_over_with_the_keys_that_are_live(arena: ShmArena, pool: ShmPool) -> None:
    lost, kept, told_late = (pool.put(tokens(n)) for n in (3, 5, 7))
    pool.close()
    heir = ShmPool.attach(arena.handle(), "rollout", live=[kept])
    assert heir.view(kept) == tokens(5)
    assert (heir.stats().keys, heir.stats().bytes) == (1, kept.nbytes)
    for key in (lost, told_late):  # their bytes are as they were, but nobody knows of them any more
        with pytest.raises(PoolError, match="is stale"):
            heir.view(key)
    assert heir.put(tokens(3)).offset == lost.offset
    heir.release([kept])
    assert heir.stats().keys == 1


def test_a_key_that_a_lane_does_not_hold_is_not_taken_over(arena: ShmArena, pool: ShmPool) -> None:
    key = pool.put(tokens(5))
    pool.release([key])
    pool.close()
    with pytest.raises(PoolError, match="is not in lane `rollout`: it cannot be taken over"):
        ShmPool.attach(arena.handle(), "rollout", live=[key])


def test_an_unknown_lane_names_those_there_are(arena: ShmArena) -> None:
    with pytest.raises(PoolError, match="the pool has no lane `critic`: there are rollout, host"):
        ShmPool.attach(arena.handle(), "critic")


def test_a_closed_arena_cannot_be_attached_but_is_still_read(arena: ShmArena, pool: ShmPool) -> None:
    key = pool.put(tokens(3))
    arena.close()
    assert pool.view(key) == tokens(3)
    with pytest.raises(PoolError, match=r"cannot open lane `rollout` of the pool at /proc/|is not lane `rollout` of this pool"):
        ShmPool.attach(arena.handle())


def test_a_descriptor_that_is_something_else_by_now(arena: ShmArena) -> None:
    handle, (first, second) = arena.handle(), arena.handle().lanes
    swapped = msgspec.structs.replace(handle, lanes=(msgspec.structs.replace(first, fd=second.fd), second))
    with pytest.raises(PoolError, match=f"fd {second.fd} of pid {os.getpid()} is not lane `rollout` of this pool"):
        ShmPool.attach(swapped)


def test_views_outlive_the_pool(arena: ShmArena, pool: ShmPool) -> None:
    block = pool.view(pool.put(tokens(3)))
    pool.close()
    arena.close()
    assert block == tokens(3)
