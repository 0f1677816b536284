"""rlflow run | resume | runs | audit | check | explain | graph | diff: the parameters of a pipeline are flags, made from its signature.

For example:
    rlflow run pipelines/grpo.py --prompts 32 --steps 50
    rlflow runs                             rlflow resume runs/NAME --steps 100
    rlflow audit NAME [--root runs]         that nothing was lost, doubled or skipped in it
    rlflow check pipelines/grpo.py --swap grpo=operators.advantage:gae
    rlflow explain pipelines/grpo.py        rlflow explain RLF202
    rlflow graph pipelines/grpo.py --mermaid
    rlflow diff pipelines/grpo.py pipelines/grpo.py --a.kl 0 --b.kl 0.1

A file that holds several pipelines is told FILE.py:NAME.
Exit codes: 0 fine, 1 the run failed, 2 a wrong command line, 3 the check refused the pipeline, or a resume did one that has changed.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from .commands import COMMANDS, Format, Root, audit, diff, resume, runs, say_refused
from .errors import RlflowError, UsageError
from .flags import app_of, command_of, commands_of, invoke, options_of, with_flags
from .language.diagnostic import CheckFailed
from .resumed import pipeline_of

FILES = {"diff": ("A.py", "B.py"), "resume": ("RUN",)}  # what a command begins with, unless that is FILE.py
CODE = re.compile(r"RLF\d+", re.IGNORECASE)
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
    except BrokenPipeError:  # `rlflow explain ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 1


def _dispatch(argv: list[str]) -> int:
    """A command with a pipeline file, or the run of one, gets the flags of that pipeline; anything else is help, or a mistake."""
    if len(argv) > 1 and argv[0] in COMMANDS and not argv[1].startswith("-"):
        if argv[0] == "explain" and CODE.fullmatch(argv[1]):
            return _explain_code(argv[1].upper(), argv[2:])
        if argv[0] == "diff":
            return _with_two(argv[1:])
        if argv[0] == "resume":
            return _with_run(argv[1], argv[2:])
        return _with_pipeline(argv[0], argv[1], argv[2:])
    return invoke(app, argv)


def _with_pipeline(name: str, file: str, flags: list[str]) -> int:
    try:
        command = command_of(file)
    except CheckFailed as refused:  # a declaration: raised while the file is imported, so its flags are not known
        if name != "check":
            raise
        return say_refused(file.partition(":")[2] or Path(file).stem, refused, _format_in(flags))
    reserved = [option.name for option in options_of(resume)] if name == "run" else []  # a run that starts can be resumed
    one = app_of(f"rlflow {name} {file}", COMMANDS[name].__doc__ or "", with_flags(COMMANDS[name], {"": command}, reserved))
    return invoke(one, flags)


def _with_run(run: str, flags: list[str]) -> int:
    with pipeline_of(run, _root_in(flags), flags) as command:
        return invoke(app_of(f"rlflow resume {run}", resume.__doc__ or "", with_flags(resume, {"": command})), flags)


def _with_two(argv: list[str]) -> int:
    if len(argv) < 2 or argv[1].startswith("-"):
        raise UsageError("say first which two pipelines: rlflow diff A.py B.py [--a.PARAM VALUE] [--b.PARAM VALUE]")
    a, b = commands_of(argv[0], argv[1])
    one = app_of(f"rlflow diff {argv[0]} {argv[1]}", diff.__doc__ or "", with_flags(diff, {"a": a, "b": b}))
    return invoke(one, argv[2:])


def _format_in(flags: list[str]) -> str:
    """`--format` among flags that are not all known."""

    def only(*, format: Format = "text") -> None: ...

    return str(_known(only, flags).get("format", "text"))


def _root_in(flags: list[str]) -> Path:
    """`--root`, likewise: it says where the run is whose pipeline has the other flags."""

    def only(*, root: Root = Path("runs")) -> None: ...

    return Path(_known(only, flags).get("root", "runs"))


def _known(only: Callable[..., None], flags: list[str]) -> dict[str, Any]:
    """The arguments of a function among flags that are not all its own."""
    bound: inspect.BoundArguments = app_of("rlflow", "", only).parse_known_args(flags)[1]
    return bound.arguments


def _explain_code(code: str, flags: list[str]) -> int:
    from .show.codes import explain_code

    if flags:
        raise UsageError(f"`rlflow explain {code}` takes no flags, got {' '.join(flags)}")
    print(explain_code(code))
    return 0


def _without_file(name: str, body: Callable[..., int]) -> Callable[..., None]:
    """What a command is where no pipeline is named yet: its help, and what is wrong with the command line."""
    files = FILES.get(name, ("FILE.py",))
    what = "run" if name == "resume" else "pipeline"

    def call(*_: object, **__: object) -> None:
        raise UsageError(f"say first which {what}: rlflow {name} {' '.join(files)} [flags]")

    about = "{}, or {}:NAME where a file has several pipelines" if what == "pipeline" else "the run's folder, or its name in --root"
    about += f"; its parameters are flags too: rlflow {name} {' '.join(files)} --help"
    described = [Annotated[str, Parameter(help=about.format(file, file), show_default=False)] for file in files]
    positional = [
        inspect.Parameter(file.partition(".")[0].lower(), inspect.Parameter.POSITIONAL_ONLY, annotation=annotation, default="")
        for file, annotation in zip(files, described, strict=True)
    ]
    parameters = [*positional, *options_of(body)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    call.__doc__ = body.__doc__
    return call


for _name, _body in COMMANDS.items():
    _files = " ".join(file + "[:NAME]" * file.endswith(".py") for file in FILES.get(_name, ("FILE.py",)))
    app.command(_without_file(_name, _body), name=_name, usage=f"Usage: rlflow {_name} {_files} [--PARAM VALUE ...] [OPTIONS]")
app.command(runs, name="runs")
app.command(audit, name="audit")


if __name__ == "__main__":
    sys.exit(main())
