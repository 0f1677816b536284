"""What a run was told and how it ended: parameters.json, all that is needed to trace its pipeline again, and ended.json.

    rlflow run FILE --flags ──▶ Record ──write──▶ parameters.json ──read──▶ rlflow resume RUN: the same file, flags and options

Flags are kept as they stand on a command line, so that they are read again by what read them first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..compile.plan import Plan
from ..errors import UsageError

FILE = "parameters.json"
PLAN = "plan.json"
ENDED = "ended.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of a run, not of its pipeline.

    name: of its folder under `root`, default PIPELINE-TIME. seed: of the tiny model, the order of the data and every sample.
    steps: batches to train; the data is gone through again, in another order, when it ends.
    save_every: a checkpoint every so many steps, 0 = only the last; one more wherever 500,000 rows have piled up since the one before.
    keep: so many of the newest ones stay, 0 = all.
    keep_best: versions that are evaluated are saved too, and the one with the highest score stays.
    watermark: most trajectories in flight, 0 = as many as the staleness bound lets in, fewer while the trainer is slower.
    queue: batches formed ahead of the one in training. oversample: prompts sampled beyond the seats of batches; the excess is dropped.
    epochs: how often the data is gone through, 0 = until the steps are done. remainder: what becomes of the last prompts, fewer than a
    batch. pass_rate: prompts whose answers were right less or more often than this, when they were last judged, are not sampled again.
    pool_mb: capacity of a process's lane in the pool. debug: what operators are given is compared before and after each call.
    """

    name: str | None = None
    root: Path = Path("runs")
    seed: int = 0
    steps: int = 100
    save_every: int = 25
    keep: int = 0
    keep_best: bool = False
    watermark: int = 0
    queue: int = 0
    oversample: int = 0
    epochs: int = 0
    remainder: Literal["short", "drop"] = "short"
    pass_rate: tuple[float, float] | None = None
    pool_mb: int | None = None
    debug: bool = False


@dataclass(frozen=True, kw_only=True)
class Told:
    """The pipeline's part of the command. flags, swap: as given; relative paths and modules in them are those of `cwd`."""

    cwd: str
    file: str  # absolute
    pipeline: str
    flags: tuple[str, ...] = ()
    swap: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Record:
    """parameters.json. pipeline: every parameter as resolved. told: None for a run that no command started.

    operators: each that is called, by the digest of the file that holds it.
    """

    pipeline: dict[str, Any]
    run: Options
    told: Told | None = None
    modules: tuple[tuple[str, str], ...] = ()
    operators: dict[str, str] = field(default_factory=dict[str, str])
    rlflow: str = field(default_factory=lambda: metadata.version("rlflow"))

    @staticmethod
    def read(folder: Path) -> Record:
        """Of a run's folder. Raises UsageError where there is none, or it is not one of ours."""
        path = folder / FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record, dec_hook=_decoded)
        except OSError:
            raise UsageError(f"{folder} is not the folder of a run: it has no readable {FILE}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not what a run writes: {error}") from error


def plan_file(folder: Path, timeline: int) -> Path:
    """Where the plan of a timeline lies, the newest that the ledger knows: a later one may have been killed before it began."""
    before = folder / f"plan-before-{timeline + 1}.json"
    return before if before.exists() else folder / PLAN


def plan_of(file: Path) -> Plan:
    """What a run ran. Raises UsageError where that cannot be read."""
    try:
        return Plan.from_json(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def replace_plan(folder: Path, timeline: int, plan: bytes) -> None:
    """Keep the plan of the timelines up to this one, where the next one has another: plan.json is then to be written."""
    old = plan_file(folder, timeline)
    if old.name == PLAN and old.read_bytes() != plan:
        old.rename(folder / f"plan-before-{timeline + 1}.json")


class Ended(msgspec.Struct, frozen=True):
    """ended.json: how the run ended."""

    ended: Literal["done", "stopped", "failed"]
    why: str

    @staticmethod
    def read(folder: Path) -> Ended | None:
        """None: it runs, or it was killed. Raises UsageError for a file that is not one of ours."""
        try:
            return msgspec.json.decode((folder / ENDED).read_bytes(), type=Ended)
        except OSError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{folder / ENDED} is not what a run writes: {error}. It only says how the run ended: delete it") from error


def _decoded(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)
