"""Rows on disk: what comes back is what was written, bit for bit, or an error that names the file."""

from __future__ import annotations

import os
from pathlib import Path

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
    path = tmp_path / "1" / "0.0.arrow"
    rowfiles.write(path, block, FACTS)
    read, facts = rowfiles.read(path)
    assert (dict(read.columns), facts) == (dict(block.columns), FACTS)


@pytest.mark.parametrize("layout", ["a slice of rows", "not contiguous"])
def test_views_are_written_as_their_rows(tmp_path: Path, layout: str) -> None:
    whole = Column("i64", np.arange(24).reshape(6, 4), offsets_of([1, 2, 3]))
    column = whole.between(1, 3) if layout == "a slice of rows" else Column("i64", whole.values[:, ::2], whole.offsets)
    rowfiles.write(tmp_path / "rows.arrow", Block({"0": column}), FACTS)
    assert rowfiles.read(tmp_path / "rows.arrow")[0]["0"].to_list() == column.to_list()


def test_any_arrow_reader_sees_the_numbers(tmp_path: Path) -> None:
    import pyarrow as pa

    rowfiles.write(tmp_path / "rows.arrow", BLOCK, FACTS)
    table = pa.ipc.open_file(tmp_path / "rows.arrow").read_all()
    assert table["7"].to_pylist() == [[1, 2, 3], [4, 2**53 + 1]]
    assert table["9"].to_pylist() == ["a\ud800b".encode("utf-8", "surrogatepass"), b""]


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "rows.arrow"
    rowfiles.write(path, BLOCK, FACTS)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"rows\.arrow is no whole Arrow file"):
        rowfiles.read(path)


def test_no_changed_byte_is_read_as_other_rows(tmp_path: Path) -> None:
    """Every byte of the file, one at a time: an error, or the same rows where the byte is filling."""
    path = tmp_path / "rows.arrow"
    rowfiles.write(path, BLOCK, FACTS)
    good, fine, same = path.read_bytes(), 0, 0
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
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
        rowfiles.write(tmp_path / "rows.arrow", BLOCK, FACTS)
    with pytest.raises(DataError, match="has format 99, this rlflow reads format 1"):
        rowfiles.read(tmp_path / "rows.arrow")


def test_an_arrow_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.record_batch({"7": [1, 2]})
    with pa.ipc.new_file(tmp_path / "rows.arrow", table.schema) as writer:
        writer.write_batch(table)
    with pytest.raises(DataError, match="holds no rows of a run"):
        rowfiles.read(tmp_path / "rows.arrow")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"5.0\.1\.arrow is missing"):
        rowfiles.read(rowfiles.trajectory_file(tmp_path, TrajectoryId(5, 0, 1)))


def test_only_a_durable_write_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    rowfiles.write(tmp_path / "1" / "a.arrow", BLOCK, FACTS)
    assert synced == []
    rowfiles.write(tmp_path / "1" / "b.arrow", BLOCK, FACTS, durable=True)
    assert len(synced) == 3  # the file, its folder, the folder of that


def test_recycling_deletes_the_groups_and_no_other(tmp_path: Path) -> None:
    for uid in (1, 2, 3):
        rowfiles.write(rowfiles.trajectory_file(tmp_path, TrajectoryId(uid, 0, 0)), BLOCK, FACTS)
        rowfiles.write(rowfiles.group_file(tmp_path, uid, "grpo", 0), BLOCK, FACTS)
    rowfiles.recycle(tmp_path, [1, 3, 77])
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/*")) == ["2/0.0.arrow", "2/grpo.0.arrow"]


def test_a_sweep_keeps_what_the_ledger_names(tmp_path: Path) -> None:
    for trajectory in (TrajectoryId(1, 0, 0), TrajectoryId(1, 0, 1), TrajectoryId(2, 0, 0)):
        rowfiles.write(rowfiles.trajectory_file(tmp_path, trajectory), BLOCK, FACTS)
    (tmp_path / "1" / "1.0.arrow.17.half").write_bytes(b"AR")
    rowfiles.sweep(tmp_path, [TrajectoryId(1, 0, 1)])
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["1", "1/0.1.arrow"]
