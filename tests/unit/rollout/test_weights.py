"""Names, shapes and tied parameters of an update, on a model in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlflow.engines.rollout.checksum import tensor_checksum
from rlflow.engines.rollout.embedded.weights import Weights
from rlflow.errors import EngineError


def model(*, tied: bool) -> Any:
    config = LlamaConfig(
        vocab_size=10,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).requires_grad_(False)


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def test_tied_names_are_one_parameter() -> None:
    made = model(tied=True)
    weights = Weights(made)
    assert weights.tied == {HEAD: EMBED}
    weights.check({HEAD: torch.ones(10, 8)})
    weights.write({HEAD: torch.ones(10, 8)})
    assert made.model.embed_tokens.weight.eq(1).all()
    sums = weights.checksums()
    assert sums[HEAD] == sums[EMBED] == tensor_checksum(torch.ones(10, 8))


def test_untied_names_are_two() -> None:
    assert Weights(model(tied=False)).tied == {}


def test_tied_weights_survive_release_and_resume() -> None:
    made = model(tied=True)
    weights = Weights(made)
    weights.release()
    assert weights.nbytes == 0
    weights.resume()
    assert not weights.usable
    weights.write({name: torch.full(shape, 2.0) for name, shape in weights.shapes.items()})
    assert weights.usable
    assert made.lm_head.weight.eq(2).all()


def test_a_release_needs_every_parameter_again() -> None:
    weights = Weights(model(tied=False))
    weights.release()
    weights.resume()
    weights.write({name: torch.zeros(shape) for name, shape in weights.shapes.items() if name != HEAD})
    assert weights.missing == {HEAD}


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("nope", (1,), "no parameter 'nope'"), (HEAD, (8, 10), r"'lm_head.weight' has shape \(10, 8\), but the update brings \(8, 10\)")],
)
def test_a_wrong_update_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        Weights(model(tied=False)).check({name: torch.zeros(shape)})


def test_released_weights_take_no_update() -> None:
    weights = Weights(model(tied=False))
    weights.release()
    with pytest.raises(EngineError, match="released"):
        weights.check({HEAD: torch.zeros(10, 8)})


def test_the_checksum_sees_values_shape_and_dtype_but_not_strides() -> None:
    t = torch.arange(6.0).view(2, 3)
    assert tensor_checksum(t) == tensor_checksum(t.T.contiguous().T)
    different = [t + 1, t.view(3, 2), t.to(torch.float64), -t]
    assert len({tensor_checksum(x) for x in (t, *different)}) == 5


def test_the_checksum_reads_half_precision_and_scalars() -> None:
    assert tensor_checksum(torch.ones(3, dtype=torch.bfloat16)) != tensor_checksum(torch.ones(3, dtype=torch.float16))
    assert len(tensor_checksum(torch.tensor(1.0))) == 16
