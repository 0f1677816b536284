"""Workers that train or score on torch engines, one process a dp rank. An operator's body is its only implementation.

Torch         trains a policy:  load, log_probs, train
TorchCritic   trains a critic:  load, values, train
TorchTeacher  a frozen model to learn from:  load, log_probs
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rlflow import Devices, Frozen, Move, Next, Objective, Site, State, Weights, Worker, dims, operator
from rlflow.errors import EngineError, UsageError

from .fields import (
    AttentionMask,
    Critic,
    InputIds,
    LogProbs,
    Policy,
    PositionIds,
    RankCount,
    Teacher,
    TeacherLogProbs,
    TokenCount,
    Values,
)
from .models import TINY, model_folder, tokenizer_of
from .records import CriticForward, ModelRows, PolicyForward

if TYPE_CHECKING:
    import torch

    from rlflow.engines.train.torch import TorchEngine

N, DP = dims("N DP")  # parameters, data-parallel ranks

ModelRowsT = TypeVar("ModelRowsT", bound=ModelRows)


class _Trainer(Worker):
    """What policy and critic have in common: a torch engine, one process a dp rank.

    lr: of AdamW, after `warmup_steps`. max_tokens: of a micro-batch when scoring, pads included. packed: rows of a micro-batch run end to
    end, as one sequence without padding; the gradient is the same.
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
        packed: bool = False,
        threads: int = 1,
        on: Devices | None = None,
    ) -> None:
        super().__init__(name, dp=dp, temperature=temperature, on=on)
        self.model, self.max_tokens, self.packed, self.threads = model, max_tokens, packed, threads
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
            packed=self.packed,
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
    """A frozen model whose log-probs are learned from (distillation); never trained, so its optimizer stays empty.

    learner: the model that learns from it, and must have its tokens; "" where that is not checked.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str = TINY,
        learner: str = "",
        dp: RankCount = 1,
        temperature: float = 1.0,
        max_tokens: TokenCount = 16_384,
        packed: bool = False,
        threads: int = 1,
        on: Devices | None = None,
    ) -> None:
        super().__init__(name, model=model, dp=dp, temperature=temperature, max_tokens=max_tokens, threads=threads, on=on)
        self.learner = learner

    def open(self, site: Site) -> None:
        folder = model_folder(self.model, site)
        if self.learner and tokenizer_of(str(folder)).get_vocab() != tokenizer_of(self.learner).get_vocab():
            raise UsageError(
                f"`{self.name}` ({self.model}) has other tokens than {self.learner!r}, which is to learn from it: "
                "log-probs of one token would be those of another; give a teacher with the same tokenizer"
            )
        super().open(site)

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
