"""What each command does, once its pipeline and its flags are known. Keyword-only parameters are the command's own flags.

run       check, then the loop for real
resume    the same run again, from its newest checkpoint
check     what is wrong with the pipeline, for a person or for machines
explain   where its fields are made, read, sent and freed
graph     the same as a drawing
diff      what changes from one pipeline to another
runs      what has become of the runs in a folder
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter, validators

from .compile.dump import TABLES
from .compile.plan import Plan
from .errors import RlflowError, UsageError
from .flags import Command
from .language import writeonce
from .language.diagnostic import CheckFailed, totals
from .resumed import Resumed, difference, folder_of

if TYPE_CHECKING:
    from .run.record import Options
    from .run.report import View
    from .run.session import Outcome

SWAP = "NAME=module:function, put another operator in place of one of the pipeline; repeatable"
Swap = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, help=SWAP)]
SwapA = Annotated[tuple[str, ...], Parameter(name="--a.swap", negative=(), show_default=False, help=SWAP)]
SwapB = Annotated[tuple[str, ...], Parameter(name="--b.swap", negative=(), show_default=False, help=SWAP)]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="the same as JSON")]
Watermark = Annotated[int, Parameter(help="most trajectories in flight; 0: as many as max_lag lets in, fewer while the trainer is slower")]
AtLeast0 = validators.Number(gte=0)
Queue = Annotated[int, Parameter(validator=AtLeast0, help="batches that may be formed ahead of the one in training")]
Oversample = Annotated[
    int,
    Parameter(validator=AtLeast0, help="prompts sampled beyond those of the batches; when one is ready, so many slow ones are dropped"),
]
PassRate = Annotated[
    tuple[float, float] | None, Parameter(help="LOW HIGH: a prompt that was last right less or more often than that is not sampled again")
]
Root = Annotated[Path, Parameter(help="where the folders of runs are")]
Format = Annotated[Literal["text", "json", "github"], Parameter(help="for a person, for machines (one JSON object), for GitHub Actions")]


def run(
    command: Command,
    parameters: dict[str, Any],
    *,
    swap: Swap = (),
    name: Annotated[str | None, Parameter(help="of the run's folder; default: the pipeline and the time")] = None,
    root: Root = Path("runs"),
    seed: Annotated[int, Parameter(help="of the tiny model, the order of the data and every sample")] = 0,
    steps: Annotated[int, Parameter(help="batches to train, unless the data ends before")] = 100,
    save_every: Annotated[
        int, Parameter(help="steps between two checkpoints; 0: the last step; besides, where half of the rows wait that may wait for one")
    ] = 25,
    keep: Annotated[int, Parameter(help="newest checkpoints that stay; 0: all")] = 0,
    keep_best: Annotated[
        bool, Parameter(negative=(), help="save versions that are evaluated, too; checkpoints/best is the one with the highest score")
    ] = False,
    watermark: Watermark = 0,
    queue: Queue = 0,
    oversample: Oversample = 0,
    epochs: Annotated[int, Parameter(validator=AtLeast0, help="how often the data is gone through; 0: until the steps are done")] = 0,
    remainder: Annotated[
        Literal["short", "drop"], Parameter(help="the last prompts, fewer than a batch: a short one, or dropped")
    ] = "short",
    pass_rate: PassRate = None,
    pool_mb: Annotated[int | None, Parameter(help="most MiB that one process may hold in shared memory")] = None,
    debug: Annotated[bool, Parameter(negative=(), help="compare what operators are given before and after each call")] = False,
) -> int:
    """Check the pipeline, then run it. Ctrl-C finishes the step and saves; a second one stops at once."""
    from .run.record import Options
    from .run.session import run as run_plan

    plan = command.plan(parameters, swap, watermark=watermark, queue=queue, oversample=oversample)
    options = Options(
        name=name, root=root, seed=seed, steps=steps, save_every=save_every, keep=keep, keep_best=keep_best, watermark=watermark,
        queue=queue, oversample=oversample, epochs=epochs, remainder=remainder, pass_rate=pass_rate, pool_mb=pool_mb,
        debug=debug,
    )  # fmt: skip
    _say_replaced(plan)
    told = command.as_told(parameters, swap)
    return _performed(plan, options, lambda screen: run_plan(plan, options, screen, command.modules, told))


def resume(
    command: Resumed,
    parameters: dict[str, Any],
    *,
    root: Root = Path("runs"),
    accept: Annotated[bool, Parameter(negative=(), help="go on with the pipeline as it is now, although it has changed")] = False,
    swap: Swap = (),
    steps: Annotated[int | None, Parameter(help="batches to train in all; default: as before")] = None,
    save_every: Annotated[int | None, Parameter(help="steps between two checkpoints; default: as before")] = None,
    keep: Annotated[int | None, Parameter(help="newest checkpoints that stay; default: as before")] = None,
    keep_best: Annotated[bool | None, Parameter(help="save versions that are evaluated, too; default: as before")] = None,
    watermark: Annotated[int | None, Parameter(help="most trajectories in flight; default: as before")] = None,
    queue: Annotated[int | None, Parameter(help="batches formed ahead of the one in training; default: as before")] = None,
    oversample: Annotated[int | None, Parameter(help="prompts sampled beyond those of the batches; default: as before")] = None,
    epochs: Annotated[int | None, Parameter(help="how often the data is gone through; default: as before")] = None,
    remainder: Annotated[
        Literal["short", "drop"] | None, Parameter(help="the last prompts, fewer than a batch; default: as before")
    ] = None,
    pass_rate: PassRate = None,
    pool_mb: Annotated[int | None, Parameter(help="most MiB that one process may hold in shared memory; default: as before")] = None,
    debug: Annotated[bool | None, Parameter(help="compare what operators are given before and after each call; default: as before")] = None,
) -> int:
    """Go on with a run from its newest checkpoint, whatever ended it. Its flags are as before, but for those that are given now.

    The pipeline is traced again. What has changed in its file since is shown, and refused without --accept (exit code 3); what flags
    change now is shown, and meant. Relative paths are those of the folder that the run was started in.
    """
    from .run.session import resume as resume_run

    given: dict[str, Any] = {
        "steps": steps, "save_every": save_every, "keep": keep, "keep_best": keep_best, "watermark": watermark, "queue": queue,
        "oversample": oversample, "epochs": epochs, "remainder": remainder, "pass_rate": pass_rate, "pool_mb": pool_mb,
        "debug": debug,
    }  # fmt: skip
    options = dataclasses.replace(command.record.run, **{name: value for name, value in given.items() if value is not None})
    if (nothing_left := command.nothing_left(options)) is not None:
        print(nothing_left)
        return 0
    if (changed := command.changed_since()) and not accept:
        print(f"{changed}\n\n{command.way_to_accept}", file=sys.stderr)
        return 3
    plan, told = command.plan_now(parameters, swap, options)
    command.refuse_other_group_size(plan, parameters)
    for changed_body in command.changed_operators(plan):
        print(f"rlflow: {changed_body}", file=sys.stderr)
    if meant := difference(command.plan_before, plan, (command.run_name, "now")):
        print(meant, end="\n\n", flush=True)
    return _performed(
        plan,
        options,
        lambda screen: resume_run(plan, options, screen, command.folder, command.modules, told),
        command.run_name,
    )


def _performed(plan: Plan, options: Options, job: Callable[[View], Outcome], run_name: str | None = None) -> int:
    """A run with its screen, to its end, and what is said about that. run_name: as a person names it; default: its path from here."""
    from rich.console import Console

    from .run.screen import LiveScreen, PlainScreen

    if options.debug:
        os.environ[writeonce.VARIABLE] = "1"  # operators run in processes that inherit it
    for warning in plan.warnings:
        print(warning, file=sys.stderr)
    screen = LiveScreen(Console(), options.steps) if sys.stdout.isatty() else PlainScreen(sys.stdout, options.steps)
    try:
        with screen:
            outcome = job(screen)
    except OSError as error:
        raise RlflowError(f"the run ended: {error}") from error
    if outcome.ended == "failed":
        way_on = how_to_go_on(outcome.run_dir, outcome.checkpoint, run_name or os.path.relpath(outcome.run_dir))
        print(f"rlflow: the run failed: {outcome.why}\n{way_on}", file=sys.stderr)
        return 1
    reward = ", ".join(f"{value:.3f}" for value in outcome.reward.values())
    print(f"{outcome.ended}: {outcome.why}" + (f"; last held-out reward {reward}" if reward else ""))
    print(f"metrics {outcome.run_dir / 'metrics.jsonl'}" + (f"; checkpoint {outcome.checkpoint}" if outcome.checkpoint else ""))
    if outcome.best:
        print(f"the best one by its held-out reward: {outcome.best}")
    return 0


def how_to_go_on(run_dir: Path, checkpoint: Path | None, run_name: str) -> str:
    """What a person can do after a failed run. checkpoint: what a resume begins at."""
    if checkpoint and not checkpoint.is_dir():
        return f"a resume begins at {checkpoint} and no older one: put it back, or start another run with the weights of one that is there"
    where = f"from {checkpoint.name}" if checkpoint else "from its start, as no checkpoint was written"
    return f"what was printed: {run_dir / 'logs'}\nto go on {where}:\n  rlflow resume {shlex.quote(run_name)}"


def check(
    command: Command,
    parameters: dict[str, Any],
    *,
    swap: Swap = (),
    watermark: Watermark = 0,
    queue: Queue = 0,
    oversample: Oversample = 0,
    format: Format = "text",
    dump: Annotated[str | None, Parameter(help=f"print what one pass found out: {', '.join(TABLES)}")] = None,
) -> int:
    """Check the pipeline and say what is wrong with it; exit code 3 when it is refused. Starts nothing, and needs no torch."""
    if dump is not None and format != "text":
        raise UsageError(f"--dump {dump} is text for a person: leave out --format {format}")
    try:
        plan = command.plan(parameters, swap, watermark=watermark, queue=queue, oversample=oversample)
    except CheckFailed as refused:
        return say_refused(command.name, refused, format)
    _say_replaced(plan)
    if format != "text":
        _for_machines(command.name, CheckFailed(list(plan.warnings), plan.suppressed, plan.timings_ms), format)
        return 0
    if dump is not None:
        print(plan.dump(dump), end="\n\n")
    for warning in plan.warnings:
        print(warning, end="\n\n")
    calls, feedbacks = sum(not node.is_record for node in plan.graph.nodes), len(plan.graph.feedbacks)
    said = ", ".join(part for part in ("no error", totals(plan.warnings, plan.suppressed)) if part)
    took = sum(plan.timings_ms.values())
    print(f"{command.name}: {calls} operators, {feedbacks} feedback{'s' * (feedbacks != 1)}, {said} ({took:.1f} ms)")
    return 0


def _say_replaced(plan: Plan) -> None:
    """What each replacement was bound to, to standard error."""
    for one in plan.graph.replaced:
        bound = [f"{', '.join(one.given)} from the call"] if one.given else []
        for parameter, field in one.upstream.items():
            writer = plan.graph.writer(field)
            bound.append(f"{parameter} from `{writer.name}` ({os.path.basename(writer.at.file)}:{writer.at.line})")
        print(f"rlflow: `{one.by}` in place of `{one.call}`: {'; '.join(bound)}", file=sys.stderr)


def say_refused(pipeline: str, refused: CheckFailed, format: str) -> int:
    """All that is wrong, to standard error for a person, to standard output for machines; exit code 3."""
    if format == "text":
        print(refused, file=sys.stderr)
    else:
        _for_machines(pipeline, refused, format)
    return 3


def _for_machines(pipeline: str, found: CheckFailed, format: str) -> None:
    from .show.report import github, report

    if format == "json":
        said = report(pipeline, found.diagnostics, found.suppressed, found.timings_ms)
        print(json.dumps(msgspec.to_builtins(said), indent=2))
    elif found.diagnostics:
        print(github(found.diagnostics, os.getcwd()))


def explain(
    command: Command,
    parameters: dict[str, Any],
    *,
    swap: Swap = (),
    watermark: Watermark = 0,
    queue: Queue = 0,
    oversample: Oversample = 0,
    sizes: Annotated[str, Parameter(help="LETTER=NUMBER,...: peak bytes for these, as in S=1024,Q=128,text=200")] = "",
    json_: Json = False,
) -> int:
    """Say what a pipeline is made of, or what a code such as RLF202 means (rlflow explain RLF202).

    Of each field: writer, readers, dtype, shape, role, version, where it dies; then what crosses to another process, what is dropped and
    why, and the most bytes that each process holds.
    """
    from .show.explain import explain, explain_json

    given = sizes_of(sizes) if sizes else None
    plan = command.plan(parameters, swap, watermark=watermark, queue=queue, oversample=oversample)
    print(json.dumps(explain_json(plan, given), indent=2) if json_ else explain(plan, given))
    return 0


def sizes_of(text: str) -> dict[str, int]:
    """`S=1024,Q=128` as numbers. Raises UsageError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        letter, sign, size = (piece.strip() for piece in part.partition("="))
        if not sign or not letter or not size.isdecimal():
            raise UsageError(f"--sizes {text}: {part!r} is no LETTER=NUMBER, as in S=1024,Q=128,text=200")
        found[letter] = int(size)
    return found


def graph(
    command: Command,
    parameters: dict[str, Any],
    *,
    swap: Swap = (),
    mermaid: Annotated[bool, Parameter(negative=(), help="as a mermaid flowchart")] = False,
) -> int:
    """Draw the pipeline: processes, calls, the fields between them with their bytes, the feedbacks that close the ring."""
    from .show.mermaid import mermaid as drawn

    if not mermaid:
        raise UsageError(f"say how to draw it: rlflow graph {command.file} --mermaid")
    print(drawn(command.plan(parameters, swap)))
    return 0


def diff(
    a: Command,
    given_a: dict[str, Any],
    b: Command,
    given_b: dict[str, Any],
    *,
    swap_a: SwapA = (),
    swap_b: SwapB = (),
    json_: Json = False,
) -> int:
    """Say what changes from pipeline A to pipeline B: parameters, workers, operators, fields, hops and their bytes, feedbacks.

    Their parameters are flags: --a.kl 0 --b.kl 0.1. A and B may be one file. The exit code is 0 whether or not they differ.
    """
    from .show.diff import as_text
    from .show.diff import diff as compare

    plans = a.plan(given_a, swap_a), b.plan(given_b, swap_b)
    found = compare(*plans, names=(a.told(given_a, swap_a), b.told(given_b, swap_b)))
    print(json.dumps(msgspec.to_builtins(found), indent=2) if json_ else as_text(found))
    return 0


def runs(
    *,
    root: Root = Path("runs"),
    format: Annotated[Literal["text", "json"], Parameter(help="for a person, for machines (a list of objects)")] = "text",
) -> int:
    """List the runs in a folder: running, done, stopped, failed or killed, how far they came, and where `rlflow resume` would go on."""
    from .run.runs import as_table, runs_in

    found = runs_in(root, time.time())
    if format == "json":
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        print(as_table(found) if found else f"no run in {root}")
    return 0


def audit(run: Annotated[str, Parameter(help="the run's folder, or its name in --root")], /, *, root: Root = Path("runs")) -> int:
    """Check that a run lost, doubled and skipped nothing: every prompt trained once, dropped with a reason, or live (1: not so)."""
    from .run.audit import audit as audited
    from .run.ledger.store import FILE as LEDGER
    from .run.record import FILE

    folder = folder_of(run, root)
    if not any((folder / name).is_file() for name in (FILE, LEDGER)):
        raise UsageError(f"{folder} is not the folder of a run: it has neither {FILE} nor {LEDGER}")
    found = audited(folder)
    print(found.says())
    return 1 if found.faults else 0


COMMANDS: dict[str, Callable[..., int]] = {"run": run, "resume": resume, "check": check, "explain": explain, "graph": graph, "diff": diff}
