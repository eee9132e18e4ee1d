"""`RowSpace` with a certificate, where it may end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch

from leakgauge.attacks.closed_form import BatchRead
from leakgauge.attacks.matching import Cosine, Given
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.attacks.recipes.row_space import RowSpace
from leakgauge.compute import Budget, Compute
from leakgauge.observation import Cost, Observation, OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch
from leakgauge.tracing import input_layers, is_smooth

CLEAN = 1e-4
"""Singular values of the layer's gradient beyond the number of examples, in shares of the largest, above which noise
or rounding has filled its row space."""

ENOUGH = 60
"""Evaluations an example after which a start has mostly ended; fewer are not worth a second start."""


@ATTACKS.register(
    "span-read",
    needs="several examples; a linear layer on the input as wide as the batch; with kinks (ReLU), rows to start from",
)
@dataclass(frozen=True, kw_only=True)
class SpanRead:
    """`search` from one start after the other, until a simulated update proves what was found.

    A network with kinks is searched once, with the cosine, from what `BatchRead` makes of its rows: rows that several
    examples drive lie between them, so that it starts near, and in so few directions few kinks are met.

    Attributes:
        search: with one restart, its `restarts` are those tried here.
    """

    search: RowSpace = field(default_factory=lambda: RowSpace(restarts=2))

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """`EXACT` when certified; else the best that was found, and how much of the update it leaves unexplained."""
        observation = observation.view
        began = time.perf_counter()
        if why := self._refuses(observation, generator):
            return Reconstruction.not_applicable(why)
        count, search = observation.examples, self.search
        assert count is not None
        if not is_smooth(observation.task, generator):
            rows = BatchRead().reconstruct(observation, generator)
            if rows.inputs is None or rows.labels is None or len(rows.inputs) != count:
                return Reconstruction.not_applicable("the network has kinks, and no rows give this search a start")
            search = replace(search, objective=Cosine(), first=Given(rows.inputs), restarts=1)
            observation = replace(observation, knowledge=replace(observation.knowledge, labels=rows.labels))
        explainer = Explainer.of(observation, generator)
        price = (2 + count) * explainer.simulator.cost(count)
        best, least, spent = Reconstruction(None, None, Status.OUT_OF_BUDGET, "no budget for a search"), 1.0, 0
        for index in range(search.restarts):
            room = None if budget.gradient_evaluations is None else budget.gradient_evaluations - spent
            if room is not None:
                even = room // (search.restarts - index)
                room = min(room, max(even, ENOUGH * count)) - price
                if room < 10 * price:
                    break
            seconds = None if budget.seconds is None else budget.seconds - (time.perf_counter() - began)
            if seconds is not None and seconds <= 0:
                break
            found = replace(search, restarts=1).reconstruct(
                observation, generator, budget=Budget(room, seconds), compute=compute, on_step=on_step
            )
            spent += found.cost.gradient_evaluations
            if found.inputs is None or found.labels is None:
                best = found if best.inputs is None else best
                break
            batch, before = Batch(found.inputs, found.labels), explainer.spent
            left = explainer.left(batch)
            certified = explainer.certified(batch, generator)
            spent += explainer.spent - before
            if left < least or best.inputs is None:
                best, least = replace(found, certified=certified), left
            if bool(certified.all()):
                best = replace(best, status=Status.EXACT)
                break
            if found.status in (Status.STOPPED, Status.TIME_LIMIT):
                break
        said = best.message if best.inputs is None else f"{least:.1e} of the update's length unexplained"
        return replace(best, message=said, cost=Cost(spent, time.perf_counter() - began))

    def _refuses(self, observation: Observation, generator: torch.Generator) -> str:
        count, layers = observation.examples, input_layers(observation.task, generator)
        if count is None:
            return "needs the number of examples (knows: example_count)"
        if count == 1:
            return "needs several examples"
        if not layers:
            return "no linear layer reads the input"
        weight = observation.update.tensors[layers[0].weight].detach().cpu().double()
        if min(weight.shape) < count:
            return f"the layer has {min(weight.shape)} rows or columns for {count} examples"
        values = torch.linalg.svdvals(weight / weight.abs().max().clamp_min(torch.finfo(torch.float64).tiny))
        if min(weight.shape) > count and float(values[count]) > CLEAN * float(values[0]):
            return "noise, rounding or several local steps fill the row space of the layer's gradient"
        return ""
