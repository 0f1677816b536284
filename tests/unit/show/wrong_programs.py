"""Pipeline files with mistakes at known places, written where a test wants them."""

from __future__ import annotations

from pathlib import Path

HEAD = """from operators.batching import dispatch
from operators.dataset import dataset
from rlflow import pipeline


@pipeline
def wrong(n: int = 0) -> None:
"""
WIDE = HEAD + '    "é漢"; dispatch(dataset("é漢.parquet", tokenizer="tiny"), n=n)\n'  # line 8
SPREAD = (
    HEAD
    + """    dispatch(
        dataset("x.parquet", tokenizer="tiny"),
    )
    dispatch(dataset("x.parquet", tokenizer="tiny"), n=n)
"""
)


def written(folder: Path, name: str, text: str) -> str:
    """The path of a new file."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return str(path)
