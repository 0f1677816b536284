from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from train_cases import Objective, make_rows
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from operators.loss import ppo_clip
from rlflow.engines.train.forward import PolicyOutput, predicting
from rlflow.engines.train.torch import TorchEngine
from rlflow.errors import EngineError

LENGTHS = (9, 4, 2, 7, 9, 3)


def test_S2_slice_of_a_prompt_of_3_and_a_response_of_4() -> None:
    logits = torch.arange(7.0).reshape(1, 7, 1)
    assert predicting(logits, 4).flatten().tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(("length", "positions", "expected"), [(2, 1, [0]), (5, 4, [0, 1, 2, 3]), (3, 0, [])])
def test_slice_is_minus_r_minus_1_to_minus_1(length: int, positions: int, expected: list[int]) -> None:
    assert predicting(torch.arange(float(length)).reshape(1, length), positions).flatten().tolist() == expected


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_equal_a_token_by_token_loop_over_unpadded_rows(policy_path: Path, temperature: float) -> None:
    rows = make_rows(LENGTHS)
    got = TorchEngine(policy_path, temperature=temperature).log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    model = AutoModelForCausalLM.from_pretrained(policy_path).eval()
    expected = torch.zeros(len(LENGTHS), max(LENGTHS) - 1)
    for i, length in enumerate(LENGTHS):
        for t in range(length - 1):  # the model sees tokens 0 .. t only, and is asked for token t + 1
            with torch.no_grad():
                last = model(input_ids=rows.input_ids[i : i + 1, : t + 1]).logits[0, -1] / temperature
            expected[i, t] = torch.distributions.Categorical(logits=last).log_prob(rows.input_ids[i, t + 1])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert got[2].tolist() == [got[2, 0].item()] + [0.0] * 7  # R = 1: one number, then padding


def test_rows_of_two_tokens_alone(policy_path: Path) -> None:
    rows = make_rows((2, 2), prompt=1).take([0, 1])
    assert TorchEngine(policy_path).log_probs(rows.input_ids, rows.position_ids, rows.attention_mask).shape == (2, 1)


def test_S6_an_end_token_that_is_also_the_pad_is_scored(policy_path: Path) -> None:
    """What is inside a row is said by its length, never by `ids != pad`."""
    ids, mask = torch.tensor([[5, 6, 0, 0, 0]]), torch.tensor([[True, True, True, False, False]])
    got = TorchEngine(policy_path).log_probs(ids, torch.arange(5)[None] * mask, mask)
    assert (got != 0).tolist() == [[True, True, False, False]]


def test_values_are_those_of_the_state_before_the_next_token(critic_path: Path) -> None:
    rows = make_rows(LENGTHS)
    got = TorchEngine(critic_path, kind="critic").values(rows.input_ids, rows.position_ids, rows.attention_mask)
    model = AutoModelForTokenClassification.from_pretrained(critic_path, num_labels=1).eval()
    for i, length in enumerate(LENGTHS):
        for t in range(length - 1):
            with torch.no_grad():
                state = model(input_ids=rows.input_ids[i : i + 1, : t + 1]).logits[0, -1, 0]
            assert got[i, t].item() == pytest.approx(state.item(), abs=1e-5)
        assert got[i, length - 1 :].abs().sum() == 0


def test_log_probs_do_not_depend_on_micro_batches_or_padding(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    wide = rows.take(range(len(LENGTHS)), width=14)
    big = TorchEngine(policy_path, dtype="float64").log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    small = TorchEngine(policy_path, dtype="float64", max_tokens=10).log_probs(wide.input_ids, wide.position_ids, wide.attention_mask)
    assert torch.equal(small[:, 8:], torch.zeros(len(LENGTHS), 5))
    torch.testing.assert_close(small[:, :8], big, rtol=1e-6, atol=1e-7)


def test_V13_log_prob_at_the_sampling_temperature() -> None:
    logits, label = torch.tensor([[[2.0, 0.0, -1.0]]]), torch.tensor([[0]])
    assert PolicyOutput(logits, label).log_probs.item() == pytest.approx(-0.1698, abs=1e-4)
    assert PolicyOutput(logits / 0.6, label).log_probs.item() == pytest.approx(-0.0415, abs=1e-4)


def test_entropy_equals_that_of_the_distribution() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    forward = PolicyOutput(logits, torch.zeros(2, 3, dtype=torch.long))
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(forward.measured_entropy(), expected)
    assert not forward.measured_entropy().requires_grad
    torch.testing.assert_close(forward.entropy, expected)
    (mine,) = torch.autograd.grad(forward.entropy.sum(), logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(mine, theirs)


def test_measured_entropy_leaves_the_gradient_of_log_probs_alone() -> None:
    logits = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    forward = PolicyOutput(logits, torch.zeros(1, 2, dtype=torch.long))
    forward.measured_entropy()
    (mine,) = torch.autograd.grad(forward.log_probs.sum(), logits)
    (theirs,) = torch.autograd.grad(logits.log_softmax(-1)[..., 0].sum(), logits)
    torch.testing.assert_close(mine, theirs)


def test_mask_with_a_hole_is_refused(policy_path: Path) -> None:
    rows = make_rows((4, 4)).take([0, 1])
    holed = rows.attention_mask.clone()
    holed[1, 1] = False
    with pytest.raises(EngineError, match="attention_mask of row 1"):
        TorchEngine(policy_path).log_probs(rows.input_ids, rows.position_ids, holed)


def test_non_finite_log_probs_name_the_rows(policy_path: Path) -> None:
    engine = TorchEngine(policy_path)
    dict(engine.named_tensors())["lm_head.weight"][3] = float("nan")
    rows = make_rows((4, 5))
    with pytest.raises(EngineError, match=r"log-probs of row\(s\) 1, 0 are not finite"):
        engine.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)


def test_a_critic_has_no_log_probs(critic_path: Path) -> None:
    ids = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(EngineError, match="log_probs is of a policy, this engine holds a critic"):
        TorchEngine(critic_path, kind="critic").log_probs(ids, ids, torch.ones(1, 2, dtype=torch.bool))


def test_pads_of_position_zero_are_not_taken_for_packed_sequences(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causality alone hides right pads: a mask of [b, S, S] would be built in vain, and would choose another attention kernel."""
    rows = make_rows((6, 3))
    seen: list[tuple[bool, bool]] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(*given: Any, attn_mask: Any = None, is_causal: bool = False, **more: Any) -> torch.Tensor:
        seen.append((attn_mask is None, is_causal))
        return attend(*given, attn_mask=attn_mask, is_causal=is_causal, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    TorchEngine(policy_path).train(Objective((ppo_clip(),), ((rows.take([0, 1]),),)))
    assert seen == [(True, True)] * 2
