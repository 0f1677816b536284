"""Devices: accelerators that workers share by naming them.

gpus = Devices("gpus", count=8)
Megatron("actor", dp=4, tp=2, on=gpus)  ┐ colocated: one is awake at a time
SGLang("engine", dp=8, on=gpus)         ┘
Torch("critic")                           without `on`: processes of its own, on CPU
"""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass

from . import trace


@dataclass(frozen=True, eq=False)
class Devices:
    """`count` accelerators under one name, made in a pipeline. Workers that name the same ones share them in time."""

    name: str
    _: KW_ONLY
    count: int

    def __post_init__(self) -> None:
        if (current := trace.current()) is not None:
            current.add_devices(self, current.caller(sys._getframe(2))[0])  # behind the __init__ that dataclass made
