"""Does an update say anything of the images behind it? Asked before an attack, of the network alone."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.labels.strategy import made_up
from leakgauge.attacks.matching.simulator import Simulator
from leakgauge.defenses.defense import child_generator
from leakgauge.observation import Attack, Cost, Observation, Reconstruction, Status
from leakgauge.task import Batch
from leakgauge.tensors import Tensors

BLIND = 1e-6  # a cosine gap below this is none: float32 has no digit left. Working attacks start at 1e-2
PIECE = 1_000_000  # entries that are compared at a time


@dataclass(frozen=True)
class Information:
    """How far apart the updates of two unrelated batches with the same labels are, as 1 − cosine."""

    gap: float  # over all tensors together: what distances weighted by length (L2, global cosine) can see
    # the tensor whose own gap is widest: what a distance that weighs tensors alike can see
    tensor: str
    tensor_gap: float
    cost: int  # gradient evaluations that the question took

    @property
    def blind(self) -> bool:
        """Whether the update as a whole hardly depends on the images."""
        return self.gap < BLIND

    def lost(self, dtype: torch.dtype) -> bool:
        """Whether it is below what arithmetic in `dtype` resolves: 8 ε, 1e-6 in float32 and 2e-15 in float64."""
        return self.gap < 8 * torch.finfo(dtype).eps

    @property
    def sentence(self) -> str:
        """The finding for a report; empty where the update does depend on the images."""
        if not self.blind:
            return ""
        said = (
            f"the update carries no image information that float32 could see in the whole of it: two random batches "
            f"with the same labels have cosine 1 − {max(self.gap, 0.0):.0e}"
        )
        if self.lost(torch.float64) and self.tensor_gap < BLIND:
            return f"{said}, and no tensor alone tells them apart"
        return (
            f"{said}. No proof of safety: {self.tensor} alone has a gap of {self.tensor_gap:.0e}, and an attack in "
            "float64, or on single tensors, may still see something"
        )


def image_information(observation: Observation, examples: int, generator: torch.Generator) -> Information:
    """Simulates the updates of two batches of made-up images with the same labels, known or drawn, in float64, and
    compares them. A small gap is no proof. Gaps are 0 where both updates vanish."""
    simulator = Simulator.of(observation, torch.empty((), dtype=torch.float64), generator)
    if observation.knowledge.defense is None:
        # The observed update is not asked for, and in float64 it is twice as large as the model.
        view = simulator.view
        simulator = replace(simulator, observed={}, views=lambda _: view)
    data = simulator.task.data
    labels = observation.knowledge.labels
    if labels is None:
        labels = torch.randint(data.classes, (examples,), generator=generator)
    updates = [simulator(Batch(made_up(data, examples, generator).double(), labels)) for _ in range(2)]
    one, other = ({k: v.detach() for k, v in update.items()} for update in updates)
    gaps = {name: float(_gap({name: one[name]}, {name: other[name]})) for name in one}
    widest = max(gaps, key=lambda name: gaps[name])
    return Information(float(_gap(one, other)), widest, gaps[widest], 2 * simulator.cost(examples))


def _gap(a: Tensors, b: Tensors) -> Tensor:
    """1 − cosine as ‖a/‖a‖ − b/‖b‖‖²/2, which keeps the digits that the plain formula loses near 0."""
    tiny = torch.finfo(torch.float64).tiny
    p, q = (torch.stack([v.norm() for v in t.values()]).norm().clamp_min(tiny) for t in (a, b))
    # Piece by piece: both may be as large as the model.
    pairs = (zip(a[k].flatten().split(PIECE), b[k].flatten().split(PIECE), strict=True) for k in a)
    return torch.stack([(x / p - y / q).square().sum() for pair in pairs for x, y in pair]).sum() / 2


@dataclass(frozen=True, kw_only=True)
class IfInformative(SearchingAttack):
    """Another attack, run only where its arithmetic can see the images in the update; else the answer says why not. An
    update that is blind in float32 but not in the precision of `Compute` is attacked, and the finding is kept. The
    question costs two evaluations; a budget without room for both is spent on the attack."""

    attack: Attack

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        client, limit = observation.knowledge.local_training, effort.budget.gradient_evaluations
        examples = observation.examples
        steps = 1 if client is None else client.steps(examples or 1)
        if examples is None or (limit is not None and limit <= 2 * steps):
            return effort.of(self.attack, observation)
        asked = image_information(observation, examples, child_generator(effort.generator))
        if asked.lost(effort.compute.dtype):
            return replace(Reconstruction.not_applicable(asked.sentence), cost=Cost(asked.cost), blind=asked.sentence)
        left = effort.left(asked.cost)
        if isinstance(left, Status):
            return Reconstruction(None, None, left, cost=Cost(asked.cost), blind=asked.sentence)
        return replace(left.of(self.attack, observation), blind=asked.sentence).after(asked.cost)
