"""Auxiliary losses of a mixture of experts, on the real engine and a tiny Qwen3-MoE, against transformers' own load balancing loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from train_cases import VOCABULARY, Objective, Rows, make_rows
from transformers import AutoModelForCausalLM, Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from operators.loss import load_balancing, ppo_clip, router_z_loss
from rlflow.engines.train.denominators import whole_counts
from rlflow.engines.train.distributed import Ranks
from rlflow.engines.train.forward import policy_forward
from rlflow.engines.train.terms import loss_names
from rlflow.engines.train.torch import TorchEngine
from rlflow.engines.train.update import Updater
from rlflow.errors import UsageError

LENGTHS = (6, 9, 4, 8, 5)
EXPERTS, TOP_K = 4, 2


@pytest.fixture(scope="module")
def moe_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of four experts, two of them a token."""
    path = tmp_path_factory.mktemp("moe") / "model"
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=EXPERTS, num_experts_per_tok=TOP_K, initializer_range=0.2,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def rows_of(dtype: torch.dtype = torch.float64, pads: int = 0) -> Rows:
    return make_rows(LENGTHS, dtype=dtype, pads=pads)


def routed(path: Path, rows: Rows) -> tuple[Any, tuple[Tensor, ...], Tensor]:
    """transformers' own forward in float64: the model, the logits of each router [b · S, E], and the mask of trained positions."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, experts_implementation="eager").eval()
    ids, everything = rows.input_ids, torch.ones_like(rows.input_ids)
    output = model(input_ids=ids, attention_mask=everything, position_ids=rows.position_ids, output_router_logits=True)
    trained = torch.nn.functional.pad(rows.response_mask, (0, 1))  # position t predicts token t + 1; the last predicts none
    return model, output.router_logits, trained


def gradients(path: Path, losses: tuple[Any, ...], cut: tuple[Rows, ...]) -> dict[str, Tensor]:
    """What the engine's own update steps along."""
    engine = TorchEngine(path, dtype="float64")
    named = dict(engine._model.named_parameters())
    before = {name: p.detach().clone() for name, p in named.items()}
    ranks = Ranks(0, 1, rendezvous="", device=torch.device("cpu"), timeout_s=1)
    updater = Updater(list(named.values()), torch.optim.SGD(named.values(), lr=0.0), engine._forward, ranks, grad_clip=0)
    (counts,) = whole_counts(Objective(losses, (cut,)), losses, ranks)
    updater.step(cut, loss_names(losses), counts, lr=1.0, place="test")
    return {name: before[name] - p.detach() for name, p in named.items()}


def test_the_engine_yields_the_routers_logits_of_the_predicting_positions(moe_path: Path) -> None:
    rows = rows_of()
    forward = policy_forward(TorchEngine(moe_path, dtype="float64")._model, rows, temperature=1.0)
    _, logits, _ = routed(moe_path, rows)
    assert forward.experts_per_token == TOP_K
    assert len(forward.router_logits) == len(logits) == 2
    for mine, theirs in zip(forward.router_logits, logits, strict=True):
        torch.testing.assert_close(mine, theirs.unflatten(0, rows.input_ids.shape)[:, :-1])


def test_scoring_asks_for_no_router(moe_path: Path) -> None:
    with torch.no_grad():
        assert policy_forward(TorchEngine(moe_path)._model, rows_of(), temperature=1.0).router_logits == ()


def test_load_balancing_and_its_gradient_are_those_of_transformers_a_layer(moe_path: Path) -> None:
    rows = rows_of()
    model, logits, trained = routed(moe_path, rows)
    expected = sum(load_balancing_loss_func((layer,), EXPERTS, TOP_K, trained) for layer in logits) / 2
    expected.backward()
    metrics = TorchEngine(moe_path, dtype="float64").train(Objective((load_balancing(0.5),), ((rows,),)))
    assert metrics["load_balancing/loss"] == pytest.approx(0.5 * expected.item(), rel=1e-6)  # transformers adds up in float32
    assert metrics["load_balancing/unevenness"] == pytest.approx(expected.item(), rel=1e-6)
    mine = gradients(moe_path, (load_balancing(1.0),), (rows,))
    theirs = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert any("gate.weight" in name for name in theirs)
    for name, slope in theirs.items():
        torch.testing.assert_close(mine[name], slope, rtol=1e-4, atol=1e-7)


def test_load_balancing_of_one_layer_of_two_experts_by_hand() -> None:
    """The docstring's numbers; what a token outside the mask says does not count."""
    logits = torch.tensor([[[0.9, 0.1], [0.6, 0.4], [1e-9, 1.0]]], dtype=torch.float64).log().requires_grad_()
    forward: Any = type("Forward", (), {"router_logits": (logits,), "experts_per_token": 1})
    rows: Any = rows_record([[1, 1, 0]])
    terms = load_balancing(1.0)(forward, rows)
    assert terms.tolist() == [[pytest.approx(1.5), pytest.approx(1.5), 0.0]]
    (terms.sum() / 2).backward()
    # d(2 · mean p_0) / d logit_0 = p_0 p_1 a token, over two tokens, times 2
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [pytest.approx([0.09, -0.09]), pytest.approx([0.24, -0.24]), [0.0, 0.0]]


def test_router_z_loss_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0.0], [1.0, 2.0], [float("nan"), 9.0]]], dtype=torch.float64, requires_grad=True)
    forward: Any = type("Forward", (), {"router_logits": (logits,), "experts_per_token": 1})
    terms = router_z_loss(1.0)(forward, rows_record([[1, 1, 0]]))
    terms.sum().backward()
    assert terms[0].tolist() == pytest.approx([0.4804530, 5.3511796, 0.0])  # (log 2)², (2 + log(1 + 1/e))²
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [pytest.approx([0.6931472, 0.6931472]), pytest.approx([1.2442636, 3.3822597]), [0.0, 0.0]]


def rows_record(mask: list[list[int]]) -> Any:
    from operators.records import ModelRows

    of = torch.tensor(mask).bool()
    ids = torch.zeros(of.shape[0], of.shape[1] + 1, dtype=torch.long)
    return ModelRows(input_ids=ids, position_ids=ids, response_mask=of, is_pad=torch.zeros(len(of)).bool())


def test_load_balancing_is_even_at_k() -> None:
    even: Any = type("Forward", (), {"router_logits": (torch.eye(4).repeat(2, 1)[None] * 1e-3,), "experts_per_token": 1})
    assert load_balancing(1.0)(even, rows_record([[1] * 8]))[0].tolist() == pytest.approx([1.0] * 8)


def test_no_cut_changes_the_router_z_loss(moe_path: Path) -> None:
    rows = rows_of(pads=1)
    losses = (ppo_clip(), router_z_loss(0.1))
    full = gradients(moe_path, losses, (rows.take(range(5)),))
    cut = gradients(moe_path, losses, (rows.take([3, 5, 0]), rows.take([4], width=11), rows.take([2, 1])))
    difference = sum(float((full[k] - cut[k]).square().sum()) for k in full) / sum(float(full[k].square().sum()) for k in full)
    assert difference**0.5 <= 1e-12


def test_load_balancing_says_that_it_depends_on_the_cut(moe_path: Path) -> None:
    rows = rows_of()
    assert not load_balancing(1.0).split_invariant
    assert load_balancing(1.0).depends_on_cut == "the share of tokens that each expert gets is taken a micro-batch"
    assert router_z_loss(1.0).split_invariant
    full = gradients(moe_path, (load_balancing(1.0),), (rows,))
    cut = gradients(moe_path, (load_balancing(1.0),), tuple(rows.take([i]) for i in range(5)))
    assert any((full[name] - cut[name]).norm() > 1e-3 * full[name].norm() for name in full if "gate.weight" in name)


@pytest.mark.parametrize("loss", [load_balancing(0.1), router_z_loss(0.1)])
def test_a_model_without_experts_is_an_error_that_says_so(policy_path: Path, loss: Any) -> None:
    with pytest.raises(UsageError, match=f"{type(loss).__name__} reads the router's logits.*no mixture of experts.*leave this loss out"):
        TorchEngine(policy_path).train(Objective((ppo_clip(), loss), ((make_rows(LENGTHS),),)))


def test_experts_are_trained_with_the_policy(moe_path: Path) -> None:
    """The auxiliary loss evens out the load in a few steps, beside the policy loss."""
    rows = make_rows(LENGTHS)
    engine = TorchEngine(moe_path, lr=3e-2)
    seen = [engine.train(Objective((ppo_clip(), load_balancing(1.0)), ((rows,),)))["load_balancing/unevenness"] for _ in range(12)]
    assert min(seen[-3:]) < seen[0] - 0.3 * (seen[0] - TOP_K)
