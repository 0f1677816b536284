"""What a person sees of a run: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

COLUMNS = ("step", "reward", "held-out", "s/step", "loss", "entropy", "tok/s", "lag", "in flight", "pool MB", "socket B", "failed")


class PlainScreen:
    """One line a step, flushed at once."""

    def __init__(self, stream: TextIO, steps: int) -> None:
        self.stream, self.steps = stream, steps

    def step(self, line: Mapping[str, Any]) -> None:
        cells = step_cells(line)
        self.note(f"step {line['step']}/{self.steps}  " + "  ".join(f"{name} {cells[name]}" for name in COLUMNS[1:] if cells.get(name)))

    def held_out(self, line: Mapping[str, Any]) -> None:
        self.note(held_out_text(line))

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LiveScreen:
    """The last steps as a table, a bar with the time that is left, and notes above them."""

    def __init__(self, console: Console, steps: int, rows: int = 12) -> None:
        self.rows, self.lines, self.last_held_out = rows, list[dict[str, str]](), ""
        self.progress = Progress(
            TextColumn("steps"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.task = self.progress.add_task("steps", total=steps)
        self.live = Live(console=console, refresh_per_second=4)

    def step(self, line: Mapping[str, Any]) -> None:
        self.lines = [*self.lines, step_cells(line) | {"held-out": self.last_held_out}][-self.rows :]
        self.last_held_out = ""
        self.progress.update(self.task, completed=line["step"])
        self._draw()

    def held_out(self, line: Mapping[str, Any]) -> None:
        self.last_held_out = f"{line.get('reward', float('nan')):.3f}"
        self.live.console.print(held_out_text(line), highlight=False)

    def note(self, text: str) -> None:
        self.live.console.print(text, highlight=False, markup=False)

    def _draw(self) -> None:
        columns = columns_for(self.live.console.width)
        table = Table(expand=True, padding=(0, 0))
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for cells in self.lines:
            table.add_row(*(cells.get(name, "") for name in columns))
        grid = Table.grid(expand=True)
        grid.add_row(table)
        grid.add_row(self.progress)
        self.live.update(grid)

    def __enter__(self) -> LiveScreen:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()


def columns_for(width: int) -> tuple[str, ...]:
    """The first columns that fit into so many characters, ten each."""
    return COLUMNS[: max(4, width // 10)]


def step_cells(line: Mapping[str, Any]) -> dict[str, str]:
    """One step as short texts by column; a column without a value is left out."""
    metrics: Mapping[str, float] = line["metrics"]

    def of(suffix: str) -> str:
        return next((f"{value:.4g}" for name, value in metrics.items() if name.endswith(suffix)), "")

    lag = max((int(gap) for gap in line["staleness"]), default=0)
    return {
        "step": str(line["step"]),
        "reward": "" if line["reward"] is None else f"{line['reward']:.3f}",
        "s/step": f"{line['seconds']:.2f}",
        "tok/s": f"{line['tokens'] / max(line['seconds'], 1e-9):.0f}",
        "loss": of(".train/loss"),
        "entropy": of(".train/entropy"),
        "lag": str(lag),
        "in flight": str(line["queue"]["in_flight"]),
        "pool MB": f"{line['pool_bytes'] / 1e6:.2f}",
        "socket B": str(line["controller_socket_bytes"]),
        "failed": _failures(metrics),
    }


def _failures(metrics: Mapping[str, float]) -> str:
    """Rows whose verifier failed, by reason: they score 0, which is no word on the answer."""
    counts = {name.rpartition("/")[2]: value for name, value in metrics.items() if "failed/" in name}
    return ", ".join(f"{value:.0f} {reason}" for reason, value in counts.items() if value)


def held_out_text(line: Mapping[str, Any]) -> str:
    """One line about a held-out evaluation; the first one says what has to be beaten."""
    text = f"held-out at version {line['version']}: reward {line.get('reward', float('nan')):.3f} on {line.get('prompts', 0):.0f} prompts"
    if line["version"] == 0 and "best_constant" in line:
        text += f"  (best constant answer {line['best_constant']:.3f}, best answer that ignores the operands {line['best_blind']:.3f})"
    return text
