"""Workers: what samples and what trains. An operator's body is its only implementation; it runs in the worker's own process.

Embedded      a rollout engine on this machine: an HTTP server (SGLang's contract) and the turn loop beside it
Torch         trains a policy:  load, log_probs, train
TorchCritic   trains a critic:  load, values, train
TorchTeacher  a frozen model to learn from:  load, log_probs
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from msgspec.structs import replace

from rlflow import Devices, Frozen, Move, Next, Objective, Served, Site, State, Weights, Worker, dims, fresh, operator
from rlflow.attempt import current
from rlflow.errors import EngineError

from .dialogue import DEFAULT_LIMITS, EnvironmentLimits
from .environment import Environment
from .evaluation import Answer, Exam, HeldOut, Item
from .fields import (
    AttentionMask,
    B,
    Critic,
    InputIds,
    LogProbs,
    Policy,
    PositionIds,
    RankCount,
    S,
    T,
    Teacher,
    TeacherLogProbs,
    TokenCount,
    TrajectoryCount,
    Values,
)
from .models import TINY, checkpoint_folder, context_of, model_folder, tiny_folder, tokenizer_of
from .records import CriticForward, EpisodeSample, ModelRows, PolicyForward, Prompts, Sample, Trajectories
from .reward import RewardFn
from .samples import Played, episodes_of, sample_of
from .turns import Ask, Course, Rules, TurnLoop

if TYPE_CHECKING:
    import torch

    from rlflow.engines.rollout import Generation, HttpRolloutClient, SamplingParams
    from rlflow.engines.train.torch import TorchEngine

N, DP, KV = dims("N DP KV")  # parameters, data-parallel ranks, bytes of keys and values

OF_PROMPT = {name: f"prompts.{name}" for name in ("uid", "traj_uid", "answer")}  # what a row keeps of its prompt, whoever samples
ModelRowsT = TypeVar("ModelRowsT", bound=ModelRows)


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
        self._client: HttpRolloutClient | None = None

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
        """The connection to the server; its address is known when the first call arrives."""
        from rlflow.engines.rollout import HttpRolloutClient

        if self._client is None or self._client.url != self.site.engine_url.rstrip("/"):
            self._client = HttpRolloutClient(self.site.engine_url, maxsize=self.capacity)
        return self._client

    def end_requests(self, request: str) -> None:
        self.client.abort(request, abort_all=not request)

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
        turn does not fit the model's context, ends there: the row keeps what was said until then, the log and the metric episodes/cut
        tell. Raises what `Dialogue` raises for an environment that misbehaves: it costs this trajectory.
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
        """The one place that asks the engine for a turn. prompt: how many of the tokens it is.

        Its spans name versions of the policy's timeline: another one breaks the contract.
        Raises EngineError naming the trajectory and how its prompt begins.
        """
        from rlflow.engines.rollout import EngineRefused

        attempt = current()
        try:
            with attempt.request() if attempt is not None else nullcontext() as rid:
                said = self.client.generate(course.history, drawn(course), rid)
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
        said = self.client.generate_batch([ids[item.row] for item in exam.items], drawn)
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


class _Trainer(Worker):
    """What policy and critic have in common: a torch engine, one process a dp rank.

    lr: of AdamW, after `warmup_steps`. max_tokens: padded tokens of a micro-batch when scoring.
    """

    kind = "policy"
    state = (
        State("weights", 4 * N),
        State("optimizer", 8 * N, trained=True),  # two moments of each parameter
        State("rng", 5056 * DP, trained=True),  # torch's generator, one a rank
        State("steps", 8, trained=True),  # of the optimizer: the learning rate follows them
        State("version", 8, trained=True),
        State("published", 4 * N, in_checkpoint=False, trained=True),  # a copy, for a sync that is repeated meanwhile
    )

    def __init__(
        self,
        name: str,
        *,
        model: str = TINY,
        dp: RankCount = 1,
        temperature: float = 1.0,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
        warmup_steps: int = 5,
        max_tokens: TokenCount = 16_384,
        threads: int = 1,
        on: Devices | None = None,
    ) -> None:
        super().__init__(name, dp=dp, temperature=temperature, on=on)
        self.model, self.max_tokens, self.threads = model, max_tokens, threads
        self.optimizer = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "grad_clip": grad_clip, "warmup_steps": warmup_steps}
        self._published: tuple[int, dict[str, torch.Tensor]] | None = None

    def open(self, site: Site) -> None:
        super().open(site)
        import torch

        from rlflow.engines.train.torch import TorchEngine

        torch.set_num_threads(self.threads)
        self.engine: TorchEngine = TorchEngine(
            model_folder(self.model, site, self.kind),  # type: ignore[arg-type]
            kind=self.kind,  # type: ignore[arg-type]
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=site.seed,
            rank=site.rank,
            dp_size=site.dp_size,
            rendezvous=site.rendezvous,
            **cast(Any, self.optimizer),
        )

    def close(self) -> None:
        self.engine.close()

    def save(self, path: Path) -> Collection[str]:
        from rlflow.engines.train import checkpoint

        self.engine.save(path)
        return checkpoint.contents(path)

    def restore(self, path: Path) -> None:
        self.engine.restore(path)
        self._published = None

    def published(self, version: int, bucket_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
        """The weights of `version`, in buckets. They are kept until the next version is trained, so a sync can be repeated.

        Raises EngineError if this worker no longer holds that version.
        """
        from rlflow.engines.train.weights import in_buckets

        held = self._published[0] if self._published else self.engine.version
        if held != version:
            raise EngineError(f"`{self.name}` holds version {held} of the weights, the sync asks for {version}")
        if self._published is None:
            yield from self.engine.buckets(bucket_bytes)
        else:
            yield from in_buckets(self._published[1].items(), bucket_bytes)

    def _update(self, objective: Objective[Any, Any], updates: int) -> int:
        self.measured = self.engine.train(objective, updates=updates)
        self._published = (self.engine.version, {name: tensor.detach().clone() for name, tensor in self.engine.named_tensors()})
        return self.engine.version


class Torch(_Trainer):
    """Trains a policy on this machine's processes, `dp` of them."""

    @operator(per="run")
    def load(self) -> Frozen[Policy]:
        """The weights that the worker was opened with: version 0."""
        return Frozen(self.name, "frozen", 0, self)

    @operator(per="row")
    def log_probs(
        self, weights: Weights[Policy], input_ids: InputIds, position_ids: PositionIds, attention_mask: AttentionMask
    ) -> LogProbs:
        """Log-prob of every next token under `weights`, in nats, at the worker's temperature: f32[B, R], 0 beyond a row's end."""
        return self.engine.log_probs(input_ids, position_ids, attention_mask)

    @operator(per="micro", from_forward="updates")
    def train(self, weights: Move[Policy], objective: Objective[PolicyForward, ModelRowsT], *, updates: int = 1) -> Next[Policy]:
        """One optimizer step a mini-batch, `updates` times over: takes version k, hands on k + 1."""
        return Next(self.name, "next", self._update(objective, updates), self)


class TorchTeacher(_Trainer):
    """A frozen model whose log-probs are learned from (distillation); never trained, so its optimizer stays empty."""

    @operator(per="run")
    def load(self) -> Frozen[Teacher]:
        """The weights that the worker was opened with, for good."""
        return Frozen(self.name, "frozen", 0, self)

    @operator(per="row")
    def log_probs(
        self, weights: Frozen[Teacher], input_ids: InputIds, position_ids: PositionIds, attention_mask: AttentionMask
    ) -> TeacherLogProbs:
        """What the teacher makes of every next token, in nats, at the worker's temperature: f32[B, R], 0 beyond a row's end."""
        return self.engine.log_probs(input_ids, position_ids, attention_mask)


class TorchCritic(_Trainer):
    """Trains a critic: the same trunk with one value a token."""

    kind = "critic"

    @operator(per="run")
    def load(self) -> Frozen[Critic]:
        """The weights that the worker was opened with: version 0."""
        return Frozen(self.name, "frozen", 0, self)

    @operator(per="row")
    def values(self, weights: Weights[Critic], input_ids: InputIds, position_ids: PositionIds, attention_mask: AttentionMask) -> Values:
        """The value before every next token: f32[B, R], 0 beyond a row's end."""
        return self.engine.values(input_ids, position_ids, attention_mask)

    @operator(per="micro", from_forward="updates")
    def train(self, weights: Move[Critic], objective: Objective[CriticForward, ModelRowsT], *, updates: int = 1) -> Next[Critic]:
        """One optimizer step a mini-batch, `updates` times over: takes version k, hands on k + 1."""
        return Next(self.name, "next", self._update(objective, updates), self)
