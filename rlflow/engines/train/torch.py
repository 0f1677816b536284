"""TorchEngine: one data-parallel rank, a whole replica of a Hugging Face model, on CPU or one GPU.

    TorchEngine(path)  version 0 ── train ──▶ 1 ── train ──▶ 2 ...        save at any version, restore goes on to the bit
                          │ log_probs / values: of the version held        buckets: weights of the version held

Parameters, gradients and moments are float32 (float64 with dtype="float64"); dtype="bfloat16" runs the model's matrix products
in bfloat16 over float32 parameters. The optimizer is made at the first step: an engine that only scores holds no moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rlflow.errors import EngineError

from . import checkpoint, weights
from .denominators import Counts, whole_counts
from .distributed import Ranks
from .filled import lacking
from .forward import critic_forward, policy_forward
from .model import Kind, load_model, quiet_transformers
from .optimizer import load_moments, make_adamw, moments
from .packed import PackedRows
from .protocol import ObjectiveLike, RowsLike
from .schedule import Schedule, learning_rate
from .scoring import ScoringRows, score
from .terms import Sums, loss_names, mean_metrics
from .update import Step, Updater

__all__ = ["DTypeName", "TorchEngine"]

DTypeName = Literal["float32", "float64", "bfloat16"]


class TorchEngine:
    """Scores and trains one replica. See `protocol.TrainEngine` for what the methods promise and who divides."""

    def __init__(
        self,
        model_path: str | Path,
        *,
        kind: Kind = "policy",
        lr: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
        warmup_steps: int = 0,
        schedule: Schedule = "constant",
        decay_steps: int = 0,
        temperature: float = 1.0,
        dtype: DTypeName = "float32",
        device: str = "cpu",
        max_tokens: int = 16_384,
        packed: bool = False,
        seed: int = 0,
        rank: int = 0,
        dp_size: int = 1,
        rendezvous: str = "",
        timeout_s: float = 600.0,
    ) -> None:
        """Load `model_path` and join the group of ranks.

        grad_clip: bound of the global gradient norm, 0 for none. temperature: of log-probs and entropy, as sampled. max_tokens: of a
        micro-batch when scoring, pads included. packed: rows of a micro-batch run end to end, as one sequence without padding, in
        training and scoring; losses see them so, and gradients are the same. seed: of a value head that the checkpoint lacks.
        rendezvous: `file:///...`, fresh, only read if dp_size > 1. timeout_s: bound of every wait for other ranks.
        """
        if not temperature > 0:
            raise EngineError(f"temperature is {temperature}; log-probabilities need one above 0 (greedy sampling has none)")
        if dtype not in ("float32", "float64", "bfloat16"):
            raise EngineError(f"dtype is {dtype!r}; use float32, float64 or bfloat16")
        learning_rate(warmup_steps, lr=lr, warmup_steps=warmup_steps, schedule=schedule, decay_steps=decay_steps)  # refuses bad options now
        self.kind: Kind = kind
        self.version = 0
        self.steps = 0  # optimizer steps made
        self._lr = {"lr": lr, "warmup_steps": warmup_steps, "schedule": schedule, "decay_steps": decay_steps}
        self._adamw = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        self._grad_clip, self._temperature, self._max_tokens, self._seed = grad_clip, temperature, max_tokens, seed
        self._packed = packed
        self._dtype = torch.float64 if dtype == "float64" else torch.float32
        self._autocast = torch.bfloat16 if dtype == "bfloat16" else None
        self._device = torch.device(device)
        self._path = Path(model_path)
        self._model = self._read_model(self._path)
        self._optimizer: torch.optim.AdamW | None = None
        self._ranks = Ranks(rank, dp_size, rendezvous=rendezvous, device=self._device, timeout_s=timeout_s)

    # --- scoring ----------------------------------------------------------------------------------------------------------------------
    def log_probs(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """f32[B, R], no gradient, of the weights held, at the engine's temperature: at t, of token t + 1; zero outside the row.

        input_ids, position_ids: i64[B, S], right-padded; attention_mask: flag[B, S], True on a row's tokens. Not collective.
        """
        self._need("policy", "log_probs")

        def forward(rows: ScoringRows | PackedRows) -> Tensor:
            return policy_forward(self._model, rows, temperature=self._temperature, autocast=self._autocast).log_probs

        return self._score(forward, input_ids, position_ids, attention_mask, "log-probs")

    def values(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """f32[B, R], no gradient: at t, the value of the state after token t, i.e. before token t + 1; zero outside the row."""
        self._need("critic", "values")

        def forward(rows: ScoringRows | PackedRows) -> Tensor:
            return critic_forward(self._model, rows, autocast=self._autocast).values

        return self._score(forward, input_ids, position_ids, attention_mask, "values")

    def _score(self, forward: Any, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, what: str) -> Tensor:
        given = (input_ids.to(self._device), position_ids.to(self._device), attention_mask.to(self._device))
        return score(forward, *given, max_tokens=self._max_tokens, what=what, packed=self._packed).to(input_ids.device)

    def _need(self, kind: Kind, method: str) -> None:
        if self.kind != kind:
            raise EngineError(f"{method} is of a {kind}, this engine holds a {self.kind}")

    # --- training ---------------------------------------------------------------------------------------------------------------------
    def train(self, objective: ObjectiveLike, *, updates: int = 1) -> dict[str, float]:
        """One optimizer step a mini-batch, `updates` times over all of them; version + 1. Collective.

        Rows may lack a field that the losses take from the forward (`Loss.from_forward`) where that is one optimizer step in all.
        Returns metrics, equal on all ranks and for every cut: `loss`, `LOSS/loss` and `LOSS/METRIC` of each loss, `entropy`, `grad_norm`
        (before clipping, mean over steps), `grad_norm_max`, `lr`, `tokens`, `rows`, `steps`.
        Raises EngineError on every rank, naming step, mini-batch and rows, if a loss or gradient is not finite: that step is not made.
        """
        losses = loss_names(loss for loss in objective.losses if loss.active)
        if not losses:
            raise EngineError("no loss is active: there is nothing to train; give train(...) a loss whose weight is not 0")
        counts = whole_counts(objective, losses.values(), self._ranks)
        filled = lacking(objective, losses.values(), updates=updates)
        updater = Updater(
            self._parameters(), self._adam(), self._forward, self._ranks, grad_clip=self._grad_clip, filled=filled, packed=self._packed
        )  # fmt: skip
        made: list[tuple[Step, Counts]] = []
        lr = self._rate()
        for update in range(updates):
            for j, minibatch in enumerate(objective.parts):
                lr = self._rate()
                place = f"version {self.version}, update {update}, mini-batch {j} of {len(counts)}, optimizer step {self.steps}"
                step = updater.step(self._here(minibatch), losses, counts[j], lr=lr, place=place)
                self.steps += step.grad_norm is not None
                made.append((step, counts[j]))
        self.version += 1
        sums: list[tuple[Sums, Counts]] = [(step.sums, count) for step, count in made]
        return {**mean_metrics(sums, losses), **_step_metrics(made), "lr": lr}

    def _forward(self, rows: RowsLike) -> Any:
        if self.kind == "critic":
            return critic_forward(self._model, rows, autocast=self._autocast)
        return policy_forward(self._model, rows, temperature=self._temperature, autocast=self._autocast)

    def _here(self, minibatch: Sequence[Any]) -> Sequence[Any]:
        """The rows on the engine's device, one micro-batch at a time; the fields are read as they are."""
        return minibatch if self._device.type == "cpu" else OneByOne(minibatch, self._device)

    def _rate(self) -> float:
        return learning_rate(self.steps, **self._lr)  # type: ignore[arg-type]

    def _parameters(self) -> list[Tensor]:
        return [p for p in self._model.parameters() if p.requires_grad]

    def _adam(self) -> torch.optim.AdamW:
        if self._optimizer is None:
            self._optimizer = make_adamw(self._parameters(), **self._adamw)  # type: ignore[arg-type]
        return self._optimizer

    # --- weights ----------------------------------------------------------------------------------------------------------------------
    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Weights under their checkpoint names (what `save_pretrained` would write: tied ones once); live until the next `train`."""
        return weights.checkpoint_tensors(self._model)

    def buckets(self, max_bytes: int) -> Iterator[dict[str, Tensor]]:
        """`named_tensors` in whole tensors, at most `max_bytes` together (a larger tensor travels alone). Not collective."""
        return weights.in_buckets(self.named_tensors(), max_bytes)

    def load(self, path: str | Path, *, version: int = 0) -> None:
        """Take the weights of another Hugging Face checkpoint; the optimizer and its steps start anew. Give every rank the same."""
        self._path = Path(path)
        self._model = self._read_model(self._path)
        self._optimizer, self.steps, self.version = None, 0, version

    def _read_model(self, path: Path) -> Any:
        return load_model(path, kind=self.kind, dtype=self._dtype, device=self._device, seed=self._seed)

    # --- checkpoints ------------------------------------------------------------------------------------------------------------------
    def save(self, path: str | Path) -> None:
        """Write model, tokenizer, moments, random states, steps and version; it appears in one rename. Collective: rank 0 writes."""
        states = self._ranks.gather(torch.get_rng_state(), "the random states for the checkpoint")
        failure: Exception | None = None
        if self._ranks.rank == 0:
            try:
                self._write(Path(path), states)
            except Exception as error:  # told to the other ranks, then raised
                failure = error
        told = self._ranks.exchange(None if failure is None else str(failure), f"the checkpoint {path}")
        if failure is not None:
            raise failure
        if told[0] is not None:
            raise EngineError(f"rank 0 could not write the checkpoint: {told[0]}")

    def _write(self, path: Path, states: list[Tensor]) -> None:
        named = dict(self._model.named_parameters())
        tensors = {"optimizer": moments(named, self._optimizer), "rng": {str(rank): state for rank, state in enumerate(states)}}
        state = {"version": self.version, "steps": self.steps, "kind": self.kind, "dp_size": self._ranks.size}

        def save_model(folder: Path) -> None:
            with quiet_transformers():
                self._model.save_pretrained(folder)
            checkpoint.copy_tokenizer(self._path, folder)

        checkpoint.write(path, save_model, tensors, state)

    def restore(self, path: str | Path) -> None:
        """Continue from what `save` wrote: the next steps are those of the run that saved, to the bit (for the same ranks and rows)."""
        tensors, state = checkpoint.read(Path(path))
        if state["kind"] != self.kind:
            raise EngineError(f"{path} is of a {state['kind']}, this engine is a {self.kind}")
        self.load(path, version=state["version"])
        self.steps = state["steps"]
        if tensors["optimizer"]:
            load_moments(dict(self._model.named_parameters()), self._adam(), tensors["optimizer"], steps=self.steps)
        rng = tensors["rng"].get(str(self._ranks.rank))
        if rng is not None:  # another dp_size has ranks that did not exist: they keep their own state
            torch.set_rng_state(rng)

    def close(self) -> None:
        """Leave the group of ranks. Harmless twice."""
        self._ranks.close()


class OneByOne(Sequence[Any]):
    """Micro-batches that are moved when they are taken: one that is let go of leaves the device before the next one comes."""

    def __init__(self, minibatch: Sequence[Any], device: torch.device) -> None:
        self._minibatch, self._device = minibatch, device

    def __len__(self) -> int:
        return len(self._minibatch)

    def __getitem__(self, i: Any) -> Any:
        return _OnDevice(self._minibatch[i], self._device)


class _OnDevice:
    """Rows whose tensors are moved when they are read."""

    def __init__(self, rows: Any, device: torch.device) -> None:
        self._rows, self._device, self._moved = rows, device, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        if name not in self._moved:
            value = getattr(self._rows, name)
            self._moved[name] = value.to(self._device) if isinstance(value, Tensor) else value
        return self._moved[name]


def _step_metrics(made: list[tuple[Step, Counts]]) -> dict[str, float]:
    norms = [step.grad_norm for step, _ in made if step.grad_norm is not None]
    return {
        "grad_norm": sum(norms) / max(len(norms), 1),
        "grad_norm_max": max(norms, default=0.0),
        "tokens": float(sum(counts["tokens"] for _, counts in made)),
        "rows": float(sum(counts["rows"] for _, counts in made)),
        "steps": float(len(norms)),
    }
