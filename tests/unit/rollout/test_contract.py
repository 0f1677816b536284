"""Bodies of /generate → what is sampled. (The refusals are in tests/real/rollout/test_refusals.py.)"""

from __future__ import annotations

import json
from typing import Any

from rlflow.engines.rollout.embedded.contract import Limits, Prompt, parse_generate

LIMITS = Limits(vocab_size=50, context_length=200, max_total_tokens=500, eos_ids=(2,), tokenizer=None)


def parse(**body: Any) -> tuple[list[Prompt], bool]:
    prompts, _, is_list = parse_generate(json.dumps(body).encode(), LIMITS, 77)
    return prompts, is_list


def sampling(**params: Any) -> Any:
    return parse(input_ids=[5], sampling_params=params)[0][0].sampling


def test_the_defaults_are_sglangs() -> None:
    s = sampling()
    assert (s.max_new_tokens, s.min_new_tokens, s.temperature, s.greedy) == (128, 0, 1.0, False)
    assert (s.top_p, s.top_k, s.min_p, s.stop_ids, s.stop_text, s.seed) == (1.0, 0, 0.0, (2,), (), 77)


def test_temperature_0_is_greedy_at_temperature_1() -> None:
    assert (sampling(temperature=0).greedy, sampling(temperature=0).temperature) == (True, 1.0)


def test_ignore_eos_keeps_the_given_stop_ids() -> None:
    assert sampling(ignore_eos=True, stop_token_ids=[7]).stop_ids == (7,)
    assert sampling(stop_token_ids=[7, 2]).stop_ids == (2, 7)


def test_top_k_over_the_vocabulary_or_minus_1_is_all() -> None:
    assert (sampling(top_k=-1).top_k, sampling(top_k=1 << 30).top_k, sampling(top_k=49).top_k) == (0, 0, 49)


def test_one_prompt_or_a_batch() -> None:
    assert [(len(p), is_list) for p, is_list in (parse(input_ids=[5, 6]), parse(input_ids=[[5, 6]]), parse(input_ids=[[5], [6]]))] == [
        (1, False),
        (1, True),
        (2, True),
    ]


def test_a_batch_takes_one_set_of_parameters_or_one_each() -> None:
    both = parse(input_ids=[[5], [6]], sampling_params={"max_new_tokens": 3})[0]
    each = parse(input_ids=[[5], [6]], sampling_params=[{"max_new_tokens": 3}, {"max_new_tokens": 4}])[0]
    assert [p.sampling.max_new_tokens for p in both + each] == [3, 3, 3, 4]


def test_ids_are_echoed_numbered_or_made() -> None:
    assert [p.rid for p in parse(input_ids=[5], rid="a")[0]] == ["a"]
    assert [p.rid for p in parse(input_ids=[[5], [6]], rid="a")[0]] == ["a_0", "a_1"]
    assert [p.rid for p in parse(input_ids=[[5], [6]], rid=["x", "y"])[0]] == ["x", "y"]
    assert len({p.rid for p in parse(input_ids=[[5], [6]])[0]}) == 2


def test_prompts_of_one_batch_have_seeds_of_their_own() -> None:
    assert len({p.sampling.seed for p in parse(input_ids=[[5], [5], [5]])[0]}) == 3


def test_samples_of_one_seeded_prompt_have_seeds_of_their_own() -> None:
    def seeds() -> list[int]:
        return [p.sampling.seed for p in parse(input_ids=[5], sampling_params={"n": 3, "sampling_seed": 4})[0]]

    assert seeds()[0] == 4
    assert len(set(seeds())) == 3
    assert seeds() == seeds()


def test_negative_and_huge_seeds_are_taken_modulo_2_64() -> None:
    assert (sampling(sampling_seed=-1).seed, sampling(sampling_seed=2**64 - 1).seed) == (2**64 - 1, 2**64 - 1)


def test_prompt_logprobs_need_both_keys() -> None:
    asked = [parse(input_ids=[5], return_logprob=r, logprob_start_len=s)[0][0].prompt_logprobs for r in (True, False) for s in (0, -1)]
    assert asked == [True, False, False, False]
