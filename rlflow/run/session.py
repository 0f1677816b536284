"""One run from the command to its end: folder, processes, loop, and the way out.

Options + Plan ──▶ RunDir, Ledger, arena, Fleet ──▶ Loop ──▶ Outcome
                                             ▲
                    SIGINT, SIGTERM, SIGHUP: once = finish the step, save, end; twice = end now
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvloop

from ..compile.facts import Gap
from ..compile.plan import Plan
from ..errors import PoolError, RlflowError, UsageError, WorkerDied
from .calls import BACKSTOP, engine_names
from .controller import events as ev
from .controller.books import Books
from .controller.resume import forget_rows
from .controller.resume import resume as state_of
from .controller.state import Config, Hop, State
from .digests import digests
from .graph import GraphView
from .launch import Fleet
from .ledger import Ledger, read_books
from .ledger.history import FILE as HISTORY
from .loop import Loop
from .record import ENDED, FILE, PLAN, Ended, Options, Record, Told, plan_file, plan_of, replace_plan
from .report import Report, View
from .rundir import RunDir
from .staff import Staff, Surroundings

TIDY_SECONDS = 30.0  # that the end of a run waits for old checkpoints to be deleted
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. reward: the last held-out mean, by the name of what evaluated."""

    ended: Literal["done", "stopped", "failed"]
    why: str
    run_dir: Path
    checkpoint: Path | None
    reward: dict[str, float]
    best: Path | None = None


def run(plan: Plan, options: Options, screen: View, modules: tuple[tuple[str, str], ...] = (), told: Told | None = None) -> Outcome:
    """Run a checked plan to its end. modules: (name, path) of user files that every process imports first. told: for a resume.

    Raises CheckFailed, UsageError or PoolError before anything is started, for options or a plan that make no run, or too little shared
    memory.
    All that goes wrong later is an Outcome.
    """
    view = GraphView(plan.scheduled(watermark=options.watermark, queue=options.queue, oversample=options.oversample))
    view.check_runnable()
    config = schedule(view, options)
    run_dir = RunDir.create(options.root, options.name, plan.graph.name)
    run_dir.write_json(FILE, _record(view, options, told, modules))
    try:
        with closing(Ledger.create(run_dir.path)) as ledger:
            return _go(_Session(view, run_dir, options, screen, modules, State(config), ledger))
    except (UsageError, PoolError):
        shutil.rmtree(run_dir.path)  # nothing was started: the name is free again
        raise
    finally:
        run_dir.close()


def resume(
    plan: Plan, options: Options, screen: View, folder: Path, modules: tuple[tuple[str, str], ...] = (), told: Told | None = None
) -> Outcome:
    """Go on with the run in `folder` from its newest checkpoint, on a new timeline; it need not be the plan that it began with.

    n has to be the same; rows whose columns have become others are sampled anew. Everything else is as for `run`.
    Raises CheckFailed, UsageError or LedgerError before anything is changed, PoolError before anything is started.
    """
    view = GraphView(plan.scheduled(watermark=options.watermark, queue=options.queue, oversample=options.oversample))
    view.check_runnable()
    config = schedule(view, options)
    _resumed(read_books(folder), config, view, folder)  # what is refused is refused before an older ledger is brought to this version
    with closing(Ledger.open(folder)) as ledger:
        if ledger.lost_lines:
            gone = f"{ledger.lost_lines} lines that the ledger knows of are gone from {folder / HISTORY}"
            screen.note(f"{gone}: no audit can vouch for what they told")
        books = ledger.load()
        state = _resumed(books, config, view, folder)
        run_dir = RunDir.reopen(folder)
        try:
            run_dir.write_json(FILE, _record(view, options, told, modules))
            replace_plan(folder, max(books.timelines, default=-1), view.plan.to_json())
            (folder / ENDED).unlink(missing_ok=True)
            return _go(_Session(view, run_dir, options, screen, modules, state, ledger))
        finally:
            run_dir.close()


def _resumed(books: Books, config: Config, view: GraphView, folder: Path) -> State:
    """What a run goes on from, without rows of a plan with other columns. Raises UsageError where it cannot."""
    before = plan_of(plan_file(folder, max(books.timelines, default=-1)))
    if GraphView(before).plan_id != view.plan_id:
        forget_rows(books)
    return state_of(config, books)


def _record(view: GraphView, options: Options, told: Told | None, modules: tuple[tuple[str, str], ...]) -> Record:
    return Record(pipeline=view.graph.parameters, run=options, told=told, modules=modules, operators=digests(view.graph))


def _go(session: _Session) -> Outcome:
    outcome = uvloop.run(session.run())
    try:
        session.run_dir.write_json(ENDED, Ended(outcome.ended, outcome.why))
    except OSError as error:  # a full disk, as a rule: why the run ended is told all the same
        session.screen.note(f"{session.run_dir.path / ENDED} cannot be written: {error}")
    return outcome


def schedule(view: GraphView, options: Options) -> Config:
    """n, P, L and the rest of what `decide` goes by, as the plan and the options say. Raises UsageError for what makes no run."""
    if options.steps < 1:
        raise UsageError(f"--steps {options.steps}: give at least 1")
    if options.pool_mb is not None and options.pool_mb < 1:
        raise UsageError(f"--pool-mb {options.pool_mb}: give at least 1, or leave it out")
    if options.keep < 0:
        raise UsageError(f"--keep {options.keep}: give at least 1, or 0 for all checkpoints")
    if options.keep_best and not view.sinks:
        raise UsageError(f"--keep-best: {_why_none_is_best(view)}")
    gap = next((gap for gap in view.plan.facts.gaps.values() if gap.watermark), Gap(worst=0))
    return Config(
        n=view.dispatch.params["n"],
        groups_per_batch=view.form.params["prompts"],
        max_lag=gap.worst,
        policy=gap.stale,
        last=options.steps - 1,
        engines=engine_names(view.engine),
        watermark=options.watermark,
        queue=options.queue,
        oversample=options.oversample,
        epochs=options.epochs,
        remainder=options.remainder,
        pass_rate=options.pass_rate,
        seed=options.seed,
        hops=tuple(Hop(node.name, "group") for node in view.hops),
        least_left=view.least_left,
        eval_every=math.gcd(*(node.params["every"] for node in view.sinks)),
        save_every=options.save_every,
        keep_best=options.keep_best,
    )


def _why_none_is_best(view: GraphView) -> str:
    never = next((node for node in view.needed if view.evaluates(node)), None)  # it is called, and told to do nothing
    if never is None:
        return "nothing is evaluated in this pipeline, so no checkpoint is the best; leave it out, or call evaluate"
    flag = "--eval-every " if "eval_every" in view.graph.parameters else "every="
    return f"`{never.name}` never runs ({flag}0), so no checkpoint is the best; leave it out, or give {flag.strip()} at least 1"


class _Session:
    def __init__(
        self,
        view: GraphView,
        run_dir: RunDir,
        options: Options,
        screen: View,
        modules: tuple[tuple[str, str], ...],
        state: State,
        ledger: Ledger,
    ) -> None:
        self.view, self.run_dir, self.options, self.screen, self.modules = view, run_dir, options, screen, modules
        self.state, self.ledger = state, ledger
        self.plan_path = run_dir.write(PLAN, view.plan.to_json())
        self.loop: Loop | None = None
        self.fleet: Fleet | None = None
        self.stops = 0

    async def run(self) -> Outcome:
        socket = self.run_dir.path / "sites" / "controller.sock"
        self.fleet = fleet = Fleet(self.run_dir, socket, self._died, hello_seconds=self._hello_seconds)
        pool_bytes = self.options.pool_mb * 1024 * 1024 if self.options.pool_mb else None
        around = Surroundings(
            seed=self.options.seed, modules=self.modules, plan=self.plan_path, pool_bytes=pool_bytes,
            turn_seconds=self.state.config.seconds("turn") + BACKSTOP, keep=self.options.keep, keep_best=self.options.keep_best,
        )  # fmt: skip
        staff = Staff(self.view, self.run_dir, fleet, around)
        failed = True
        with self._signals():
            try:
                outcome = await self._outcome(staff, fleet)
                failed = outcome.ended == "failed"
                return outcome
            finally:
                await fleet.stop(grace=1.5 if failed else 5.0)
                staff.arena.close()
                await self._tidy_up(staff)

    async def _tidy_up(self, staff: Staff) -> None:
        """Wait for old checkpoints to be deleted, when nobody works any more; who has asked twice for the end waits for none."""
        if not await asyncio.to_thread(staff.deleter.wait, TIDY_SECONDS if self.stops < 2 else 0.0):
            self.screen.note("old checkpoints are not deleted yet: the next resume deletes what is left")

    @property
    def _hello_seconds(self) -> float:
        """Whoever has connected loads its model before it says Hello: that is part of its start."""
        config = self.state.config
        return max(config.seconds("worker start"), config.seconds("engine start")) + BACKSTOP

    async def _outcome(self, staff: Staff, fleet: Fleet) -> Outcome:
        try:
            return await self._run(staff, fleet)
        except asyncio.CancelledError:
            return Outcome("stopped", "stopped before the first step", self.run_dir.path, None, {})
        except (RlflowError, OSError) as error:
            return Outcome("failed", str(error), self.run_dir.path, self._resumes_at(staff), {})

    def _resumes_at(self, staff: Staff) -> Path | None:
        """What a resume begins at, there or not: the ledger says it."""
        return None if self.state.checkpoint is None else staff.retention.path(self.state.checkpoint)

    async def _run(self, staff: Staff, fleet: Fleet) -> Outcome:
        self.screen.note(f"run {self.run_dir.path}")
        await fleet.listen()
        report = Report(self.view, self.run_dir, self.screen, staff.peers, staff.blocks)
        self.loop = Loop(self.view, staff, self.state, report, self.ledger, seed=self.options.seed)
        finish = await self.loop.run()
        report.ended(self.loop.state.totals)
        if finish.outcome == "done" and staff.blocks.outstanding:
            raise RlflowError(f"{staff.blocks.outstanding} bytes are left in the pool after the last step: a block outlived its last read")
        return Outcome(finish.outcome, finish.why, self.run_dir.path, staff.retention.newest, report.last_reward, staff.retention.best)

    def _died(self, process: str, error: WorkerDied) -> None:
        assert self.loop is not None
        self.loop.died(process, str(error))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in STOPPING:
            loop.add_signal_handler(number, self._stop, task)
        try:
            yield
        finally:
            for number in STOPPING:
                loop.remove_signal_handler(number)

    def _stop(self, task: asyncio.Task[Any]) -> None:
        self.stops += 1
        if self.fleet is not None and self.fleet.stopping:
            self.fleet.hurry()
        elif self.loop is None or not self.loop.began:
            self.screen.note("stopping before the first step")
            task.cancel()
        else:
            self.screen.note("stopping after this step; once more to stop now" if self.stops == 1 else "stopping now")
            self.loop.tell(ev.Stop())
