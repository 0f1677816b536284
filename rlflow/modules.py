"""From a file or a name to Python: the same modules in the controller and in every worker process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from .compile import ir
from .errors import RlflowError, UsageError
from .language.config import from_config, resolve
from .language.worker import Worker


def load_file(path: Path) -> tuple[ModuleType, tuple[tuple[str, str], ...]]:
    """Import a pipeline file. Returns the module and the (name, path) pairs that a worker process has to import.

    A file inside an importable package keeps its package name (`pipelines/grpo.py` is `pipelines.grpo`), so that what other
    modules import from it is the same class; any other file is a module under its own name. Raises UsageError where there is no such file,
    where its name is taken, and for what it raises.
    """
    path = path.resolve()
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    name = _module_name(path)
    return import_user_modules(((name, str(path)),))[0], ((name, str(path)),)


def dotted(path: Path) -> str:
    """The name under which a file is imported: that of its package, or its own."""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _module_name(path: Path) -> str:
    name = dotted(path)
    if "." not in name and (name in sys.stdlib_module_names or (name not in sys.modules and not _is_free(name, path))):
        raise UsageError(f"{path} would hide the module `{name}`: rename the file")
    return name


def _is_free(name: str, path: Path) -> bool:
    """Whether `import name` finds nothing, this very file, or one of the current folder: no library, so nothing else imports it."""
    found = importlib.util.find_spec(name)
    return found is None or (found.origin is not None and Path(found.origin).resolve() in (path, Path.cwd() / f"{name}.py"))


def import_user_modules(modules: Iterable[tuple[str, str]]) -> list[ModuleType]:
    """Import each (name, path), from its path, under its name; files beside it can be imported too."""
    return [_import(name, Path(path)) for name, path in modules]


def _import(name: str, path: Path) -> ModuleType:
    found = sys.modules.get(name)
    if found is not None and Path(found.__file__ or "").resolve() == path:
        return found
    root = path.parents[name.count(".")]
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    with users_code(str(path)):
        module = importlib.import_module(name)
    if Path(module.__file__ or "").resolve() != path:
        raise UsageError(f"module `{name}` is {module.__file__}, not {path}: another package of that name comes first")
    return module


@contextmanager
def set_aside(modules: Iterable[tuple[str, str]], other: Path) -> Iterator[None]:
    """While `other` is imported under the name of one of these modules: as if it, and what lies beside it, had never been imported."""
    other, roots = other.resolve(), list[str]()
    for name, path in modules:
        if other != Path(path) and other.is_file() and dotted(other) == name:
            roots.append(str(Path(path).parents[name.count(".")]))
            _forget(Path(roots[-1]))
    there = [root for root in roots if root in sys.path]
    for root in there:
        sys.path.remove(root)
    try:
        yield
    finally:
        sys.path += there


def _forget(root: Path) -> None:
    """Modules in Python that were imported from a folder; ours and installed ones stay."""
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        stays = name.partition(".")[0] == __package__ or "site-packages" in file.parts
        if root in file.parents and file.suffix == ".py" and not stays:
            del sys.modules[name]


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """What a user's file raises becomes a UsageError with the frames of files that are not ours."""
    try:
        yield
    except RlflowError:
        raise
    except (Exception, SystemExit) as error:
        ours = (str(Path(__file__).parent), importlib.__file__.rpartition("/")[0], "<frozen")
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
        said = "".join(traceback.format_list(frames) + traceback.format_exception_only(error)).rstrip()
        raise UsageError(f"{where} raised {type(error).__name__}\n{said}") from error


def make_worker(worker: ir.Worker) -> Worker:
    """The worker object that the pipeline made, again, in this process."""
    options = {name: from_config(value, {}) for name, value in worker.options.items()}
    made: Any = resolve(worker.ref)(**options)
    assert isinstance(made, Worker)
    return made
