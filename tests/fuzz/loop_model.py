"""What the generator knows of a loop: a small syntax, the kinds of fields, which rows they are about. It knows nothing of the compiler.

Program ── Line ── Call ── Arg ── Column | Whole | Weights | Raw | Call         render() → text, and where each line stands

Kind     dtype, axes and role of a field, by the name that the tables below use
Op       an operator's parameters, by hand: parameter → kind
Rows     which rows a field is about, and how they came from others
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class Kind(NamedTuple):
    dtype: str
    axes: str  # "B", "BS", "BR": R = S - 1
    role: str  # "reward(raw)"; "log_prob" alone takes any


KINDS: dict[str, Kind] = {
    "prompt_ids": Kind("i64", "PQ", "tokens"),
    "prompt_uid": Kind("i64", "P", "group"),
    "prompt_answer": Kind("text", "P", "answer"),
    "template": Kind("text", "P", "template"),
    "uid": Kind("i64", "B", "group"),
    "traj_uid": Kind("i64", "B", "member(trajectory)"),
    "leaf": Kind("i64", "B", "member(leaf)"),
    "version_tag": Kind("i64", "B", "member(version)"),
    "is_pad": Kind("flag", "B", "mask(pad)"),
    "is_truncated": Kind("flag", "B", "truncated"),
    "input_ids": Kind("i64", "BS", "tokens"),
    "attention_mask": Kind("flag", "BS", "mask(attention)"),
    "position_ids": Kind("i64", "BS", "position"),
    "responses": Kind("i64", "BR", "tokens"),
    "response_mask": Kind("flag", "BR", "mask(response)"),
    "token_versions": Kind("i32", "BR", "member(token_version)"),
    "log_probs": Kind("f32", "BR", "log_prob"),
    "rollout_log_probs": Kind("f32", "BR", "log_prob(served)"),
    "old_log_probs": Kind("f32", "BR", "log_prob(current)"),
    "ref_log_probs": Kind("f32", "BR", "log_prob(frozen)"),
    "scores": Kind("f32", "BR", "reward(raw)"),
    "rewards": Kind("f32", "BR", "reward(shaped)"),
    "dense_scores": Kind("f32", "BS", "reward(raw)"),
    "is_correct": Kind("f32", "B", "reward(raw)"),
    "advantages": Kind("f32", "BR", "advantage"),
    "returns": Kind("f32", "BR", "returns"),
    "values": Kind("f32", "BR", "value"),
    "quality": Kind("f32", "B", "quality"),
    "token_weights": Kind("f32", "BR", "weight"),
    "response_text": Kind("text", "B", "response"),
    "answer": Kind("text", "B", "answer"),
}


def accepts(wanted: str, given: str) -> bool:
    """A field of kind `given` fits a parameter of kind `wanted`."""
    want, got = KINDS[wanted], KINDS[given]
    role = want.role == got.role or ("(" not in want.role and want.role == got.role.partition("(")[0])
    return want[:2] == got[:2] and role


SAMPLE = {  # each of the kind of its name
    name: name
    for name in (
        *("input_ids", "attention_mask", "position_ids", "responses", "response_mask", "rollout_log_probs", "token_versions"),
        *("uid", "traj_uid", "leaf", "version_tag", "is_pad", "is_truncated", "response_text", "answer"),
    )
}
SCORES = {"token_level_scores": "scores", "is_correct": "is_correct"}
ADVANTAGE = {"advantages": "advantages", "returns": "returns"}


@dataclass(frozen=True)
class Op:
    """An operator as the generator knows it. takes: parameter → kind; gives: field → kind, or the kind of the one result."""

    name: str
    takes: dict[str, str]
    gives: dict[str, str] | str | None
    per: str = "row"
    optional: tuple[str, ...] = ()  # parameters of `takes` by keyword only


def _verifier(name: str) -> Op:
    return Op(name, {"response_text": "response_text", "answer": "answer", "response_mask": "response_mask"}, SCORES)


def _estimator(name: str, optional: tuple[str, ...] = ()) -> Op:
    takes = {"token_level_rewards": "rewards", "response_mask": "response_mask", "uid": "uid"}
    return Op(name, takes | dict.fromkeys(optional, "traj_uid"), ADVANTAGE, "group", optional)


WEIGHED = {name: name for name in ("advantages", "old_log_probs", "rollout_log_probs", "response_mask")}
CORRECTIONS = ("truncated_importance", "importance_weighted", "self_normalized_importance")
MODEL_INPUTS = {"input_ids": "input_ids", "position_ids": "position_ids", "attention_mask": "attention_mask"}
OPS: dict[str, Op] = {
    op.name: op
    for op in (
        _verifier("integer_match"),
        _verifier("exact_match"),
        _verifier("number_match"),
        Op("shape_rewards", {"token_level_scores": "scores"}, "rewards"),
        Op("length_penalty", {"token_level_scores": "scores", "response_mask": "response_mask"}, "rewards"),
        _estimator("grpo", ("traj_uid",)),
        _estimator("rloo", ("traj_uid",)),
        _estimator("rank_advantage"),
        Op("gae", {"token_level_rewards": "rewards", "values": "values", "response_mask": "response_mask"}, ADVANTAGE, "batch"),
        Op("truncated_importance", WEIGHED, "advantages"),
        Op("importance_weighted", WEIGHED, "advantages"),
        Op("self_normalized_importance", WEIGHED, "advantages", "batch"),
        Op("anchor_on_rollout", {"rollout_log_probs": "rollout_log_probs"}, "old_log_probs"),
        Op("log_probs", MODEL_INPUTS, "log_probs"),
        Op("values", MODEL_INPUTS, "values"),
        Op("fluency", {"response_text": "response_text"}, "quality"),
        Op("length_of", {"response_mask": "response_mask"}, "quality"),
        Op("grade", {"response_text": "response_text", "answer": "answer"}, "quality"),
        Op("rank_quality", {"quality": "quality", "uid": "uid"}, "quality", "group"),
        Op("add_quality", {"token_level_rewards": "rewards", "quality": "quality", "response_mask": "response_mask"}, "rewards"),
        Op("token_weights", {"log_probs": "log_probs", "response_mask": "response_mask"}, "token_weights"),
        Op("weigh", {"advantages": "advantages", "weights": "token_weights"}, "advantages"),
        Op("whiten", {"advantages": "advantages", "response_mask": "response_mask"}, "advantages", "batch"),
        Op("dense_scores", {"input_ids": "input_ids", "attention_mask": "attention_mask"}, "dense_scores"),
        Op("shift", {"scores": "dense_scores", "response_mask": "response_mask"}, "scores"),
        Op("merge_scores", {"one": "scores", "two": "scores"}, "scores"),
        Op(
            "kl_in_reward",
            {
                "token_level_rewards": "rewards",
                "old_log_probs": "old_log_probs",
                "ref_log_probs": "ref_log_probs",
                "response_mask": "response_mask",
            },
            "rewards",
        ),
        Op("report", {"scores": "is_correct", "uid": "uid"}, None, "batch"),
        Op("report_log_probs", {"log_probs": "log_probs", "response_mask": "response_mask"}, None),
        Op("keep_mixed", {"token_level_scores": "scores", "uid": "uid"}, None, "group"),
        Op("keep_good", {"quality": "quality", "uid": "uid"}, None, "group"),
        Op("drop_easy", {"template": "template"}, None),
    )
}

RECORDS: dict[str, dict[str, str]] = {  # records that a TrainRows is made of: field → kind
    "ModelRows": {name: name for name in ("input_ids", "position_ids", "response_mask", "is_pad")},
    "PpoRows": {name: name for name in ("old_log_probs", "advantages", "response_mask")},
    "KlRows": {"ref_log_probs": "ref_log_probs", "response_mask": "response_mask"},
    "ValueRows": {"values": "values", "returns": "returns", "response_mask": "response_mask"},
    "TeacherRows": {"teacher_log_probs": "ref_log_probs", "response_mask": "response_mask"},
    "WeightRows": {"token_weights": "token_weights"},
    "UidRows": {"uid": "uid"},
    "ScoreRows": {"token_level_scores": "scores"},
    "QualityRows": {"quality": "quality"},
}


# --- rows ---------------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Rows:
    """Which rows. size: None where only the run knows it."""

    scope: str  # stream | batch | shard | micro
    how: str = "fresh"  # the row operator that made them of `parent`
    parent: Rows | None = None
    size: int | None = None
    multiple: int = 1

    def lineage(self) -> Iterator[Rows]:
        rows: Rows | None = self
        while rows is not None:
            yield rows
            rows = rows.parent


ROW_OPERATORS = ("form", "filter", "permute", "pad", "shard", "pack")


def parted(one: Rows, two: Rows) -> str:
    """The code for two fields on different rows: the first row operator that one went through and the other did not."""
    for old, new in ((one, two), (two, one)):
        chain = list(new.lineage())
        if old in chain:
            return "RLF521" if chain[chain.index(old) - 1].how in ROW_OPERATORS else "RLF520"
    return "RLF520"


# --- syntax -------------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Column:
    """A field, as the program writes it: `ready.uid`."""

    text: str
    kind: str
    rows: Rows

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False)
class Whole:
    """A record, as the program writes it."""

    text: str
    fields: dict[str, Column]
    rows: Rows

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False)
class Weights:
    """A set of weights: `policy.current`, `reference.load()`."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False)
class Raw:
    """A number, a worker, an objective."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False)
class Call:
    """`fn(a, b, k=c)`. takes: parameter → kind, of the parameters that are fields."""

    fn: str
    args: list[Arg]
    takes: dict[str, str] = field(default_factory=dict[str, str])
    per: str = "row"
    is_record: bool = False

    def __str__(self) -> str:
        return f"{self.fn}({', '.join(map(str, self.args))})"

    def arg(self, param: str) -> Arg:
        return next(arg for arg in self.args if arg.param == param)


Expr: TypeAlias = Column | Whole | Weights | Raw | Call


@dataclass(eq=False)
class Arg:
    param: str
    value: Expr
    keyword: bool = False

    def __str__(self) -> str:
        return f"{self.param}={self.value}" if self.keyword else str(self.value)


@dataclass(eq=False)
class Line:
    """One statement. what: its part in the loop ("shard", "close:policy", "old" ...). makes: the columns that it names.

    Of a record to train on, reads: the fields that the losses and the forward read; readers: the training calls.
    """

    what: str
    call: Call
    target: str | None = None
    makes: list[Column] = field(default_factory=list[Column])
    text: str | None = None  # instead of the call
    reads: set[str] = field(default_factory=set[str])
    readers: list[Line] = field(default_factory=list["Line"])

    def __str__(self) -> str:
        written = self.text if self.text is not None else str(self.call)
        return written if self.target is None else f"{self.target} = {written}"


@dataclass(eq=False)
class Program:
    """A pipeline file."""

    records: dict[str, list[str]]  # class → bases
    body: list[Line]
    helper: tuple[Line, Line] | None = None  # first and last line of what is moved into a function of its own
    wrapped: set[str] = field(default_factory=set[str])  # targets of calls written one argument a line

    def line(self, what: str) -> Line:
        return next(line for line in self.body if line.what == what)

    def lines(self, what: str) -> list[Line]:
        return [line for line in self.body if line.what == what]

    def columns_before(self, line: Line) -> list[Column]:
        """What a line could be given: of a name that is given away again, the latest."""
        return list({c.text: c for earlier in self.body[: self.body.index(line)] for c in earlier.makes}.values())


# --- text ---------------------------------------------------------------------------------------------------------------
HEAD = """\
from loop_operators import *
from operators.advantage import gae, grpo, rloo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.environment import HigherLower
from operators.filters import keep_mixed
from operators.loss import entropy_bonus, kl_penalty, ppo_clip, value_clip
from operators.mismatch import anchor_on_rollout, importance_weighted, self_normalized_importance, truncated_importance
from operators.records import KlRows, ModelRows, PpoRows, Sample, ValueRows
from operators.reward import exact_match, integer_match, length_penalty, number_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.shaping import kl_in_reward
from operators.sync import sync
from operators.trainers import Torch, TorchCritic
from rlflow import Feedback, absent, pipeline
"""


class Rendered(NamedTuple):
    text: str
    places: dict[int, range]  # id() of a line → the numbers of its lines


def render(program: Program) -> Rendered:
    """The file, and where each line of the program stands in it."""
    out, places = HEAD.splitlines(), dict[int, range]()
    for name, bases in program.records.items():
        out += ["", "", f"class {name}({', '.join(bases)}):", '    """Fields that travel together."""']
    inside: list[Line] = []
    if program.helper is not None:
        first, last = (program.body.index(line) for line in program.helper)
        inside = program.body[first : last + 1]
        needs, gives = _free(program, inside)
        out += ["", "", f"def helper({', '.join(needs)}):"]
        for line in inside:
            _write(out, places, line, program)
        out += [f"    return {', '.join(gives)}" if gives else "    return None"]
    out += ["", "", "@pipeline", "def loop():"]
    for line in program.body:
        if line in inside:
            if line is inside[0]:
                needs, gives = _free(program, inside)
                out.append("    " + (f"{', '.join(gives)} = " if gives else "") + f"helper({', '.join(needs)})")
            continue
        _write(out, places, line, program)
    return Rendered("\n".join(out) + "\n", places)


def _write(out: list[str], places: dict[int, range], line: Line, program: Program) -> None:
    start, text = len(out) + 1, str(line)
    if line.text is None and line.target in program.wrapped and all(arg.keyword for arg in line.call.args):
        out += [f"    {line.target} = {line.call.fn}(", *(f"        {arg}," for arg in line.call.args), "    )"]
    else:
        out += [f"    {part}" for part in text.splitlines()]
    places[id(line)] = range(start, len(out) + 1)


def names_in(text: str) -> list[str]:
    """Names that a piece of the program reads."""
    return [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]


def _free(program: Program, inside: list[Line]) -> tuple[list[str], list[str]]:
    """Variables that these lines take from before, and those that they leave to what comes after."""
    before = _targets(program.body[: program.body.index(inside[0])])
    own, needs = list[str](), dict[str, None]()
    for line in inside:
        needs |= dict.fromkeys(name for name in names_in(str(line)) if name in before and name not in own)
        own += _targets([line])
    after = {name for line in program.body[program.body.index(inside[-1]) + 1 :] for name in names_in(str(line))}
    return list(needs), [name for name in dict.fromkeys(own) if name in after]


def _targets(lines: list[Line]) -> list[str]:
    return [name.strip() for line in lines if line.target is not None for name in line.target.split(",")]
