"""Every code, once: what it says, and why that is bad in RL. `rlflow explain RLF202` prints an entry with its programs.

0xx build and names · 1xx dtype, shape, role, rows · 2xx ownership and lifetime · 3xx cycles and versions · 5xx row discipline
The programs are tests/messages/rlf202_*.py: one mistake each, the exact message, and the program without it.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    title: str
    why: str


CODES: dict[str, Code] = {
    # --- build and names
    "RLF001": Code(
        "a record has no such field",
        (
            "A misspelt field would be an error deep in a worker, an hour into the run, or a silently missing input of a loss. The "
            "near miss and the whole list are in the message."
        ),
    ),
    "RLF002": Code(
        "a parameter has no field type",
        "Without dtype, shape and role nothing about the value can be checked, and no worker knows how to cut or pad it.",
    ),
    "RLF003": Code(
        "a name is taken",
        (
            "Checkpoints, metrics and processes are keyed by the names of workers and feedbacks. With two of one name a resume "
            "would load the weights of one into the other."
        ),
    ),
    "RLF004": Code(
        "a call does not bind",
        "An argument is missing, misspelt or given twice. Python would raise the same, but only inside the worker.",
    ),
    "RLF005": Code(
        "not a field",
        (
            "The parameter is a field of the graph and got something else: a number, a record, micro-batches. A constant in place "
            "of log-probs trains, on a ratio that means nothing."
        ),
    ),
    "RLF006": Code(
        "a branch on a field",
        (
            "The pipeline function runs once, to build the graph. A field has no value then: the branch would be taken one way for "
            "the whole run. Variants are branches on parameters; rows are dropped by a filter."
        ),
    ),
    "RLF007": Code(
        "a computation on a field",
        (
            "Arithmetic in the pipeline function belongs to no process, so no worker could run it. An operator has a place, a type "
            "and a test."
        ),
    ),
    "RLF008": Code(
        "nothing makes a field that is read",
        (
            "A flag switched its producer off and its reader on. Other frameworks fill in zeros here: a KL penalty against zeros "
            "pulls the policy towards a uniform distribution."
        ),
    ),
    "RLF009": Code(
        "a replacement does not fit",
        (
            "A replacement is bound by parameter name. It may need fewer fields than the call gives, never more; and what the "
            "pipeline reads of the result must be there."
        ),
    ),
    "RLF010": Code(
        "configuration that is not plain data",
        (
            "Workers are rebuilt from the plan in processes of their own, and a resumed run compares its plan with the old one. "
            "Neither works with an object that has no written form."
        ),
    ),
    "RLF011": Code(
        "training without a loss",
        "The step would run the forward pass, find no gradient and count as trained.",
    ),
    "RLF012": Code(
        "a type that does not exist at run time",
        (
            "The signature is the contract that is checked. A name that is imported for type checkers only cannot be read when the "
            "pipeline is traced."
        ),
    ),
    "RLF013": Code(
        "a declaration that does not fit",
        (
            "The compiler and the run time read some parameters by name (`multiple` of a pad, `on` of a shard, `prompts` of a "
            "form). It is refused where the operator is written."
        ),
    ),
    "RLF014": Code(
        "one field, two meanings",
        (
            "Losses are combined by inheriting their records. If two of them mean different things by one name, one of the losses "
            "would read the other's numbers."
        ),
    ),
    "RLF015": Code(
        "a number that counts nothing",
        (
            "A batch of 0 prompts, 0 data-parallel ranks, a negative lag: no rows can be planned with it. It is refused where it is "
            "given, not by a division by zero an hour later."
        ),
    ),
    # --- dtype, shape, role, rows
    "RLF101": Code(
        "wrong dtype",
        "A mask read as rewards, or ids as log-probs: arithmetic on it works and means nothing.",
    ),
    "RLF102": Code(
        "wrong number of axes",
        (
            "A value a row broadcasts against values a token. Every token then gets the whole reward of its row, so long answers "
            "count for more."
        ),
    ),
    "RLF103": Code(
        "wrong size",
        (
            "A next-token field has R = S - 1 positions: the log-prob of token t + 1 stands at t. Off by one, every advantage meets "
            "the log-prob of its neighbour. Training goes on, a little worse."
        ),
    ),
    "RLF110": Code(
        "nothing binds a size",
        "The result has a size that no argument tells and no `sizes=` declares, so nothing that reads it can be checked.",
    ),
    "RLF121": Code(
        "wrong role",
        (
            "Dtype and shape agree, the meaning does not: log-probs of other weights, raw rewards for shaped ones. The first is the "
            "classic silent fault of PPO: the ratio starts at something else than 1."
        ),
    ),
    "RLF122": Code(
        "two arguments look swapped",
        (
            "Each has the role that the other is asked for. With old and reference log-probs exchanged the clip is around the "
            "reference and the penalty pulls towards the last step."
        ),
    ),
    "RLF123": Code(
        "two temperatures meet",
        ("Log-probs at temperature 0.6 and at 1.0 differ where the weights are equal. Their ratio corrects for a gap that is not there."),
    ),
    "RLF131": Code(
        "the whole batch meets a part of it",
        (
            "After sharding a rank holds other rows. Row i of the batch is not row i of the shard: each row trains on the reward of "
            "a stranger."
        ),
    ),
    "RLF132": Code(
        "the stream meets the batch",
        "A batch is formed of whole ready groups, oldest first. Rows of the stream and rows of the batch do not pair up.",
    ),
    # --- ownership and lifetime
    "RLF201": Code(
        "two writers of one feedback",
        "Which of the two next versions the engines get would depend on timing; the other update is lost.",
    ),
    "RLF202": Code(
        "weights are read after they were moved",
        (
            "`.move` hands version k over and leaves k + 1 in its place. Old log-probs computed after the update are those of the "
            "new policy: the first ratio is not 1, and clipping holds back the wrong tokens."
        ),
    ),
    "RLF203": Code(
        "a worker does not hold these weights",
        (
            "Only the worker that loaded the first version has the current one. Elsewhere the call would score with whatever is in "
            "memory, usually the first checkpoint."
        ),
    ),
    "RLF204": Code(
        "wrong reading of the weights",
        (
            "`.current`, `.served`, `.move` and the next version are four different things in time. A rollout that follows the "
            "trainer's own copy changes weights in the middle of an answer."
        ),
    ),
    "RLF210": Code(
        "nothing reads a result (a warning)",
        (
            "The call is dropped from the plan: nothing is computed that nobody reads. It is told because a penalty that was "
            "written and never trained on looks exactly like this."
        ),
    ),
    # --- cycles and versions
    "RLF301": Code(
        "a feedback is never closed",
        "Every step would start from version 0 again: the loop runs, the reward does not move.",
    ),
    "RLF302": Code(
        "a feedback is closed with another's weights",
        "The next version of one model would become the current one of another.",
    ),
    "RLF303": Code(
        "a feedback is closed twice",
        "One step makes one next version; which of two the engines get would depend on timing.",
    ),
    "RLF304": Code(
        "nothing brings new versions to a worker",
        (
            "An engine that no sync reaches samples from version 0 for ever. The reward curve is flat, or drifts as the ratio "
            "leaves 1; nothing fails."
        ),
    ),
    "RLF307": Code(
        "lag that nothing corrects",
        (
            "With max_lag above 0 rows are sampled by an older policy than the one that old log-probs are computed with. The ratio "
            "is then anchored to a policy that never sampled these tokens: a biased gradient."
        ),
    ),
    # --- row discipline
    "RLF501": Code(
        "a group operator after groups were split",
        (
            "A baseline is the mean over the members of a group. After sharding it is the mean of those that happen to be on this "
            "rank: noise of the size of the advantage."
        ),
    ),
    "RLF502": Code(
        "row operators in the wrong order",
        (
            "stream → form → pad → rebalance → shard → micro-batches. Reordering a shard as if it were the batch moves rows between "
            "ranks that only one of them knows of."
        ),
    ),
    "RLF503": Code(
        "a filter after the batch was formed",
        (
            "Dropped groups leave empty seats: as the policy learns, more groups are all right or all wrong, and the batch shrinks "
            "with it. Before form_batch what is dropped is refilled (dynamic sampling)."
        ),
    ),
    "RLF510": Code(
        "rows that do not divide",
        (
            "Data-parallel ranks must make the same number of calls. A rank with a row more waits in a collective for ever, or a "
            "framework drops the remainder silently."
        ),
    ),
    "RLF520": Code(
        "unrelated rows",
        "Two sets of rollouts of one size line up by number only.",
    ),
    "RLF521": Code(
        "a field did not pass the filter",
        (
            "The filter kept some rows of the record. A field outside of it still has all: row i of one is another trajectory than "
            "row i of the other."
        ),
    ),
    "RLF522": Code(
        "another order of rows",
        "Sizes agree after a reordering, so nothing crashes: each row trains on the advantage of a stranger.",
    ),
    "RLF523": Code(
        "pad rows are missing",
        "The padded record has rows more than the field: the last ones meet nothing, or wrap around.",
    ),
}
