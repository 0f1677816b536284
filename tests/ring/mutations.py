"""How many small mistakes in the rules the schedules find: `python tests/ring/mutations.py [schedules] [name ...]`.

Each mutation is one replacement in one file of the core, made when the file is imported, in a process of its own. It is found when one of
so many schedules (default 300) breaks an invariant; told is how many it took.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
CORE = "rlflow.run.controller."
FOLDER = ROOT / "rlflow" / "run" / "controller"


@dataclass(frozen=True)
class Mutation:
    name: str
    module: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        """Its file; without a name, the one that holds the text."""
        if self.module:
            return FOLDER / f"{self.module}.py"
        [path] = [path for path in FOLDER.glob("*.py") if self.old in path.read_text()]
        return path

    def apply(self, text: str) -> str:
        assert text.count(self.old) == 1, f"{self.name}: {self.path.name} holds {text.count(self.old)} times: {self.old}"
        return text.replace(self.old, self.new)


MUTATIONS = (
    Mutation("admission gives a batch too many", "admission", "(last_reachable + 1 - next_batch)", "(last_reachable + 2 - next_batch)"),
    Mutation("admission looks past the last batch", "admission", "min(published + max_lag, last)", "published + max_lag"),
    Mutation("boarding looks one step ahead only", "boarding", "for k in range(max_lag + 1):", "for k in range(1):"),
    Mutation("boarding forgets the batches in the queue", "boarding", "next_batch=state.next_batch,", "next_batch=state.published,"),
    Mutation("the queue takes one more", "boarding", "len(state.batches) < state.config.queue", "len(state.batches) <= state.config.queue"),
    Mutation("the latest deadlines board first", "buffer", "in sorted(self.ready):", "in sorted(self.ready, reverse=True):"),
    Mutation("a short batch leaves the rest behind", "boarding", "and state.ready == state.waiting", "and state.ready > 0"),
    Mutation("an attempt is used again", "", "trajectory.attempt + 1, trajectory.tries", "trajectory.attempt, trajectory.tries"),
    Mutation("a wake-up is lost", "", "    state.in_flight -= 1\n    state.routing.offer(engine)\n", "    state.in_flight -= 1\n"),
    Mutation("one more than W in flight", "dispatch", "in_flight < state.watermark.value", "in_flight <= state.watermark.value"),
    Mutation("an engine with old weights serves", "fleet", '"serving" if engine.held == state.published else "stale"', '"serving"'),
    Mutation("a dropped group still runs", "rollout", "            state.emit(Abort(trajectory.id))\n        elif", "        elif"),
    Mutation("a group ships when one has landed", "rollout", "if group.landed == state.config.n:", "if group.landed == 1:"),
    Mutation("a resume keeps groups of later tags", "timelines", "if group.tag > checkpoint:", "if False:"),
    Mutation("a resume keeps rows of later versions", "timelines", "any(span.version > checkpoint for span", "any(False for span"),
    Mutation("a resume gives every group a seat", "timelines", "sorted(due, key=_goes_first)[: max(excess, 0)]", "[]"),
    Mutation("a resume forgets what was pending", "timelines", "sorted({*state.pending, *uids})", "sorted(uids)"),
    Mutation("a rollback aborts nothing", "rollback", "            state.emit(Abort(trajectory.id))\n", "            pass\n"),
    Mutation("a rollback trusts the engines", "fleet", "engine.sync, engine.held, engine.evaluation", "engine.sync, _, engine.evaluation"),
    Mutation("rows are given up a version early", "rollout", "if version <= state.saved:", "if version <= state.saved + 1:"),
    Mutation("admission forgets the batches in the queue", "dispatch", "next_batch=state.next_batch,", "next_batch=state.published,"),
    Mutation(
        "a train step of a dead timeline publishes",
        "training",
        "batch.id != event.batch:\n        return False\n    state.dis",
        "False:\n        return False\n    state.dis",
    ),
    Mutation("a save covers what is published when it is done", "training", "version = event.batch.batch + 1", "version = state.published"),
    Mutation(
        "drops of lost versions stay",
        "resume",
        "and row.version <= checkpoint",
        'and (row.version <= checkpoint or row.state == "dropped")',
    ),
    Mutation(
        "scores of lost versions stay", "timelines", 'row.state == "scored" and row.version <= state.published', 'row.state == "scored"'
    ),
    Mutation("verdicts on a lost row stay", "timelines", "if is_whole and same_hops else 0", "if same_hops else 0"),
    Mutation("pending prompts are not drawn again", "dispatch", "    if state.pending:", "    if False:"),
    Mutation("an engine under evaluation is synced", "fleet", "            if engine.evaluation is None:", "            if True:"),
    Mutation("a verdict of a dead timeline is heard", "rollout", "or unit.timeline != state.timeline", "or False"),
    Mutation(
        "a batch takes what a filter took out",
        "boarding",
        "for group in groups for trajectory in group.left]",
        "for group in groups for trajectory in group.trajectories]",
    ),
    Mutation(
        "what a filter said of other rows stays",
        "timelines",
        "for trajectory in trajectories if not hops_done else ():",
        "for trajectory in ():",
    ),
    Mutation("room that appears is not seen", "fleet", "event.capacity)\n    state.routing.offer(engine)", "event.capacity)"),
)


class Mutating(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the module of a mutation with the replacement made."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != CORE + self.mutation.path.stem:
            return None
        return importlib.util.spec_from_file_location(name, self.mutation.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        text = self.mutation.apply(self.mutation.path.read_text())
        exec(compile(text, str(self.mutation.path), "exec"), module.__dict__)


def schedules_until_found(mutation: Mutation, at_most: int) -> int | None:
    """Runs schedules in this process, on the mutated core; None: none of them found it."""
    sys.meta_path.insert(0, Mutating(mutation))
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test
    from test_ring_schedules import COUNTED, Schedules

    chosen = settings(
        max_examples=at_most, stateful_step_count=25, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    try:
        run_state_machine_as_test(Schedules, settings=chosen)
    except Exception:
        return COUNTED["schedules"] + 1
    return None


def main(at_most: int, names: Sequence[str]) -> None:
    found = 0
    asked = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    for mutation in asked:
        command = [sys.executable, __file__, "--one", mutation.name, str(at_most)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout.split("\n")[-2]
        found += said != "None"
        print(f"{mutation.name:52}{'not found' if said == 'None' else f'found by schedule {said}'}", flush=True)
    print(f"\n{found} of {len(asked)} found within {at_most} schedules each")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(schedules_until_found(next(mutation for mutation in MUTATIONS if mutation.name == sys.argv[2]), int(sys.argv[3])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 300, sys.argv[2:])
