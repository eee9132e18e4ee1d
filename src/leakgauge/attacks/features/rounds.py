"""Runs of the network in a round of several steps, or in a sum of several clients', and the examples behind each."""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

from leakgauge.attacks.features.inversion import Residuals
from leakgauge.attacks.features.null_space import SpanOfRows
from leakgauge.attacks.features.read import HiddenRead, HiddenTensors, row_space
from leakgauge.attacks.features.signals import KnownInside, KnownTerm

FAR = 0.03  # most share by which what a tensor makes of the next may miss what was read
POWERS, ZOOMS = 10, 10  # of two, of a tensor's scale, that are tried each way, and how often steps are halved


@dataclass(frozen=True, eq=False)
class Link:
    """Which maps of a tensor go with which ones of another one that was read further behind."""

    exact: bool  # whether nothing else makes the tensor behind
    order: Int[Tensor, " k"]  # for each map in front, the one behind
    gaps: Float[Tensor, " k"]  # share of that one that the network at the broadcast weights does not make

    @staticmethod
    def of(hidden: HiddenTensors, front: HiddenRead, behind: HiddenRead) -> "Link":
        """By what the maps in front make, each run by itself, of the tensor behind. Where something else makes it too,
        maps differ in it from the others as they do in front."""
        exact, many = not hidden.inside.open(behind.hidden, [front.hidden]), len(front.runs)
        there = behind.layers[0].hidden_of(behind.maps).flatten(1)
        powers, alike = torch.zeros(many), torch.zeros(len(there), len(there), dtype=there.dtype)

        def tried(trial: Float[Tensor, " runs"]) -> None:
            """Keeps the scales at which a run makes what is more like what was read."""
            made = _made(hidden, front, behind.hidden, trial)
            ours, theirs = (F.normalize(t, dim=1) for t in (made, there))
            if not exact:  # what is each one's own
                ours, theirs = (F.normalize(t - t.mean(0), dim=1) for t in (ours, theirs))
            found = (ours @ theirs.T).nan_to_num()
            for k, run in enumerate(front.runs):
                if float(found[run].amax(1).sum()) > float(alike[run].amax(1).sum()):
                    alike[run], powers[k] = found[run], trial[k]

        for power in range(-POWERS, POWERS + 1):
            tried(torch.full((many,), float(power)))
        for zoom in range(1, ZOOMS):
            for step in (-(0.5**zoom), 0.5**zoom):
                tried(powers + step)
        order = torch.from_numpy(linear_sum_assignment(-alike.numpy())[1])
        return Link(exact, order, (1 - alike.gather(1, order[:, None])[:, 0].square()).clamp_min(0).sqrt())


def _made(
    hidden: HiddenTensors, front: HiddenRead, node: Node, powers: Float[Tensor, " runs"]
) -> Float[Tensor, "k numbers"]:
    """What each run makes of its maps times a power of two."""
    found = []
    for run, power in zip(front.runs, powers.tolist(), strict=True):
        inside = replace(hidden.inside, examples=len(run))
        given = {front.hidden: 2.0**power * front.layers[0].hidden_of(front.maps[run])}
        found.append(inside.run([node], given)[0].flatten(1))
    return torch.cat(found)[torch.cat(front.runs).argsort()]


def runs_of(hidden: HiddenTensors) -> list[Residuals]:
    """What is known of the examples of each run, of those first that were at the broadcast weights.

    A tensor of which nothing else makes the next one tells these: the network makes of it what was read there, where no
    step has changed its weights. Of later runs it makes what is near, by so much the network is another. The other
    tensors follow by what their maps are like.
    """
    reads = [one for one in hidden.reads if one.maps.shape[2] > 1]
    count = max((len(one.maps) for one in reads), default=0)
    reads = [one for one in reads if len(one.maps) == count]
    links = [Link.of(hidden, *pair) for pair in pairwise(reads)]
    exact = [k for k, link in enumerate(links) if link.exact]
    if not exact:
        return []
    start = min(exact, key=lambda k: float(links[k].gaps.median()))
    gaps, room, found = links[start].gaps, hidden.inside.examples, list[Residuals]()
    known = {read.hidden for read in reads}
    others = [one for one in hidden.inside.layers if one.hidden not in known and one.weight in hidden.gradients]
    spaces = [(one, row_space(one, hidden.gradients[one.weight], hidden.passes)) for one in others]
    told = tuple((one, space) for one, space in spaces if isinstance(space, SpanOfRows) and space.maps == count)
    for run in sorted(reads[start].runs, key=lambda run: float(gaps[run].max())):
        gap, inside = float(gaps[run].max()), replace(hidden.inside, examples=len(run))
        maps = _followed(reads, links, start, run)
        bare = KnownInside(inside)
        values = ((read.hidden, read.layers[0].hidden_of(read.maps[which])) for read, which in maps.items())
        terms = tuple(replace(KnownTerm.of(node, value, bare), free=True) for node, value in values)
        error = max([gap, *(read.error for read in maps if read.told)])  # of others the gap tells alone
        residuals = Residuals(inside, terms, {}, (), len(terms) * error**2, told)
        if gap < FAR and len(run) <= room and residuals.determined:
            found.append(residuals)
            room -= len(run)
    return found


def _followed(reads: list[HiddenRead], links: list[Link], start: int, run: Tensor) -> dict[HiddenRead, Tensor]:
    """The maps of one run in each tensor, as far as links lead to one run."""
    found, orders = {reads[start]: run}, [link.order for link in links]
    forwards = zip(reads[start + 1 :], orders[start:], strict=True)
    back = zip(reversed(reads[:start]), (order.argsort() for order in reversed(orders[:start])), strict=True)
    for way in (forwards, back):
        which = run
        for read, order in way:
            which = order[which]
            if not any(set(one.tolist()) == set(which.tolist()) for one in read.runs):
                break
            found[read] = which
    return found
