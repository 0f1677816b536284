"""How many versions a trained row can be behind, and which watermarks and queues keep that within `max_lag`.

    P prompts a batch · n trajectories a prompt · L max_lag · s prompts oversampled
    W trajectories in flight · Q batches formed ahead of the one in training

    published v ──W in flight──▶ landed ──▶ formed: v … v + Q ──▶ trained as batch b        gap = b - v

The controller registers a group only while a batch that it may still train in has a seat (run/controller/admission.py), and forms a batch
only if those left behind keep theirs. So the gap is never above L, whatever W and Q; and it comes to L as soon as one step of training
takes longer than L·P prompts of rollout. W and Q ask for a lag of their own, which admission would never let come true:

    W trajectories of one version, n·s of them to spare, fill ⌈(W - n·s) / (n·P)⌉ batches; the last is trained that less one versions later
    a queue is full when v + Q is formed of rows of version v

      n = 8, P = 32, L = 1: W = 512 asks for a lag of 1, W = 513 for one of 2
"""

from __future__ import annotations

from math import prod

from ..language.diagnostic import Diagnostic, Label
from ..language.source import argument_place
from ..language.stale import STALE
from .facts import Facts, Gap
from .ir import Feedback, Graph, Node


def asked_lag(*, watermark: int, batch: int, queue: int) -> int:
    """Versions that rows would lag if the schedule came true. watermark, batch: trajectories; queue: batches."""
    return max(-(-watermark // batch) - 1, queue)


def highest_watermark(*, max_lag: int, batch: int, spare: int = 0) -> int:
    """Trajectories that admission lets in at once: n · (L + 1) · P + n · s. spare: n · s, the oversampled trajectories."""
    return batch * (max_lag + 1) + spare


def gaps_of(graph: Graph, facts: Facts, *, watermark: int = 0, queue: int = 0, oversample: int = 0) -> dict[int, Gap]:
    """Of each feedback. watermark: 0 is as many as admission lets in. A feedback that no batch is sampled from never lags.

    One schedule serves all that are sampled from: the smallest max_lag, the strictest policy.
    """
    found: dict[int, Gap] = {}
    forms = {feedback.id: form for feedback in graph.feedbacks if (form := _form(graph, facts, feedback))}
    bound = min((graph.feedbacks[sampled].max_lag for sampled in forms), default=0)
    stale = STALE[min((STALE.index(graph.feedbacks[sampled].stale) for sampled in forms), default=0)]
    for feedback in graph.feedbacks:
        form = forms.get(feedback.id)
        if form is None:
            found[feedback.id] = Gap(worst=0)
            continue
        prompts, group = form.params["prompts"], _group(graph, facts, form)
        in_flight = watermark or highest_watermark(max_lag=bound, batch=prompts * group, spare=group * oversample)
        found[feedback.id] = Gap(
            worst=bound, prompts=prompts, group=group, watermark=in_flight, queue=queue, oversample=oversample, stale=stale
        )
    return found


def _form(graph: Graph, facts: Facts, feedback: Feedback) -> Node | None:
    """The call that forms the batch out of what these weights sampled."""
    served = (feedback.name, "served")
    forms = (node for node in graph.nodes if node.rows == "form" and not node.failed)
    return next((n for n in forms if any(served in facts.versions.get(u.field, ()) for u in n.uses)), None)


def _group(graph: Graph, facts: Facts, form: Node) -> int:
    """Trajectories a prompt: what the calls that make several rows out of one were told."""
    rows = next((found for use in form.uses if (found := facts.rows_of(use.field))), None)
    makers = (graph.nodes[node] for node in facts.makers(rows))
    return prod(n for maker in makers if maker.rows == "expand" for n in maker.bound.values())


# --- refused ------------------------------------------------------------------------------------------------------------------------
def refused(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """The schedules in `facts.gaps` that ask for more lag than a feedback allows, or hold less than a group. One a feedback."""
    found = [_refused(graph, facts, graph.feedbacks[feedback], gap) for feedback, gap in facts.gaps.items() if gap.watermark]
    return [why for why in found if why]


def _refused(graph: Graph, facts: Facts, feedback: Feedback, gap: Gap) -> Diagnostic | None:
    batch, form = gap.prompts * gap.group, _form(graph, facts, feedback)
    spare = gap.group * gap.oversample
    highest = highest_watermark(max_lag=gap.worst, batch=batch, spare=spare)
    asked = asked_lag(watermark=gap.watermark - spare, batch=batch, queue=gap.queue)
    legal = f"{gap.group} to {highest} are legal: `--watermark {gap.group if gap.watermark < gap.group else highest}`"
    if gap.watermark < gap.group:
        message = f"a watermark of {gap.watermark} never holds a whole group of `{feedback.name}`"
        note, help = f"a group is {gap.group} trajectories, a batch {gap.prompts} groups", legal
    elif gap.queue > gap.worst:
        message = f"a queue of {gap.queue} batches lets rows of `{feedback.name}` lag {asked} versions, max_lag is {gap.worst}"
        note = f"the last batch ahead would be trained {gap.queue} versions after its rows were sampled"
        help = f"0 to {gap.worst} are legal: `--queue {gap.worst}`, or `max_lag={asked}`"
    elif gap.watermark > highest:
        message = f"a watermark of {gap.watermark} lets rows of `{feedback.name}` lag {asked} versions, max_lag is {gap.worst}"
        note = f"{gap.watermark} trajectories of one version fill ⌈{gap.watermark} / {batch}⌉ = {asked + 1} batches, one a version"
        help = f"{legal}, or `max_lag={asked}`"
    else:
        return None
    rows = f"{gap.prompts} prompts × {gap.group} = {batch} trajectories"
    return Diagnostic(
        code="RLF308",
        message=message,
        where=argument_place(feedback.at, "max_lag") or feedback.at,
        label=f"max_lag={feedback.max_lag}",
        related=(Label(form.at, f"a batch is {rows}"),) if form else (),
        notes=(note,),
        help=help,
    )
