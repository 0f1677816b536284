"""Rows on disk: what comes back is what was written, bit for bit, or an error that names the file."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlflow.data.batch import Block
from rlflow.data.column import Column, offsets_of
from rlflow.data.dtypes import NUMPY
from rlflow.errors import DataError
from rlflow.run import rowfiles
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.rowfiles import Facts

FACTS = Facts(node=3, plan="abc", timeline=2, lengths=(3, 2), spans=((4, 0, 3), (5, 3, 5)), metrics={"reward": 0.5})
BLOCK = Block(
    {
        "7": Column.ragged("i64", [[1, 2, 3], [4, 2**53 + 1]]),
        "8": Column.scalars("f32", np.array([np.nan, 1e-45], np.float32)),
        "9": Column.texts(["a\ud800b", ""]),
    }
)


def the_file(folder: Path) -> Path:
    """What this process has written there."""
    return folder / f"{rowfiles.WRITER}.arrows"


@st.composite
def columns(draw: st.DrawFn, rows: int) -> Column:
    """Any dtype, any bits; one value a row or ragged, with up to two fixed axes of 0 to 3."""
    dtype = draw(st.sampled_from(sorted(NUMPY)))
    ragged = dtype == "text" or draw(st.booleans())
    inner = () if dtype == "text" else draw(st.lists(st.integers(0, 3), max_size=2).map(tuple))
    lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
    count = sum(lengths) if ragged else rows
    storage = NUMPY[dtype]
    if storage == np.bool_:
        values = draw(hnp.arrays(np.bool_, (count, *inner)))
    else:
        nbytes = count * int(np.prod(inner, dtype=int)) * storage.itemsize
        values = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), storage).reshape(count, *inner)
    if not ragged:
        return Column(dtype, values)
    return Column(dtype, values, offsets_of(lengths), draw(st.integers(1, 1 + len(inner))))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    rows = draw(st.integers(0, 4))
    return Block({str(i): draw(columns(rows)) for i in range(draw(st.integers(0, 4)))})


@given(block=blocks())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_every_dtype_and_layout_come_back_bit_for_bit(tmp_path: Path, block: Block) -> None:
    path = tmp_path / "1" / "0.0"
    rowfiles.write(path, block, FACTS)
    read, facts = rowfiles.read(path)
    assert (dict(read.columns), facts) == (dict(block.columns), FACTS)


@pytest.mark.parametrize("layout", ["a slice of rows", "not contiguous"])
def test_views_are_written_as_their_rows(tmp_path: Path, layout: str) -> None:
    whole = Column("i64", np.arange(24).reshape(6, 4), offsets_of([1, 2, 3]))
    column = whole.between(1, 3) if layout == "a slice of rows" else Column("i64", whole.values[:, ::2], whole.offsets)
    rowfiles.write(tmp_path / "0.0", Block({"0": column}), FACTS)
    assert rowfiles.read(tmp_path / "0.0")[0]["0"].to_list() == column.to_list()


def test_any_arrow_reader_sees_the_numbers(tmp_path: Path) -> None:
    import pyarrow as pa

    rowfiles.write(tmp_path / "0.0", BLOCK, FACTS)
    table = pa.ipc.open_stream(the_file(tmp_path)).read_all()
    assert table["7"].to_pylist() == [[1, 2, 3], [4, 2**53 + 1]]
    assert table["9"].to_pylist() == ["a\ud800b".encode("utf-8", "surrogatepass"), b""]


@pytest.mark.parametrize(
    ("kept", "why"), [(0, ""), (1, "is no whole Arrow stream"), (100, "is no whole Arrow stream"), (-9, "is no whole")]
)
def test_rows_that_were_cut_are_refused_and_those_before_them_are_not(tmp_path: Path, kept: int, why: str) -> None:
    rowfiles.write(tmp_path / "0.0", BLOCK, FACTS)
    first = the_file(tmp_path).stat().st_size
    rowfiles.write(tmp_path / "1.0", BLOCK, FACTS)
    whole = the_file(tmp_path).read_bytes()
    the_file(tmp_path).write_bytes(whole[: first + kept] if kept >= 0 else whole[:kept])
    with pytest.raises(DataError, match=rf"1\.0 is missing: .*{why}"):
        rowfiles.read(tmp_path / "1.0")
    assert rowfiles.read(tmp_path / "0.0")[0] == BLOCK


@pytest.mark.parametrize("last", ["an error", "nothing"])
def test_what_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    folder, append, calls = tmp_path / "1", os.write, []
    rowfiles.write(folder / "0.0", BLOCK, FACTS)

    def full(file: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return append(file, data[:100])
        if last == "an error":
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return 0

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(OSError, match="Disk quota exceeded: .*arrows" if last == "an error" else "No space left on device: .*arrows"):
            rowfiles.write(folder / "1.0", BLOCK, FACTS)
    assert calls[1] == calls[0] - 100
    rowfiles.write(folder / "2.0", BLOCK, FACTS)
    assert rowfiles.names(tmp_path, 1) == {"0.0", "2.0"}


def test_a_write_that_takes_a_part_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = os.write
    monkeypatch.setattr(os, "write", lambda file, data: append(file, data[:100]))
    rowfiles.write(tmp_path / "0.0", BLOCK, FACTS)
    assert rowfiles.read(tmp_path / "0.0") == (BLOCK, FACTS)


def test_no_changed_byte_is_read_as_other_rows(tmp_path: Path) -> None:
    """Every byte of the file, one at a time: an error, or the same rows where the byte is filling."""
    path = tmp_path / "0.0"
    rowfiles.write(path, BLOCK, FACTS)
    file = the_file(tmp_path)
    good, fine, same = file.read_bytes(), 0, 0
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        try:
            block, facts = rowfiles.read(path)
        except DataError as error:
            fine += str(path) in str(error)
        else:
            fine += (dict(block.columns), facts) == (dict(BLOCK.columns), FACTS)
            same += 1
    assert fine == len(good)
    assert same < len(good) * 3 // 4


def test_a_file_of_another_format_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rowfiles, "FORMAT", 99)
        rowfiles.write(tmp_path / "0.0", BLOCK, FACTS)
    with pytest.raises(DataError, match="has format 99, this rlflow reads format 2"):
        rowfiles.read(tmp_path / "0.0")


def test_an_arrow_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.record_batch({"7": [1, 2]})
    with pa.ipc.new_stream(tmp_path / "1.arrows", table.schema) as writer:
        writer.write_batch(table)
    with pytest.raises(DataError, match=r"1\.arrows is no whole Arrow stream of a run"):
        rowfiles.read(tmp_path / "0.0")


def test_missing_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"5.0\.1 is missing: the ledger says"):
        rowfiles.read(rowfiles.trajectory_rows(tmp_path, TrajectoryId(5, 0, 1)))


def test_of_rows_that_were_written_twice_the_later_ones_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for writer, number in (("9-9", 1.0), ("1-1", 2.0), ("1-1", 3.0), ("5-5", 4.0)):
        monkeypatch.setattr(rowfiles, "WRITER", writer)
        rowfiles.write(tmp_path / "0.0", BLOCK, Facts(metrics={"n": number}))
    assert rowfiles.read(tmp_path / "0.0")[1].metrics == {"n": 4.0}


def test_recycling_deletes_the_groups_and_no_other(tmp_path: Path) -> None:
    for uid in (1, 2, 3):
        rowfiles.write(rowfiles.trajectory_rows(tmp_path, TrajectoryId(uid, 0, 0)), BLOCK, FACTS)
        rowfiles.write(rowfiles.group_rows(tmp_path, uid, "grpo", 0), BLOCK, FACTS)
    rowfiles.recycle(tmp_path, [1, 3, 77])
    assert [path.name for path in tmp_path.glob("*")] == ["2"]
    assert rowfiles.names(tmp_path, 2) == {"0.0", "grpo.0"}


def test_a_sweep_keeps_what_the_ledger_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for writer, trajectory in (("1-1", (1, 0, 0)), ("1-1", (1, 0, 1)), ("1-1", (2, 0, 0)), ("2-2", (1, 1, 0)), ("3-3", (1, 2, 0))):
        monkeypatch.setattr(rowfiles, "WRITER", writer)
        rowfiles.write(rowfiles.trajectory_rows(tmp_path, TrajectoryId(*trajectory)), BLOCK, FACTS)
    with (tmp_path / "1" / "3-3.arrows").open("ab") as file:
        file.write((tmp_path / "1" / "2-2.arrows").read_bytes()[:100])  # of a process that was killed meanwhile
    (tmp_path / "1" / "4-4.half").write_bytes(b"AR")
    kept = [TrajectoryId(1, 0, 1), TrajectoryId(1, 2, 0)]
    rowfiles.sweep(tmp_path, kept, {})
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["1", "1/1-1.arrows", "1/3-3.arrows"]
    assert rowfiles.names(tmp_path, 1) == {"0.1", "2.0"}
    for one in kept:
        assert rowfiles.read(rowfiles.trajectory_rows(tmp_path, one)) == (BLOCK, FACTS)


def test_a_sweep_leaves_a_group_alone_that_lacks_what_the_ledger_names(tmp_path: Path) -> None:
    rowfiles.write(tmp_path / "1" / "0.0", BLOCK, FACTS)
    file = the_file(tmp_path / "1")
    file.write_bytes(file.read_bytes()[:100])
    rowfiles.sweep(tmp_path, [TrajectoryId(1, 0, 0)], {})
    with pytest.raises(DataError, match="is no whole Arrow stream"):
        rowfiles.read(tmp_path / "1" / "0.0")


def test_of_what_operators_made_of_a_group_a_sweep_keeps_the_newest(tmp_path: Path) -> None:
    for operator, timeline in (("grpo", 2), ("grpo", 10), ("grpo.2", 11), ("later", 0)):
        rowfiles.write(rowfiles.group_rows(tmp_path, 1, operator, timeline), BLOCK, FACTS)
    rowfiles.write(tmp_path / "1" / "0.0", BLOCK, FACTS)
    rowfiles.sweep(tmp_path, [TrajectoryId(1, 0, 0)], {1: ["filter", "grpo"]})
    assert rowfiles.names(tmp_path, 1) == {"0.0", "grpo.10"}


def test_names_are_told_without_a_look_at_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three streams of a megabyte, less than a hundredth is read, and no batch is parsed."""
    big = Block({"0": Column.scalars("i64", np.arange(2**17))})
    for number in range(3):
        rowfiles.write(tmp_path / "1" / f"{number}.0", big, FACTS)
    read, message = list[int](), rowfiles._message

    def counted(data: BinaryIO, start: int, size: int) -> tuple[bytes, int]:
        flat, end = message(data, start, size)
        read.append(len(flat))
        return flat, end

    monkeypatch.setattr(rowfiles, "_message", counted)
    monkeypatch.setattr("pyarrow.ipc.open_stream", None)
    assert rowfiles.names(tmp_path, 1) == {"0.0", "1.0", "2.0"}
    assert sum(read) < the_file(tmp_path / "1").stat().st_size // 100


# --- rows of an older rlflow ----------------------------------------------------------------------------------------------------------
def old_rows(rows: Path, *names: str) -> None:
    """As format 1 has them: FACTS and BLOCK in a file a name."""
    for name in names:
        (rows / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("rows_v1.arrow"), rows / f"{name}.arrow")


def test_rows_of_an_older_rlflow_are_read_beside_newer_ones(tmp_path: Path) -> None:
    old_rows(tmp_path, "1/0.0", "1/grpo.3")
    rowfiles.write(tmp_path / "1" / "1.0", BLOCK, Facts())
    assert rowfiles.names(tmp_path, 1) == {"0.0", "1.0", "grpo.3"}
    for name in ("0.0", "grpo.3"):
        assert rowfiles.read(tmp_path / "1" / name) == (BLOCK, FACTS)
    assert rowfiles.read(tmp_path / "1" / "1.0") == (BLOCK, Facts())


def test_rows_of_an_older_rlflow_are_swept_and_recycled_by_their_names(tmp_path: Path) -> None:
    old_rows(tmp_path, "1/0.0", "1/0.1", "1/1.0", "1/grpo.3", "1/grpo.4", "2/0.0", "3/0.0")
    (tmp_path / "1" / "1.1.arrow.77.half").write_bytes(b"ARROW1")
    rowfiles.sweep(tmp_path, [TrajectoryId(1, 0, 1), TrajectoryId(1, 1, 0), TrajectoryId(3, 0, 0)], {1: ["grpo"]})
    assert sorted(p.name for p in (tmp_path / "1").iterdir()) == ["0.1.arrow", "1.0.arrow", "grpo.4.arrow"]
    assert not (tmp_path / "2").exists()
    rowfiles.recycle(tmp_path, [3])
    assert rowfiles.names(tmp_path, 3) == set()


def test_no_changed_byte_of_an_older_file_is_read_as_other_rows_and_no_cut_one_at_all(tmp_path: Path) -> None:
    old_rows(tmp_path, "0.0")
    file = tmp_path / "0.0.arrow"
    good, refused = file.read_bytes(), list[str]()
    changed = [good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :] for at in range(len(good))]
    for data in (*changed, *(good[:end] for end in range(0, len(good) // 2, 7))):
        file.write_bytes(data)
        try:
            assert rowfiles.read(tmp_path / "0.0") == (BLOCK, FACTS)
        except DataError as error:
            refused.append(str(error))
    assert all(str(tmp_path / "0.0") in error for error in refused)
    assert len(refused) > len(good) // 4
