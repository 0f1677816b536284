from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from train_cases import Objective, make_rows
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen2Config, Qwen3Config

from operators.loss import ppo_clip
from rlflow.engines.train.torch import TorchEngine
from rlflow.engines.train.weights import checkpoint_tensors
from rlflow.errors import EngineError

SMALL: dict[str, Any] = {
    "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SMALL, tie_word_embeddings=False),
    "llama tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2 tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SMALL, tie_word_embeddings=False),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1, tie_word_embeddings=False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_names_and_tensors_are_what_save_pretrained_writes(name: str, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32).save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    mine = dict(checkpoint_tensors(AutoModelForCausalLM.from_pretrained(tmp_path)))
    assert mine.keys() == written.keys()
    assert all(torch.equal(mine[key], written[key]) for key in written)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in mine.values())


def test_tied_weights_travel_once_and_load_again(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(CONFIGS["llama tied"], dtype=torch.float32).save_pretrained(tmp_path / "a")
    engine = TorchEngine(tmp_path / "a", lr=0.1)
    assert "lm_head.weight" not in dict(engine.named_tensors())
    rows = make_rows((5, 7))
    engine.train(Objective((ppo_clip(),), ((rows.take([0, 1]),),)))
    engine.save(tmp_path / "b")
    expected = engine.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    assert torch.equal(TorchEngine(tmp_path / "b").log_probs(rows.input_ids, rows.position_ids, rows.attention_mask), expected)


def test_buckets_are_whole_tensors_within_the_bound(policy_path: Path) -> None:
    engine = TorchEngine(policy_path)
    sizes = {name: t.numel() * t.element_size() for name, t in engine.named_tensors()}
    bound = max(sizes.values()) + 1
    buckets = list(engine.buckets(bound))
    assert len(buckets) > 2
    assert [name for bucket in buckets for name in bucket] == sorted(sizes)
    assert all(sum(sizes[name] for name in bucket) <= bound for bucket in buckets)


def test_larger_tensor_travels_alone(policy_path: Path) -> None:
    assert all(len(bucket) == 1 for bucket in TorchEngine(policy_path).buckets(1))


def test_bucket_of_no_bytes_is_refused(policy_path: Path) -> None:
    with pytest.raises(EngineError, match="max_bytes is 0"):
        next(TorchEngine(policy_path).buckets(0))


def test_bucket_bytes_are_those_of_the_weights_held(policy_path: Path) -> None:
    engine = TorchEngine(policy_path, lr=0.1)
    rows = make_rows((5, 7))
    engine.train(Objective((ppo_clip(),), ((rows.take([0, 1]),),)))
    (bucket,) = engine.buckets(1 << 30)
    model: Any = engine._model
    assert torch.equal(bucket["model.layers.1.mlp.up_proj.weight"], model.model.layers[1].mlp.up_proj.weight)


def test_missing_weights_are_refused_not_drawn(policy_path: Path, tmp_path: Path) -> None:
    _copy_without(policy_path, tmp_path / "m", "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(EngineError, match=r"missing \['model.layers.1.mlp.up_proj.weight'\]"):
        TorchEngine(tmp_path / "m")


def test_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"has no config\.json"):
        TorchEngine(tmp_path)


def test_critic_from_a_policy_draws_its_head_from_the_seed_alone(policy_path: Path) -> None:
    rows = make_rows((5, 7))
    engines = []
    for noise, seed in ((1, 3), (2, 3), (2, 4)):
        torch.manual_seed(noise)
        engines.append(dict(TorchEngine(policy_path, kind="critic", seed=seed).named_tensors()))
    assert torch.equal(engines[0]["score.weight"], engines[1]["score.weight"])
    assert not torch.equal(engines[1]["score.weight"], engines[2]["score.weight"])
    with safe_open(policy_path / "model.safetensors", "pt") as written:
        assert torch.equal(engines[0]["model.layers.0.mlp.up_proj.weight"], written.get_tensor("model.layers.0.mlp.up_proj.weight"))
    values = TorchEngine(policy_path, kind="critic").values(rows.input_ids, rows.position_ids, rows.attention_mask)
    assert values.shape == (2, 6)


def test_loading_leaves_the_global_random_state_alone(policy_path: Path) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    TorchEngine(policy_path, kind="critic")
    assert torch.equal(torch.get_rng_state(), before)


def _copy_without(source: Path, target: Path, name: str) -> None:
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    del tensors[name]
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
