"""The worker that samples. An operator's body is its only implementation; it runs in the rollout process beside each engine.

Embedded   a rollout engine on this machine: an HTTP server (SGLang's contract) and the turn loop beside it

    rollout   rollout_turns   rollout_tree  ──▶ TurnLoop ──▶ _next_turn ──HTTP──▶ server        (turns.py)
    evaluate  ──▶ Exam ──▶ the same, of held-out prompts                                        (evaluation.py)
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from rlflow import Devices, Served, Site, State, Worker, dims, fresh, operator
from rlflow.attempt import current
from rlflow.errors import EngineError

from .dialogue import DEFAULT_LIMITS, EnvironmentLimits
from .environment import Environment
from .evaluation import Answer, Exam, HeldOut, Item
from .fields import B, Policy, S, T, TrajectoryCount
from .models import TINY, checkpoint_folder, context_of, tiny_folder, tokenizer_of
from .records import EpisodeSample, Prompts, Sample, Trajectories
from .reward import RewardFn
from .samples import Played, episodes_of, sample_of
from .turns import Ask, Course, Rules, TurnLoop

if TYPE_CHECKING:
    from rlflow.engines.rollout import Generation, HttpRolloutClient, SamplingParams

N, KV = dims("N KV")  # parameters, bytes of keys and values

OF_PROMPT = {name: f"prompts.{name}" for name in ("uid", "traj_uid", "answer")}  # what a row keeps of its prompt, whoever samples


class Embedded(Worker):
    """A rollout engine in this machine's processes: batched decoding with a KV cache behind SGLang's HTTP contract.

    model: "tiny" or a checkpoint folder. max_new_tokens: a turn, fewer where the model's context ends first. top_p: samples are of the
    most likely tokens that hold this much; the log-probs recorded are those before that cut, as SGLang gives them.
    capacity: trajectories at once, of each replica. threads: of torch in the server. replicas: servers, each with a turn loop beside it.
    """

    state = (State("replica", 4 * N, in_checkpoint=False), State("kv_cache", KV, in_checkpoint=False))  # by sync, and by sampling

    def __init__(
        self, name: str, *, model: str = TINY, temperature: float = 1.0, top_p: float = 1.0, max_new_tokens: int = 16,
        capacity: TrajectoryCount = 256, threads: int = 1, replicas: int = 1, on: Devices | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, temperature=temperature, top_p=top_p, replicas=replicas, on=on)
        self.model, self.max_new_tokens, self.capacity, self.threads = model, max_new_tokens, capacity, threads
        self._clients: dict[str, HttpRolloutClient] = {}

    # --- life ---------------------------------------------------------------------------------------------------------------------
    def server(self, site: Site, ready_file: Path) -> list[str]:
        """How to start the HTTP server; it tells its address in `ready_file`."""
        folder = tiny_folder(site.run_dir) if self.model == TINY else checkpoint_folder(self.model)
        options = {
            "--model-path": folder,
            "--ready-file": ready_file,
            "--max-running-requests": self.capacity,
            "--threads": self.threads,
            "--seed": site.seed,
            "--weight-version": "unsynced",
        }
        return [sys.executable, "-m", "rlflow.engines.rollout.embedded", *(str(x) for pair in options.items() for x in pair)]

    def open(self, site: Site) -> None:
        super().open(site)
        self.tokenizer, self.context = tokenizer_of(self.model), context_of(self.model)

    @property
    def client(self) -> HttpRolloutClient:
        """The connection to its own server, whose address is known when the first call arrives."""
        return self._client_of(self.site.engine_url)

    def _client_of(self, address: str) -> HttpRolloutClient:
        """The connection to the server of this replica, or of another that a trajectory went on at."""
        from rlflow.engines.rollout import HttpRolloutClient

        if (client := self._clients.get(address)) is None:
            client = self._clients.setdefault(address, HttpRolloutClient(address, maxsize=self.capacity))
        return client

    @contextmanager
    def _connected(self, address: str) -> Iterator[HttpRolloutClient]:
        """The same; of a server that seems to be gone it is forgotten, and closes when the last request that has it is done."""
        from rlflow.engines.rollout import EngineGone

        client = self._client_of(address)
        try:
            yield client
        except EngineGone:
            if self._clients.get(address) is client:
                self._clients.pop(address, None)
            raise

    def end_requests(self) -> None:
        self.client.abort(abort_all=True)

    # --- operators ----------------------------------------------------------------------------------------------------------------
    @operator(per="row", sizes={B: T, S: fresh()}, copies=OF_PROMPT)
    def rollout(self, policy: Served[Policy], prompts: Trajectories) -> Sample:
        """One turn: one row a trajectory.

        Sampled at the worker's temperature with a seed of (run, uid, traj_uid), until the end-of-sequence token or `max_new_tokens`.
        Raises EngineError if the engine aborts the request or breaks its contract.
        """
        return sample_of(self._played(policy, prompts, Rules()), prompts, policy.version)

    @operator(per="row", sizes={B: T, S: fresh()}, copies=OF_PROMPT)
    def rollout_turns(
        self, policy: Served[Policy], prompts: Trajectories, *, environment: Environment, max_turns: int = 16,
        max_response_tokens: int | None = None, limits: EnvironmentLimits = DEFAULT_LIMITS,
    ) -> EpisodeSample:  # fmt: skip
        """Turns with an environment: the model says something, the environment replies, until the episode is over.

        One row a trajectory; `response_mask` is 1 on the model's own tokens only, `response_text` is what it said last. An episode
        still going after `max_turns` turns of the model, or after `max_response_tokens` tokens of its own over all turns, or whose next
        turn does not fit the model's context, ends there: the row keeps what was said until then, `is_truncated`, the log and the metric
        episodes/cut tell. Raises what `Dialogue` raises for an environment that misbehaves: it costs this trajectory.
        """
        rules = Rules(environment=environment, max_turns=max_turns, max_response_tokens=max_response_tokens, limits=limits)
        return episodes_of(self._played(policy, prompts, rules), prompts, policy.version)

    @operator(per="row", sizes={B: fresh(), S: fresh()}, copies=OF_PROMPT)
    def rollout_tree(
        self, policy: Served[Policy], prompts: Trajectories, *, environment: Environment, forks: tuple[int, ...], max_turns: int = 16,
        max_response_tokens: int | None = None, limits: EnvironmentLimits = DEFAULT_LIMITS,
    ) -> EpisodeSample:  # fmt: skip
        """`rollout_turns` in which trajectories fork: one row a leaf, a prefix that leaves share trained in the first of them only.

        forks: continuations of each turn of the model: (1, 2) is one first turn, and two second turns after the reply to it. An episode
        that is over before does not fork. The environment is played once a leaf and has to answer the same texts alike (`Environment`).
        """
        rules = Rules(environment=environment, max_turns=max_turns, max_response_tokens=max_response_tokens, forks=forks, limits=limits)
        return episodes_of(self._played(policy, prompts, rules), prompts, policy.version)

    @operator(per="row", sink=True)
    def evaluate(
        self, policy: Served[Policy], prompts: Prompts, *, reward: RewardFn, every: int, samples: int = 1, temperature: float = 0.0,
        pass_at: tuple[int, ...] = (), attempts: int = 3, failing: Literal["fail", "zero"] = "fail",
        environment: Environment | None = None, max_turns: int = 16, max_response_tokens: int | None = None,
        limits: EnvironmentLimits = DEFAULT_LIMITS,
    ) -> dict[str, float]:  # fmt: skip
        """Mean reward of answers to held-out prompts, every `every` versions, with what no policy has to beat.

        samples, temperature, pass_at, attempts, failing: `HeldOut`; greedy unless told otherwise, avg@n and pass@k with more samples. Seeds
        are of (run, item, sample): every version is asked the same. All answers are of the pinned version, and of each item one.
        reward: called in this process, so it may not be one that asks a model of its own.
        Returns reward, prompts and, without an environment, best_constant (the best single answer) and best_blind (the best answer
        that knows the wording of a question but not its operands): over turns, one answer is not what blind play is worth. With one,
        episode_reward is what it gave. Raises OperatorError or EngineError naming an item that failed on all attempts.
        """
        how = HeldOut(samples=samples, temperature=temperature, pass_at=pass_at, attempts=attempts, failing=failing)
        rules = Rules(environment=environment, max_turns=max_turns, max_response_tokens=max_response_tokens, limits=limits)
        exam = Exam(prompts, how, with_episodes=environment is not None)
        at_once = None if environment else partial(self._answered_at_once, exam, policy.version)
        return exam.numbers(partial(self._answered, exam, policy, rules), at_once, reward)

    # --- turns ----------------------------------------------------------------------------------------------------------------------
    def _played(self, policy: Served[Policy], prompts: Trajectories, rules: Rules) -> list[list[Played]]:
        """The leaves of each trajectory."""
        played = []
        for i, (uid, number, answer) in enumerate(zip(_ints(prompts.uid), _ints(prompts.traj_uid), prompts.answer, strict=True)):
            place, prompt = f"trajectory {uid}.{number}", _ints(prompts.prompt_ids[i])
            drawn = partial(self._drawn, (uid, number), self.temperature, self.top_p)
            loop = self._loop(partial(self._next_turn, policy, place, len(prompt), drawn), rules)
            played.append(loop.play(prompt, answer, seed=self._seed(uid, number, -1), place=place))
        return played

    def _loop(self, ask: Ask, rules: Rules) -> TurnLoop:
        return TurnLoop(ask, self.tokenizer, self._text, rules, max_new_tokens=self.max_new_tokens, context=self.context)

    def _next_turn(
        self, policy: Served[Policy], place: str, prompt: int, drawn: Callable[[Course], SamplingParams], course: Course
    ) -> Generation:
        """The one place that asks an engine for a turn. prompt: how many of the tokens it is.

        Its spans name versions of the policy's timeline: another one breaks the contract.
        Raises EngineError naming the trajectory and how its prompt begins, and what `Attempt.next_turn` raises.
        """
        from rlflow.engines.rollout import EngineRefused

        attempt = current()
        address = self.site.engine_url if attempt is None else attempt.next_turn()
        try:
            with self._connected(address) as client, attempt.request(client.abort) if attempt is not None else nullcontext() as rid:
                said = client.generate(course.history, drawn(course), rid)
        except EngineRefused as error:
            begins = self._text(course.history[:prompt])[:40]
            raise EngineRefused(f"{place}, of the prompt {begins!r}...: {error}", error.status) from error
        if said.finish_reason.type == "abort" or not said.output_ids:
            raise EngineError(f"{place}: the engine sampled nothing ({said.finish_reason.type}: {said.finish_reason.message})")
        return replace(said, spans=[replace(span, version=str(policy.version_of(span.version))) for span in said.spans])

    def _drawn(self, who: tuple[str | int, ...], temperature: float, top_p: float, course: Course) -> SamplingParams:
        """How the next turn is drawn. Equal for equal (run, who, turn) and branches taken, so that what is sampled again is the same."""
        from rlflow.engines.rollout import SamplingParams

        seed = self._seed(*who, course.turn, *course.branch)
        return SamplingParams(max_new_tokens=course.room, temperature=temperature, top_p=top_p, sampling_seed=seed)

    # --- held-out prompts -------------------------------------------------------------------------------------------------------------
    def _answered(self, exam: Exam, policy: Served[Policy], rules: Rules, item: Item) -> Answer:
        """One answer, turn after turn. Raises EngineError if it is of other weights than those of the pinned version."""
        place, ids, who = str(item), _ints(exam.prompts.prompt_ids[item.row]), ("held out", item.uid, item.sample)
        ask = partial(self._next_turn, policy, place, len(ids), partial(self._drawn, who, exam.how.temperature, 1.0))

        def pinned(course: Course) -> Generation:
            said = ask(course)
            if not _is_of(said, policy.version):
                raise EngineError(f"{place} is pinned to version {policy.version} of the weights, and was answered by {_versions(said)}")
            return said

        (leaf,) = self._loop(pinned, rules).play(ids, exam.prompts.answer[item.row], seed=self._seed(*who, -1), place=place)
        return Answer(leaf.text, leaf.reward)

    def _answered_at_once(self, exam: Exam, version: int) -> list[Answer | None]:
        """All answers of one turn in one request; None for one that failed."""
        ids = [_ints(row) for row in exam.prompts.prompt_ids]
        drawn = []
        for item in exam.items:
            room = self.max_new_tokens if self.context is None else max(1, min(self.max_new_tokens, self.context - len(ids[item.row])))
            drawn.append(self._drawn(("held out", item.uid, item.sample), exam.how.temperature, 1.0, Course(history=(), room=room)))
        attempt = current()
        with self._connected(self.site.engine_url) as client, ExitStack() as requests:
            rids = [requests.enter_context(attempt.request(client.abort)) for _ in exam.items] if attempt is not None else None
            said = client.generate_batch([ids[item.row] for item in exam.items], drawn, rids)
        return [Answer(self._text(one.output_ids)) if one.output_ids and _is_of(one, version) else None for one in said]

    def _seed(self, *of: str | int) -> int:
        name = "/".join(map(str, (self.site.seed, *of))).encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "little") >> 1

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def _versions(said: Generation) -> list[str]:
    return sorted({span.version for span in said.spans})


def _is_of(said: Generation, version: int) -> bool:
    """Whether all of it was sampled by this version, and to its end."""
    return said.finish_reason.type != "abort" and all(name.rpartition(".")[2] == str(version) for name in _versions(said))


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values.tolist()]
