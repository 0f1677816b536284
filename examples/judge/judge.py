"""GRPO whose reward is part rule, part judge: a frozen language model that is asked whether an answer is right.

... form batch → integer_match, judge.judge → mix → shape_rewards → advantage ...
"""

from functools import partial
from typing import Annotated, TypeAlias

from operators.encoding import encode
from operators.fields import Answer, B, Policy, ResponseMask, ResponseText, TokenScores, reward
from operators.models import tokenizer_of
from operators.records import Scores
from operators.reward import integer_match
from operators.trainers import Torch
from pipelines.grpo import grpo
from rlflow import Frozen, Plan, Tensor, f32, operator

JudgeScores: TypeAlias = Annotated[Tensor, f32[B], reward("judged")]  # the new field


class Judge(Torch):
    """A model of its own that says how likely an answer is right, by what it would say next."""

    @operator(per="row")
    def judge(self, model: Frozen[Policy], response_text: ResponseText, answer: Answer) -> JudgeScores:
        """P(yes) / (P(yes) + P(no)) after the question, f32[B] in 0 .. 1."""
        asked = [f"is {said} the same as {right}? " for said, right in zip(response_text, answer, strict=True)]
        return (self._log_prob(model, asked, "yes") - self._log_prob(model, asked, "no")).sigmoid()

    def _log_prob(self, model: Frozen[Policy], asked: list[str], verdict: str) -> Tensor:
        import torch

        tokenizer = tokenizer_of(self.model)
        rows = [torch.tensor(encode(tokenizer, question + verdict)) for question in asked]
        start = torch.tensor([len(encode(tokenizer, question)) for question in asked])
        input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        attention_mask = position_ids < torch.tensor([len(row) for row in rows])[:, None]
        scored = self.log_probs(model, input_ids, position_ids * attention_mask, attention_mask)
        return scored.where(position_ids[:, 1:] >= start[:, None], 0.0).sum(-1)


@operator(per="row")
def mix(token_level_scores: TokenScores, judge_scores: JudgeScores, response_mask: ResponseMask, *, share: float) -> TokenScores:
    """`share` of the judge and the rest of the rule, at the last trained token: f32[B, R]."""
    last = response_mask & (response_mask.flip(-1).cumsum(-1).flip(-1) == 1)
    return (1 - share) * token_level_scores + share * judge_scores[:, None] * last


def judged(response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, share: float = 0.3, model: str = "tiny") -> Scores:
    """No operator: a function of operators, which the trace goes through."""
    judge, rule = Judge("judge", model=model), integer_match(response_text, answer, response_mask)
    judge_scores = judge.judge(judge.load(), response_text, answer)
    return Scores(token_level_scores=mix(rule.token_level_scores, judge_scores, response_mask, share=share), is_correct=rule.is_correct)


def grpo_judged(prompts: int = 32, group_size: int = 8, share: float = 0.3, judge_model: str = "tiny") -> Plan:
    """Held-out prompts are judged by the rule alone."""
    reward = partial(judged, share=share, model=judge_model)
    return grpo(prompts=prompts, group_size=group_size, reward=reward, held_out=integer_match)
