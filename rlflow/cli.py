"""rlflow run | check | explain: the parameters of a pipeline are flags, made from its signature.

    rlflow run pipelines/grpo.py --prompts 32 --steps 50
    rlflow check pipelines/grpo.py --swap grpo=operators.advantage:gae
    rlflow explain pipelines/grpo.py        rlflow explain RLF202

Exit codes: 0 fine, 1 the run failed, 2 a wrong command line, 3 the check refused the pipeline.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from .commands import Command, command_of
from .errors import RlflowError, UsageError
from .language.diagnostic import CheckFailed

CODE = re.compile(r"RLF\d+", re.IGNORECASE)
Swap = Annotated[
    tuple[str, ...], Parameter(negative=(), help="NAME=module:function, put another operator in place of one of the pipeline; repeatable")
]

app = App(
    name="rlflow",
    help=__doc__ or "",
    version=lambda: metadata.version("rlflow"),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # `--swap grpo=my_file:my_estimator`; last, so that it hides nothing
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except CheckFailed as refused:
        print(refused, file=sys.stderr)
        return 3
    except (UsageError, CycloptsError) as error:
        print(f"rlflow: {error}", file=sys.stderr)
        return 2
    except RlflowError as error:
        print(f"rlflow: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


def _dispatch(argv: list[str]) -> int:
    """A command with a pipeline file gets the flags of that pipeline; anything else is help, or a mistake."""
    if len(argv) > 1 and argv[0] in COMMANDS and not argv[1].startswith("-"):
        if argv[0] == "explain" and CODE.fullmatch(argv[1]):
            if argv[2:]:
                raise UsageError(f"`rlflow explain {argv[1]}` takes no flags, got {' '.join(argv[2:])}")
            return _explain_code(argv[1].upper())
        command = command_of(argv[1])
        one = App(
            name=f"rlflow {argv[0]} {argv[1]}",
            help=COMMANDS[argv[0]].__doc__ or "",
            help_format="plaintext",
            version_flags=[],
            suppress_keyboard_interrupt=False,
        )
        one.default(command.with_flags(COMMANDS[argv[0]]))
        result = one(argv[2:], exit_on_error=False, print_error=False, result_action="return_value")
    else:
        result = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
    return int(result or 0)


def _run(
    command: Command,
    parameters: dict[str, Any],
    *,
    swap: Swap = (),
    name: Annotated[str | None, Parameter(help="of the run's folder; default: the pipeline and the time")] = None,
    root: Annotated[Path, Parameter(help="where the folders of runs are")] = Path("runs"),
    seed: Annotated[int, Parameter(help="of the tiny model, the order of the data and every sample")] = 0,
    steps: Annotated[int, Parameter(help="batches to train; the data is gone through again when it ends")] = 100,
    save_every: Annotated[int, Parameter(help="steps between two checkpoints; 0: only the last step")] = 25,
    watermark: Annotated[int, Parameter(help="trajectories in flight; 0: as many as max_lag lets in")] = 0,
    pool_mb: Annotated[int | None, Parameter(help="most MiB that one process may hold in shared memory")] = None,
) -> int:
    """Check the pipeline, then run it. Ctrl-C finishes the step and saves; a second one stops at once."""
    from rich.console import Console

    from .run.screen import LiveScreen, PlainScreen
    from .run.session import Options, run

    plan = command.plan(parameters, swap)
    options = Options(name=name, root=root, seed=seed, steps=steps, save_every=save_every, watermark=watermark, pool_mb=pool_mb)
    screen = LiveScreen(Console(), steps) if sys.stdout.isatty() else PlainScreen(sys.stdout, steps)
    for warning in plan.warnings:
        print(warning, file=sys.stderr)
    try:
        with screen:
            outcome = run(plan, options, screen, command.modules)
    except OSError as error:
        raise RlflowError(f"the run ended: {error}") from error
    if outcome.ended == "failed":
        way_on = command.how_to_go_on(plan, parameters, swap, outcome.run_dir, outcome.checkpoint)
        print(f"rlflow: the run failed: {outcome.why}\n{way_on}", file=sys.stderr)
        return 1
    reward = ", ".join(f"{value:.3f}" for value in outcome.reward.values())
    print(f"{outcome.ended}: {outcome.why}" + (f"; held-out reward {reward}" if reward else ""))
    print(f"metrics {outcome.run_dir / 'metrics.jsonl'}" + (f"; checkpoint {outcome.checkpoint}" if outcome.checkpoint else ""))
    return 0


def _check(command: Command, parameters: dict[str, Any], *, swap: Swap = ()) -> int:
    """Check the pipeline and say what is wrong with it. Starts nothing, and needs no torch."""
    plan = command.plan(parameters, swap)
    for warning in plan.warnings:
        print(warning)
    calls = sum(not node.is_record for node in plan.graph.nodes)
    print(f"{plan.graph.name}: {calls} operators, {len(plan.graph.feedbacks)} feedback, no error ({sum(plan.timings_ms.values()):.1f} ms)")
    return 0


def _explain(
    command: Command,
    parameters: dict[str, Any],
    *,
    swap: Swap = (),
    json_: Annotated[bool, Parameter(name="--json", help="the same as JSON")] = False,
) -> int:
    """Print the field map of a pipeline, or with a code such as RLF202 what it means.

    The map says of each field: writer, readers, dtype, shape, where it dies, and what crosses to another process.
    """
    from .show.explain import explain, explain_json

    plan = command.plan(parameters, swap)
    print(json.dumps(explain_json(plan), indent=2) if json_ else explain(plan))
    return 0


def _explain_code(code: str) -> int:
    from .show.codes import explain_code

    print(explain_code(code))
    return 0


COMMANDS: dict[str, Callable[..., int]] = {"run": _run, "check": _check, "explain": _explain}


def _without_file(name: str, body: Callable[..., int]) -> Callable[..., None]:
    """What a command is where no pipeline is named yet: its help, and what is wrong with the command line."""

    def call(*_: object, **__: object) -> None:
        raise UsageError(f"say first which pipeline: rlflow {name} FILE.py [flags]")

    hints = typing.get_type_hints(body, include_extras=True)
    options = [p.replace(annotation=hints[n]) for n, p in inspect.signature(body).parameters.items() if p.kind is p.KEYWORD_ONLY]
    about = (
        "FILE.py, or FILE.py:NAME where a file has several pipelines; its own parameters are flags too: rlflow " + name + " FILE.py --help"
    )
    pipeline = Annotated[str, Parameter(help=about, show_default=False)]
    file = inspect.Parameter("pipeline", inspect.Parameter.POSITIONAL_ONLY, annotation=pipeline, default="")
    call.__signature__ = inspect.Signature([file, *options])  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in (file, *options)}
    call.__doc__ = body.__doc__
    return call


for _name, _body in COMMANDS.items():
    app.command(_without_file(_name, _body), name=_name)


if __name__ == "__main__":
    sys.exit(main())
