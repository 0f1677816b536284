"""A real run that is killed again and again: nothing may be lost, doubled or skipped.

    python benchmarks/chaos.py [--kills 60] [--seed 0]

    start ──▶ wait a random moment ──▶ SIGKILL a random process ──▶ a step is trained again? ──▶ ... ──▶ stop, resume, end ──▶ audit
                                        controller: `rlflow resume`
                                        any other:  heals in place

Every fourth kill does not wait for a step: it strikes while the run still recovers from the one before.
Exit code 0: every kill healed within its time, the audit found nothing, and no process, shared memory or socket stayed behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from rlflow.run.audit import audit

ROOT = Path(__file__).parents[1]
WEIGHTS = {"controller": 4, "actor": 3, "engine": 3, "rollout": 2, "host": 1}
FLAGS = ("--prompts", "4", "--group-size", "2", "--max-new-tokens", "8", "--max-lag", "1", "--eval-every", "25")
HEAL_SECONDS = 180.0  # from a kill to the next trained step
GONE_SECONDS = 10.0  # from the end of the controller to that of all its processes
FOREVER = 1_000_000


class Broken(Exception):
    """What must not happen: the run did not heal, or left something behind."""


@dataclass
class Tally:
    """What became of the kills of one kind of process."""

    kills: int = 0
    healed: int = 0
    resumed: int = 0
    hasty: int = 0
    """Not waited for: it struck while the run recovered, or was followed by another one at once."""
    ended: int = 0
    """The run stopped with the name of what died, and was resumed."""
    seconds: list[float] = field(default_factory=list)


class Chaos:
    """One run under attack."""

    def __init__(self, root: Path, seed: int, engines: int, save_every: int) -> None:
        self.random, self.root = random.Random(seed), root
        root.mkdir(parents=True, exist_ok=True)
        self.folder = root / "chaos"
        self.flags = [*FLAGS, "--engines", str(engines), "--save-every", str(save_every), "--seed", str(seed)]
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.output = (root / "output.log").open("ab")
        self.controller: subprocess.Popen[bytes] | None = None
        self.known: dict[int, psutil.Process] = {}

    # --- the run ------------------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        pipeline = str(ROOT / "pipelines" / "grpo.py")
        self._command("run", pipeline, "--root", str(self.root), "--name", "chaos", "--steps", str(FOREVER), *self.flags)

    def resume(self, *flags: str) -> None:
        self._command("resume", str(self.folder), *flags)

    def _command(self, *argv: str) -> None:
        command, around = [sys.executable, "-m", "rlflow.cli", *argv], os.environ | {"PYTHONPATH": str(ROOT)}
        self.controller = subprocess.Popen(command, stdout=self.output, stderr=self.output, cwd=ROOT, env=around)

    def steps(self) -> int:
        """Lines of trained steps so far, those that a rollback took back included."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b'{"kind":"step"') if path.exists() else 0

    def processes(self) -> dict[str, psutil.Process]:
        """By name: controller, host, actor, engine.0, engine.0.rollout ..."""
        assert self.controller is not None
        found: dict[str, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            found["controller"] = whole = psutil.Process(self.controller.pid)
            for child in whole.children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    site = next((Path(a).name for a in child.cmdline() if "/sites/" in a and a.endswith(".json")), None)
                    if site is not None:
                        found[site.removesuffix(".json").removesuffix(".ready")] = child
        self.known |= {process.pid: process for process in found.values()}
        return found

    # --- one kill -----------------------------------------------------------------------------------------------------------------
    def strike(self, hasty: bool) -> str:
        """Kill one process at a random moment; it comes back and the run trains on, or this raises Broken. hasty: nobody waits for that."""
        time.sleep(self.random.uniform(0.0, 3.0))
        name, process = self._victim()
        tally, began = self.tallies[kind_of(name)], time.monotonic()
        tally.kills += 1
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        if name == "controller":
            self._reap()
            self.resume()
            tally.resumed += 1
        if hasty:
            tally.hasty += name != "controller"
            return f"{name}, not waited for"
        ended = self._wait_for_return(name, process.pid) + self.wait_for_step(self.steps())
        tally.ended += ended > 0
        tally.healed += name != "controller" and not ended
        tally.seconds.append(time.monotonic() - began)
        return f"{name}: back, and a step {tally.seconds[-1]:.1f} s later" + ", after the run had ended and was resumed" * (ended > 0)

    def _victim(self) -> tuple[str, psutil.Process]:
        """A process that is there now, by weight of its kind."""
        by_kind: dict[str, list[str]] = defaultdict(list)
        there = self.processes()
        for name in sorted(there):
            by_kind[kind_of(name)].append(name)
        if "controller" not in by_kind:
            self._resume_ended()
            return self._victim()
        kinds = sorted(by_kind)
        name = self.random.choice(by_kind[self.random.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]])
        return name, there[name]

    def _wait_for_return(self, name: str, pid: int) -> int:
        """Until another process bears the name; how often the run had to be resumed for it."""
        return self._wait(lambda: name in (there := self.processes()) and there[name].pid != pid, f"no other `{name}` after {pid}")

    def wait_for_step(self, before: int) -> int:
        """Until one more is trained; how often the run had to be resumed for it."""
        return self._wait(lambda: self.steps() > before, "no step")

    def _wait(self, done: Callable[[], bool], what: str) -> int:
        deadline, resumed = time.monotonic() + HEAL_SECONDS, 0
        while not done():
            assert self.controller is not None
            if self.controller.poll() is not None:
                self._resume_ended()
                resumed += 1
            if time.monotonic() > deadline:
                raise Broken(f"{what} within {HEAL_SECONDS:g} s; {self.root / 'output.log'}, {self.folder / 'logs'}")
            time.sleep(0.05)
        return resumed

    def _resume_ended(self) -> None:
        """The run has ended although nobody killed its controller: that is allowed if it says why."""
        assert self.controller is not None
        code = self.controller.wait(GONE_SECONDS)
        said = json.loads((self.folder / "ended.json").read_bytes()) if (self.folder / "ended.json").exists() else {}
        if code != 1 or said.get("ended") != "failed":
            raise Broken(f"the controller ended with exit code {code}, having said {said}; {self.root / 'output.log'}")
        print(f"  the run ended by itself: {said['why'].partition(chr(10))[0]}", flush=True)
        self._reap()
        self.resume()

    def _reap(self) -> None:
        """The controller has ended: nothing of it may stay. Raises Broken."""
        assert self.controller is not None
        self.controller.wait(GONE_SECONDS)
        _, left = psutil.wait_procs(list(self.known.values()), timeout=GONE_SECONDS)
        if left:
            raise Broken(f"{len(left)} processes outlived the controller by {GONE_SECONDS:g} s: {left}")
        self.known.clear()

    # --- the end ------------------------------------------------------------------------------------------------------------------
    def finish(self, more: int) -> None:
        """Stop as a user does, go on for `more` steps to the end. Raises Broken."""
        self.wait_for_step(self.steps())
        assert self.controller is not None
        self.controller.send_signal(signal.SIGINT)
        version = self._end("stopped")
        self.resume("--steps", str(version + more))
        if self._end("done") != version + more:
            raise Broken(f"the run was to end at version {version + more}")

    def _end(self, how: str) -> int:
        """Wait for it; the version of the newest checkpoint."""
        assert self.controller is not None
        code = self.controller.wait(HEAL_SECONDS)
        said = json.loads((self.folder / "ended.json").read_bytes())
        if code != 0 or said["ended"] != how:
            raise Broken(f"exit code {code}, {said}: it was to be {how}")
        self._reap()
        return max(int(path.name.removeprefix("step-")) for path in (self.folder / "checkpoints").glob("step-*"))

    def leftovers(self) -> list[str]:
        """Sockets of the run, and shared memory that bears our name. (Processes are looked for whenever the controller has ended.)"""
        sockets = [str(path) for path in self.folder.rglob("*") if path.is_socket()]
        return sockets + [str(path) for path in Path("/dev/shm").iterdir() if "rlflow" in path.name]

    def close(self) -> None:
        if self.controller is not None and self.controller.poll() is None:
            self.controller.kill()
            self.controller.wait()
        self.output.close()


def kind_of(name: str) -> str:
    """`engine.1.rollout` is a rollout process."""
    if name.endswith(".rollout"):
        return "rollout"
    return name.partition(".")[0]


def attack(chaos: Chaos, kills: int) -> None:
    chaos.start()
    began = time.monotonic()
    chaos.wait_for_step(0)
    for i in range(1, kills + 1):
        said = chaos.strike(hasty=i % 4 == 0)
        print(f"{i:>4}/{kills} {time.monotonic() - began:>6.0f} s  step lines {chaos.steps():>4}  {said}", flush=True)
    chaos.finish(more=4)


def table(chaos: Chaos) -> str:
    head = f"{'killed':<12} {'kills':>5} {'healed in place':>15} {'not waited for':>14} {'resumed':>8} {'ended by name':>13} "
    lines = [head + f"{'back and a step, s: median':>26} {'worst':>6}"]
    for kind in WEIGHTS:
        if (tally := chaos.tallies.get(kind)) is None:
            continue
        lines.append(
            f"{kind:<12} {tally.kills:>5} {tally.healed:>15} {tally.hasty:>14} {tally.resumed:>8} {tally.ended:>13} "
            f"{statistics.median(tally.seconds or [0.0]):>26.1f} {max(tally.seconds, default=0.0):>6.1f}"
        )
    return "\n".join(lines)


def history(folder: Path) -> str:
    """How often the run went back, and by how much."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    kinds = Counter(line["kind"] for line in lines)
    kept = {line["step"] for line in lines if line["kind"] == "step"}
    return f"{kinds['step']} steps trained, {len(kept)} of them kept; {kinds['timeline']} timelines"


def trained_twice_or_never(folder: Path) -> list[str]:
    """The trained uids of history.jsonl on the timeline that survived, counted here and not by the audit's queries."""
    trained: dict[int, list[int]] = {}
    dropped: list[tuple[int, int]] = []
    for line in map(json.loads, (folder / "history.jsonl").read_bytes().splitlines()):
        if line["kind"] == "timeline":  # what was made of later weights than its checkpoint is undone
            trained = {batch: uids for batch, uids in trained.items() if batch < line["version"]}
            dropped = [(version, uid) for version, uid in dropped if version <= line["version"]]
        elif line["kind"] == "trained":
            trained[line["batch"]] = [group[0] for group in line["groups"]]
        elif line["kind"] == "dropped":
            dropped.append((line["version"], line["uid"]))
    times = Counter([uid for uids in trained.values() for uid in uids] + [uid for _, uid in dropped])
    faults = [f"prompt {uid} was trained or dropped {count} times" for uid, count in sorted(times.items()) if count > 1]
    faults += [f"batch {batch} was not trained" for batch in range(max(trained, default=0)) if batch not in trained]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--root", type=Path, help="keep the run here; default: a temporary folder")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlflow-chaos-") as temporary:
        chaos = Chaos(told.root or Path(temporary), told.seed, told.engines, told.save_every)
        try:
            attack(chaos, told.kills)
        except Broken as broken:
            print(f"BROKEN: {broken}\n{table(chaos)}", flush=True)
            return 1
        finally:
            chaos.close()
        print(f"\n{table(chaos)}\n{history(chaos.folder)}")
        audited, twice, left = audit(chaos.folder), trained_twice_or_never(chaos.folder), chaos.leftovers()
        print(f"audit: {audited.says()}\ntrained uids: {', '.join(twice) or 'each once'}\nleft behind: {', '.join(left) or 'nothing'}")
        return 1 if audited.faults or twice or left else 0


if __name__ == "__main__":
    sys.exit(main())
