"""A worker process: `python -m rlflow.run.worker SITE_FILE`.

    site file → import the user's modules → plan → Worker.open, restore → Hello → { Call → operator → block in the pool → Done }
                                                        └── a wrong path, data set, option → CannotStart

Calls run one after the other in the main thread, in the order they arrive: a worker runs its operators in the order of the
pipeline. In the rollout process every trajectory is a thread, so that an operator is plain blocking code:

    Call → thread: operator ──turn k──▶ Turn ─── the controller ───▶ Continue, with an address ──▶ the operator goes on
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ..attempt import Attempt
from ..compile.plan import Plan
from ..data.batch import Block
from ..data.pool.shm import ShmPool
from ..errors import DataError, EngineError, RlflowError
from ..language.worker import Site, Worker
from ..modules import import_user_modules, make_worker
from ..process import die_with_parent
from .graph import GraphView
from .interpret import Interpreter, block_of, fetch
from .messages import Abort, AbortAll, Answered, Call, CannotStart, Continue, Done, Failed, Free, Hello, Restore, Save, Shutdown, Turn
from .rowfiles import Facts, read, write
from .site import SiteFile, read_site
from .stream import Stream
from .transport import Channel


def main(site_file: str) -> None:
    file = read_site(Path(site_file))
    die_with_parent(file.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to answer
    channel = Channel(Path(file.socket))
    try:
        import_user_modules(file.modules)
        process = _Process(file, channel)
    except Exception as error:
        traceback.print_exc()
        channel.send(CannotStart(file.name, str(error) if isinstance(error, RlflowError) else traceback.format_exc().rstrip()))
        channel.receive()  # the controller ends us when it has told its user why; ending first would be one more message
        sys.exit(1)
    try:
        process.serve()
    finally:
        process.close()


class _Process:
    def __init__(self, file: SiteFile, channel: Channel) -> None:
        self.file, self.channel = file, channel
        self.view = GraphView(Plan.from_json(Path(file.plan).read_bytes()))
        self.workers = {w.id: make_worker(w) for w in self.view.graph.workers}
        self.own: Worker | None = self.workers[file.worker] if file.worker is not None else None
        for worker in self.workers.values():
            worker.site = self._site(worker, "")
        if self.own is not None:
            self.own.open(self.own.site)
            if file.checkpoint:
                self.own.restore(Path(file.checkpoint))
        self.interpreter = Interpreter(self.view, self.workers)
        self.pool = ShmPool.attach(file.arena, lane=file.name, live=file.live)
        self.stream = Stream(self.view, self.interpreter) if file.role == "rollout" else None
        self.threads = ThreadPoolExecutor(max_workers=file.threads, thread_name_prefix="trajectory") if self.stream else None
        self.aborting = ThreadPoolExecutor(max_workers=file.threads, thread_name_prefix="abort")  # one each: an engine may hang
        self.attempts: dict[int, Attempt] = {}  # by the number of their calls

    def _site(self, worker: Worker, address: str) -> Site:
        file = self.file
        return Site(
            name=file.name,
            rank=file.rank,
            dp_size=file.dp_size,
            run_dir=Path(file.run_dir),
            seed=file.seed,
            rendezvous=file.rendezvous,
            engine_url=address,
        )

    def serve(self) -> None:
        self.channel.send(Hello(self.file.name, os.getpid(), self.stream.sizes if self.stream else {}))
        while True:
            match self.channel.receive():
                case None | Shutdown():
                    return
                case Free(keys=keys):
                    self.pool.release(keys)
                case Continue(call=id, turn=turn, address=address):
                    if (attempt := self.attempts.get(id)) is not None:
                        attempt.go_on(turn, address)
                case Abort(call=id):
                    if (attempt := self.attempts.get(id)) is not None:
                        attempt.refuse()  # now, however many aborts are under way
                        self.aborting.submit(attempt.give_up)
                case Call() as call if self.threads is not None:
                    self.attempts[call.id] = self._attempt(call)
                    self.threads.submit(self._answer, call)
                case Call() | AbortAll() | Restore() | Save() as call:
                    self._answer(call)

    def _attempt(self, call: Call) -> Attempt:
        """At a trajectory, or at an evaluation: no other of the run has its name, as the controller of a timeline numbers its calls."""
        if call.prompt is None:
            return Attempt(f"evaluation-{call.timeline}.{call.version}.{call.id}", call.address, None, 0.0)
        _, *names = call.prompt
        return Attempt(".".join(map(str, names)), call.address, partial(self._ask_turn, call.id), self.file.turn_seconds)

    def _ask_turn(self, call: int, turn: int) -> None:
        self.channel.send(Turn(call, turn))

    def _answer(self, message: Answered) -> None:
        try:
            self.channel.send(self._done(message))
        except (Exception, SystemExit) as error:  # in a thread SystemExit would end nothing and nobody would answer
            traceback.print_exc()
            trace = "" if isinstance(error, RlflowError) else traceback.format_exc()
            self.channel.send(Failed(message.id, type(error).__name__, str(error), trace))
        finally:
            self.attempts.pop(message.id, None)

    def _done(self, message: Answered) -> Done:
        match message:
            case Save():
                return self._save(message)
            case Restore():
                return self._restore(message)
            case AbortAll():
                self._engine(message.engine, message.address).end_requests()
                return Done(message.id)
            case Call(prompt=None):
                return self._call(message)
            case Call():
                return self._trajectory(message)

    def _save(self, save: Save) -> Done:
        assert self.own is not None
        refuse_other_checkpoint(self.own.name, self.own.save(Path(save.path)), self.view.saved(self.own.name))
        return Done(save.id)

    def _engine(self, worker: int, address: str) -> Worker:
        """The engine of that id, with the address of its server."""
        engine = self.workers[worker]
        engine.site = self._site(engine, address)
        return engine

    def _call(self, call: Call) -> Done:
        node = self.view.graph.nodes[call.node]
        if call.engine is not None:
            self._engine(call.engine, call.address)
        columns = dict(self.view.seen(node, self.stream.columns)) if self.stream else {}
        for source in call.sources:
            columns |= fetch(self.view, node, source, self.pool)
        attempt = self.attempts.get(call.id)
        with nullcontext() if attempt is None else attempt.running():
            made, numbers = self.interpreter.run(node, columns, version=call.version, timeline=call.timeline, cuts=call.cuts)
        if node.rows == "filter":
            return Done(call.id, metrics=numbers, left=self.view.left(node, made))
        read = {i: column for i, column in made.items() if i in self.view.facts.read}
        done = Done(call.id, metrics=numbers | self.view.measure(made), scores=self.view.scores(made))
        return self._kept(call, block_of(read), done) if read else done

    def _trajectory(self, call: Call) -> Done:
        assert self.stream is not None
        assert call.prompt is not None
        assert call.engine is not None
        self._engine(call.engine, call.address)
        with self.attempts[call.id].running() as attempt:
            attempt.raise_if_given_up()
            block, lengths, spans, numbers = self.stream.sample(call.prompt[:3], call.version, call.timeline)
        return self._kept(call, block, Done(call.id, None, lengths, spans, numbers))

    # --- rows that outlive this process ---------------------------------------------------------------------------------------------
    def _kept(self, call: Call, block: Block, done: Done) -> Done:
        """The answer with its block in the pool; in a file before that, if the call asks for one."""
        if call.keep:
            facts = Facts(
                node=call.node, timeline=call.timeline, lengths=done.lengths, spans=done.spans, metrics=done.metrics, plan=self.view.plan_id
            )
            write(self._rows / call.keep, block, facts)
        return replace(done, key=self.pool.put(block))

    def _restore(self, restore: Restore) -> Done:
        """Raises DataError for a file that is missing, damaged or of another plan."""
        block, facts = read(self._rows / restore.name)
        if facts.plan != self.view.plan_id:
            raise DataError(f"{self._rows / restore.name} was written by another plan ({facts.plan}, this is {self.view.plan_id})")
        return Done(restore.id, self.pool.put(block), facts.lengths, facts.spans, facts.metrics)

    @property
    def _rows(self) -> Path:
        return Path(self.file.run_dir) / "rows"

    def close(self) -> None:
        for attempt in list(self.attempts.values()):
            attempt.refuse()  # nobody answers any more
        if self.threads is not None:
            self.threads.shutdown(wait=False, cancel_futures=True)
        self.aborting.shutdown(wait=False, cancel_futures=True)
        if self.own is not None:
            self.own.close()
        self.pool.close()
        self.channel.close()


def refuse_other_checkpoint(worker: str, wrote: Collection[str], declared: Collection[str]) -> None:
    """Raises EngineError unless a checkpoint holds exactly what its worker declares: what is forgotten is found now, not by a resume."""
    extra, missing = sorted(set(wrote) - set(declared)), sorted(set(declared) - set(wrote))
    if extra or missing:
        said = [f"wrote {', '.join(extra)}, which it does not declare"] if extra else []
        said += [f"did not write {', '.join(missing)}, which it declares"] if missing else []
        raise EngineError(f"the checkpoint of `{worker}` {' and '.join(said)}: `state` of its class says what `save` writes")


if __name__ == "__main__":
    main(sys.argv[1])
