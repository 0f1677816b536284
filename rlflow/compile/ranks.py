"""Ranks to devices: dp × tp × pp × cp × replicas of them, rank r on the r-th device.

Devices("gpus", count=8)    dp=2 × tp=4 = 8   on 0-7        dp=1 × tp=4 = 4   on 0-3, and 4-7 are idle
                            dp=3 × tp=2 = 6   refused: 6 does not divide 8          dp=4 × tp=4 = 16   refused: does not fit
"""

from __future__ import annotations

from ..language.diagnostic import Diagnostic, Label
from .facts import Facts
from .ir import Devices, Graph, Worker

AXES = ("dp", "tp", "pp", "cp")


def ranks(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """Fills ranks."""
    found: list[Diagnostic] = []
    for worker in graph.workers:
        devices = None if worker.devices is None else graph.devices[worker.devices]
        if devices is None or not devices.count:
            continue
        if devices.count % worker.world_size:
            found.append(_refused(worker, devices))
        else:
            facts.ranks[worker.id] = tuple(range(worker.world_size))
    return found


def _refused(worker: Worker, devices: Devices) -> Diagnostic:
    sizes = {axis: getattr(worker, f"{axis}_size") for axis in AXES} | {"replicas": worker.replicas}
    product = " × ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1 or axis == _free(worker))
    fits, spare = worker.world_size <= devices.count, devices.count % worker.world_size
    return Diagnostic(
        code="RLF401",
        message=f"{worker.world_size} ranks of `{worker.name}` do not {'divide' if fits else 'fit on'} the {devices.count} devices of "
        f"`{devices.name}`",
        where=worker.at,
        label=f"{product}, {worker.world_size} ranks",
        related=(Label(devices.at, f"{devices.count} devices"),),
        notes=(
            f"{spare} of them would be left over, for the whole run"
            if fits
            else f"a rank has a device to itself: {worker.world_size - devices.count} would have none",
        ),
        help=_help(worker, devices),
    )


def _free(worker: Worker) -> str:
    """Which number of copies of the model there is to choose."""
    return "replicas" if worker.replicas > 1 else "dp"


def _help(worker: Worker, devices: Devices) -> str:
    """The legal numbers of copies next to the asked one; if the model itself does not divide, the counts of devices next."""
    asked = worker.replicas if worker.replicas > 1 else worker.dp_size
    behind = worker.world_size // asked  # ranks that hold one copy of the model
    legal = [copies for copies in range(1, devices.count + 1) if devices.count % (copies * behind) == 0]
    near = [*[copies for copies in legal if copies < asked][-1:], *[copies for copies in legal if copies > asked][:1]]
    if near:
        return " or ".join(f"`{_free(worker)}={copies}`" for copies in near)
    low, high = devices.count // behind * behind, -(-devices.count // behind) * behind
    counts = " or ".join(f'`Devices("{devices.name}", count={count})`' for count in (low, high) if count)
    return f"one copy of the model needs {behind} devices: {counts}"
