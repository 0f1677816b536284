"""rlflow run | check | explain: the parameters of a pipeline are flags, made from its signature.

    rlflow run pipelines/grpo.py --prompts 32 --steps 50
    rlflow check pipelines/grpo.py --swap grpo=operators.advantage:gae
    rlflow explain pipelines/grpo.py        rlflow explain RLF202

Exit codes: 0 fine, 1 the run failed, 2 a wrong command line, 3 the check refused the pipeline.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from .commands import COMMANDS, Format, say_refused
from .errors import RlflowError, UsageError
from .flags import command_of
from .language.diagnostic import CheckFailed

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
    """A command with a pipeline file gets the flags of that pipeline; anything else is help, or a mistake."""
    if len(argv) > 1 and argv[0] in COMMANDS and not argv[1].startswith("-"):
        if argv[0] == "explain" and CODE.fullmatch(argv[1]):
            return _explain_code(argv[1].upper(), argv[2:])
        return _with_pipeline(argv[0], argv[1], argv[2:])
    return _call(app, argv)


def _with_pipeline(name: str, file: str, flags: list[str]) -> int:
    try:
        command = command_of(file)
    except CheckFailed as refused:  # a declaration: raised while the file is imported, so its flags are not known
        if name != "check":
            raise
        return say_refused(file.partition(":")[2] or Path(file).stem, refused, _format_in(flags))
    one = _app(f"rlflow {name} {file}", COMMANDS[name].__doc__ or "", command.with_flags(COMMANDS[name]))
    return _call(one, flags)


def _app(name: str, about: str, body: Callable[..., object]) -> App:
    one = App(name=name, help=about, help_format="plaintext", version_flags=[], suppress_keyboard_interrupt=False)
    one.default(body)
    return one


def _call(one: App, argv: list[str]) -> int:
    return int(one(argv, exit_on_error=False, print_error=False, result_action="return_value") or 0)


def _format_in(flags: list[str]) -> str:
    """`--format` among flags that are not all known."""

    def only(*, format: Format = "text") -> None: ...

    bound: inspect.BoundArguments = _app("rlflow check", "", only).parse_known_args(flags)[1]
    return str(bound.arguments.get("format", "text"))


def _explain_code(code: str, flags: list[str]) -> int:
    from .show.codes import explain_code

    if flags:
        raise UsageError(f"`rlflow explain {code}` takes no flags, got {' '.join(flags)}")
    print(explain_code(code))
    return 0


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
