"""What operators were made of: the graph of a pipeline shows their signatures, and not what their bodies say."""

from __future__ import annotations

import hashlib
import inspect
from functools import lru_cache
from pathlib import Path

from ..compile.ir import Graph
from ..language.config import resolve

__all__ = ["digests"]


def digests(graph: Graph) -> dict[str, str]:
    """Every operator and loss of the graph, as `module:name`, with a digest of the file that holds it, if there is one."""
    refs = [node.operator for node in graph.nodes if node.operator is not None] + [loss.ref for node in graph.nodes for loss in node.losses]
    found = {ref: inspect.getsourcefile(inspect.unwrap(resolve(ref))) for ref in sorted(set(refs))}
    return {ref: _digest(file) for ref, file in found.items() if file is not None and Path(file).is_file()}


@lru_cache(maxsize=256)
def _digest(file: str) -> str:
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
