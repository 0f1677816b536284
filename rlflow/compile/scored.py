"""Log-probs that meet are of one policy and of one distribution; and what is trained is what was sampled.

    scored       field of log-probs → whose, at which reading, temperature, top-p, by which engine
    corrected    field → the differences that were accounted for on the way to it (`corrects=`)

A call in which log-probs differ must say that it corrects for that difference. A training call computes log-probs itself, of
the weights that it takes: those that its losses read meet them. A frozen model's (a reference, a teacher) are another policy's on purpose.

    engine, T = 0.7 ── samples ──▶ rows ──▶ actor, T = 1.0: old and new log-probs

There no log-probs differ, and the ratio of the actor's starts at 1; but it is the policy at 1.0 that is pushed towards what the
policy at 0.7 said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..language.corrects import DIFFERENCES
from ..language.diagnostic import Diagnostic, Label
from ..language.spec import LOG_PROB
from .facts import Facts, Scored
from .ir import Feedback, Graph, Node, Use, Worker

OF_FEEDBACK = ("served", "current", "move", "next")  # readings whose policy changes; any other detail of a log-prob is another's on purpose
DISTRIBUTION = ("temperature", "top_p")
Unequal = tuple[str, float, float]  # ("temperature", 0.6, 1.0)


# --- facts ------------------------------------------------------------------------------------------------------------------------
def of_result(graph: Graph, facts: Facts, node: Node) -> Scored | None:
    """Of log-probs that a node makes: of the weights that it is given; of an operator without, as the log-probs that it is given.

    None for a call of two policies, a game of self-play: each token is of one of them, and only the rows know of which.
    """
    if node.worker is None or not node.weights:
        given = [facts.scored[use.field] for use in node.uses if use.field in facts.scored]
        return given[0] if given else None
    trained = [w for w in node.weights if w.feedback is not None] or list(node.weights)
    if len({w.feedback for w in trained}) > 1:
        return None
    weights, worker = trained[0], graph.workers[node.worker]
    whose = graph.workers[weights.owner].name if weights.feedback is None else graph.feedbacks[weights.feedback].name
    return Scored(whose, weights.reading, worker.temperature, worker.top_p, worker.kind, worker.id)


def corrected_by(facts: Facts, node: Node) -> tuple[str, ...]:
    """What the results of a node account for: what it corrects itself, and what its inputs do."""
    found = set(node.corrects).union(*(facts.corrected.get(use.field, ()) for use in node.uses))
    return tuple(one for one in DIFFERENCES if one in found)


def trains(graph: Graph, node: Node) -> Feedback | None:
    """The feedback of the policy that a call trains: its losses read log-probs of the training forward. None for a critic's.

    A call that trains without losses of ours does it for a policy if it reads log-probs itself.
    """
    moved = next((w.feedback for w in node.weights if w.reading == "move" and w.feedback is not None), None)
    if moved is None:
        return None
    scores = any(loss.scores and loss.active for loss in node.losses) if node.losses else any(map(_of_log_probs, node.uses))
    return graph.feedbacks[moved] if scores else None


def _of_log_probs(use: Use) -> bool:
    return use.read and use.declared is not None and use.declared.role is not None and use.declared.role.kind == LOG_PROB


def allowed(facts: Facts, node: Node, uses: Sequence[Use]) -> set[str]:
    """The differences that are accounted for where these fields meet."""
    return set(node.corrects).union(*(loss.corrects for loss in node.losses), *(facts.corrected.get(use.field, ()) for use in uses))


# --- log-probs that meet ------------------------------------------------------------------------------------------------------------
class _Given(NamedTuple):
    use: Use
    scored: Scored
    meant: bool  # another policy's on purpose


def meet(graph: Graph, facts: Facts, node: Node, uses: list[Use], told: set[Unequal]) -> dict[str, Diagnostic]:
    """Log-probs that a call reads, against the first of them; in a training call against its own. Refused ones by parameter.

    told: what earlier calls were refused for; two temperatures are one mistake, wherever their log-probs meet.
    """
    given = [_Given(use, facts.scored[use.field], _meant(use)) for use in uses if use.field in facts.scored and use.read]
    if node.is_record or not given:
        return {}
    first, found = given[0], dict[str, Diagnostic]()
    for one in given[1:]:
        why = _difference(graph, first.scored, one.scored, allowed(facts, node, (first.use, one.use)), first.meant or one.meant)
        if why and not _told(told, why, first.scored, one.scored):
            right, wrong = (one, first) if why == "policy" and _samples(graph, facts, one) else (first, one)
            found[wrong.use.param] = _refused(graph, node, why, right, wrong)
    feedback = trains(graph, node)
    if found or feedback is None or node.worker is None:
        return found
    worker = graph.workers[node.worker]
    own = Scored(feedback.name, "current", worker.temperature, worker.top_p, worker.kind, worker.id)
    for one in given:
        why = _difference(graph, own, one.scored, allowed(facts, node, (one.use,)), one.meant)
        if why and not _told(told, why, own, one.scored):
            found[one.use.param] = _foreign(graph, node, why, own, one)
    return found


def _told(told: set[Unequal], why: str, one: Scored, two: Scored) -> bool:
    """True from the second time on."""
    if why not in DISTRIBUTION:
        return False
    low, high = sorted((getattr(one, why), getattr(two, why)))
    known = (why, low, high) in told
    told.add((why, low, high))
    return known


def _samples(graph: Graph, facts: Facts, given: _Given) -> bool:
    """The policy that these log-probs are of sampled the rows: it is the other log-probs that are out of place."""
    sampler = sampler_of(graph, facts, given.use.field)
    return sampler is not None and any(w.name == given.scored.whose for w in sampler.weights)


def _meant(use: Use) -> bool:
    role = use.declared.role if use.declared else None
    return role is not None and role.detail is not None and role.detail not in OF_FEEDBACK


def _difference(graph: Graph, one: Scored, two: Scored, corrects: set[str], meant: bool) -> str | None:
    """The first difference that nothing accounts for. Of a lag the version pass tells, with the engines that come with it."""
    trained = one.reading in OF_FEEDBACK and two.reading in OF_FEEDBACK
    if one.whose != two.whose and trained and not meant and "policy" not in corrects:
        return "policy"
    for name in DISTRIBUTION:
        if getattr(one, name) != getattr(two, name) and name not in corrects:
            return name
    lags = one.reading != two.reading and "version" not in corrects and any(f.name == one.whose and f.max_lag for f in graph.feedbacks)
    if one.whose == two.whose and one.engine != two.engine and trained and not lags and "engine" not in corrects:
        return "engine"
    return None


def _said(why: str, scored: Scored) -> tuple[str, str]:
    """How a difference reads in a sentence: "log-probs at temperature 0.6"."""
    return {
        "policy": ("of", f"`{scored.whose}`"),
        "temperature": ("at temperature", str(scored.temperature)),
        "top_p": ("at top-p", str(scored.top_p)),
        "engine": ("by", scored.engine),
    }[why]


def _refused(graph: Graph, node: Node, why: str, first: _Given, one: _Given) -> Diagnostic:
    (by, this), (_, other) = _said(why, one.scored), _said(why, first.scored)
    name, name_first = (graph.fields[given.use.field].name for given in (one, first))
    workers = [graph.workers[given.scored.worker] for given in (first, one)]
    return Diagnostic(
        code="RLF124" if why == "policy" else "RLF123",
        message=f"log-probs {by} {this} and {other} meet in `{node.title}`",
        where=one.use.at,
        label=f"`{name}` is {by} {this}",
        related=(Label(first.use.at, f"`{name_first}` is {by} {other}"), *_set_there(why, workers)),
        notes=(NOTES[why],),
        help=_help(node, why, [worker.name for worker in workers], first.scored.whose),
    )


def _foreign(graph: Graph, node: Node, why: str, own: Scored, one: _Given) -> Diagnostic:
    (by, this), (_, trained) = _said(why, one.scored), _said(why, own)
    name, maker = graph.fields[one.use.field].name, graph.nodes[graph.origin(one.use.field).node]
    workers = [graph.workers[scored.worker] for scored in (own, one.scored)]
    return Diagnostic(
        code="RLF124" if why == "policy" else "RLF123",
        message=f"`{node.title}` computes log-probs {by} {trained} and reads `{name}` {by} {this}",
        where=one.use.at,
        label=f"`{name}` is {by} {this}",
        related=(Label(maker.at, "made here"), *_set_there(why, workers)),
        notes=(NOTES[why],),
        help=_help(node, why, [worker.name for worker in workers], own.whose),
    )


def _set_there(why: str, workers: Sequence[Worker]) -> tuple[Label, ...]:
    """Where two workers got their temperatures, or top-p."""
    if why not in DISTRIBUTION:
        return ()
    return tuple(Label(worker.at, f"`{worker.name}` is at {why.replace('_', '-')} {getattr(worker, why)}") for worker in workers)


def _help(node: Node, why: str, workers: list[str], whose: str) -> str:
    if why in DISTRIBUTION:
        return f"give {' and '.join(f'`{name}`' for name in dict.fromkeys(workers))} the same {why.replace('_', '-')}"
    says = "the loss" if node.losses else f"`{node.title}`"
    meant = f'if {says} is made for this, let it say so: `corrects=("{why}",)`'
    return f"pass log-probs of `{whose}`; {meant}" if why == "policy" else f"score the rows on one of them; {meant}"


NOTES = {
    "policy": "the ratio of two policies is no importance weight: it starts anywhere, and clips by chance",
    "temperature": "a ratio of the two differs from 1 even when the weights are equal",
    "top_p": "a ratio of the two is the mass that top-p keeps, even when the weights are equal",
    "engine": "a rollout engine and a trainer round differently: a ratio of the two is not 1 even when the weights are equal",
}


# --- rows that were sampled ---------------------------------------------------------------------------------------------------------
def sampler_of(graph: Graph, facts: Facts, field: int) -> Node | None:
    """The call that sampled the rows of a field: the nearest one above that made rows with weights."""
    makers = (graph.nodes[node] for node in facts.makers(facts.rows_of(field)))
    return next((maker for maker in makers if any(w.reading in ("frozen", *OF_FEEDBACK) for w in maker.weights)), None)


def sampled_as_trained(graph: Graph, facts: Facts) -> Iterator[Diagnostic]:
    """The engine that samples rows does so at the temperature and top-p at which they are trained on. Once an engine."""
    told: set[int] = set()
    for node in graph.nodes:
        if (feedback := trains(graph, node)) is None:
            continue
        read = [use for use in node.uses if use.read]
        sampler = next((found for use in read if (found := sampler_of(graph, facts, use.field))), None)
        if sampler is None or sampler.worker is None or sampler.worker in told:
            continue
        owner, engine = graph.workers[feedback.owner], graph.workers[sampler.worker]
        accounted = allowed(facts, node, read)
        for why in DISTRIBUTION if "policy" not in accounted else ():  # rows of whom ever: of any temperature too
            if getattr(engine, why) != getattr(owner, why) and why not in accounted:
                told.add(engine.id)
                yield _sampled(feedback, sampler, engine, owner, why)


def _sampled(feedback: Feedback, sampler: Node, engine: Worker, owner: Worker, why: str) -> Diagnostic:
    name = why.replace("_", "-")
    sampled, trained = getattr(engine, why), getattr(owner, why)
    return Diagnostic(
        code="RLF123",
        message=f"`{engine.name}` samples `{feedback.name}` at {name} {sampled}, `{owner.name}` trains it at {trained}",
        where=sampler.at,
        label=f"sampled at {name} {sampled}",
        related=(
            Label(engine.at, f"`{engine.name}` is at {name} {sampled}"),
            Label(owner.at, f"`{owner.name}` is at {name} {trained}"),
        ),
        notes=("their ratio starts at 1 all the same: old and new log-probs are both of a policy that never sampled these rows",),
        help=f"give `{owner.name}` and `{engine.name}` the same {name}",
    )
