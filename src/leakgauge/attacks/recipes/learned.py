"""An inversion learned from public data (LTI)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.matching.problem import Meter
from leakgauge.clients import FedSGD, sent_update
from leakgauge.clients.client import stages_of
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import Defense, NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import require
from leakgauge.observation import Cost, Observation, OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind


@dataclass(frozen=True, eq=False)
class Sketch:
    """Count sketch, tensor by tensor: signs at random, entries summed in random buckets. Linear.

    Inner products are kept in expectation, with variance at most 2·‖a‖²·‖b‖²/buckets. A tensor of no more entries
    than buckets stays as it is.

    Source: Charikar, Chen and Farach-Colton, Finding frequent items in data streams, 2002.

    Attributes:
        places: entry → bucket, by tensor; `None` for a tensor that stays.
        signs: ±1, by tensor.
        buckets: of each tensor.
    """

    places: dict[str, Tensor | None]
    signs: Tensors
    buckets: int

    @staticmethod
    def of(shapes: Tensors, buckets: int, generator: torch.Generator) -> Sketch:
        """For updates that look like `shapes`."""
        places: dict[str, Tensor | None] = {}
        signs: Tensors = {}
        for name, tensor in shapes.items():
            n = tensor.numel()
            stays = n <= buckets
            places[name] = None if stays else torch.randint(buckets, (n,), generator=generator)
            signs[name] = torch.ones(n) if stays else torch.randint(0, 2, (n,), generator=generator) * 2.0 - 1
        return Sketch(places, signs, buckets)

    def __call__(self, update: Tensors) -> Float[Tensor, " m"]:
        """All tensors' sketches in one vector."""
        parts = []
        for name, place in self.places.items():
            flat = update[name].detach().flatten().cpu()
            if place is None:
                parts.append(flat)
                continue
            signed = flat * self.signs[name].to(flat)
            parts.append(torch.zeros(self.buckets, dtype=flat.dtype).index_add_(0, place, signed))
        return torch.cat(parts)


@ATTACKS.register("learned-inversion", needs="labels, example_count, local_training, public_data")
@dataclass(frozen=True, kw_only=True)
class LearnedInversion:
    """Trains update → example on public data, passed through the same client and defence, then reads the update.

    Pairs: batches of public examples, mirrored in half of the cases where they are images, with the labels of the
    client's batch in turn, through local training and every stage of the defence with draws of its own. Input: a
    sketch of the update, each entry standardised over the pairs, and the label of one place; output: the example in
    that place. A tenth of the pairs is held out, and the weights that do best on them are used; where nothing
    does better than the mean of the public examples, that mean is the answer.

    It follows no gradient of the client's model with respect to inputs, so a defence that only makes such
    gradients useless (rounding, say) does not mislead it. Labels of the pairs are given, not true:
    public examples need none, and the gradient of a wrong label carries the example as well.

    Untrained LeNet, four CIFAR-10 images with 2 000 pairs of 4 000 public images each: 18.5 dB on average, where the
    mean picture has 14.0; far below what gradients of the network give, and no less telling for that.

    In the manner of *learning to invert*: Wu et al., UAI 2023, there with the true labels of a large auxiliary set.

    Attributes:
        pairs: simulated updates, fewer where the budget says so. A pair costs the client's local steps.
        buckets: of the sketch of each tensor.
        hidden: width of the two hidden layers.
        steps: of Adam, on batches of 64 pairs.
    """

    pairs: int = 2000
    buckets: int = 512
    hidden: int = 512
    steps: int = 1500
    lr: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("buckets", "hidden", "steps", "lr"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")
        require(self.pairs >= 20, "pairs", f"is {self.pairs}", "give at least 20")

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """Not applicable without public data, labels or knowledge of the training."""
        knowledge, task = observation.knowledge, observation.task.to(compute.like())
        labels, public = knowledge.labels, knowledge.public_data
        if labels is None:
            return Reconstruction.not_applicable("needs the labels (knows: labels)")
        if public is None or len(public) < max(len(labels), 2):
            return Reconstruction.not_applicable("needs public examples, at least two (knows: public_data)")
        if knowledge.local_training is None and observation.update.header.kind is UpdateKind.DELTA:
            return Reconstruction.not_applicable("needs the client's training (knows: local_training)")
        protocol = knowledge.local_training or FedSGD()
        meter = Meter(budget, on_step)
        cost = protocol.steps(len(labels))
        affordable = meter.affordable(cost)
        pairs = self.pairs if affordable is None else min(self.pairs, affordable)
        if pairs < 20:
            return Reconstruction.not_applicable(f"the budget allows {pairs} pairs, and learning needs at least 20")
        defense = knowledge.defense or NoDefense()
        sketch = Sketch.of(observation.update.tensors, self.buckets, generator)
        codes, targets = [], []
        for _ in range(pairs):
            batch = self._batch(public, labels, generator, image=task.data.is_image)
            batch = Batch(batch.inputs.to(compute.like()), labels.to(compute.device))
            sent = _sent(replace(observation, task=task), batch, defense, Draws.sample(generator))
            codes.append(sketch(sent))
            targets.append(task.data.normalise(batch.inputs).flatten(1).cpu())
            meter.spent += cost
            status = meter.over(cost)
            if status in (Status.STOPPED, Status.TIME_LIMIT):
                return Reconstruction(None, None, status, "stopped before it had learned", cost=_cost(meter))
        network = _Network(torch.stack(codes), torch.stack(targets), labels, task.outputs, self.hidden, generator)
        objective = network.fit(self.steps, self.lr, generator, meter)
        seen = sketch({k: v.to(compute.like()) for k, v in observation.update.tensors.items()})
        inputs = task.data.denormalise(network(seen[None])[0].view(-1, *task.data.shape))
        inputs = inputs.clamp(task.data.low, task.data.high)
        return Reconstruction(
            inputs.cpu(),
            labels.cpu(),
            Status.OUT_OF_STEPS if pairs == self.pairs else Status.OUT_OF_BUDGET,
            objective=objective,
            cost=_cost(meter),
            trace=tuple(meter.trace),
        )

    def _batch(self, public: Tensor, labels: Tensor, generator: torch.Generator, *, image: bool) -> Batch:
        chosen = public[torch.randperm(len(public), generator=generator)[: len(labels)]]
        if image:
            mirrored = torch.rand(len(chosen), generator=generator) < 0.5
            chosen = torch.where(mirrored.view(-1, 1, 1, 1), chosen.flip(-1), chosen)
        return Batch(chosen, labels)


def _cost(meter: Meter) -> Cost:
    return Cost(meter.spent, meter.seconds)


def _sent(observation: Observation, batch: Batch, defense: Defense, draws: Draws) -> Tensors:
    """What a client with that batch would send. The task is the defended one already."""
    protocol = observation.knowledge.local_training or FedSGD()
    return sent_update(protocol, batch, draws, stages_of(observation.task, defense))[0]


class _Network:
    """Standardised codes and one label → one example, as a correction of the mean example."""

    def __init__(
        self,
        codes: Float[Tensor, "p m"],
        targets: Float[Tensor, "p n d"],
        labels: Tensor,
        classes: int,
        hidden: int,
        generator: torch.Generator,
    ) -> None:
        self._shift, scale = codes.mean(0), codes.std(0)
        # Entries that never vary say nothing, and would be divided by zero.
        self._scale = torch.where(scale > 1e-6 * scale.max(), scale, torch.inf)
        self._codes, self._targets = self._standard(codes), targets
        self._places = F.one_hot(labels.cpu(), classes).to(codes)
        self._mean = targets.mean((0, 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            self._net = nn.Sequential(
                nn.Linear(codes.shape[1] + classes, hidden),
                nn.GELU(),
                nn.Linear(hidden, hidden),
                nn.GELU(),
                nn.Linear(hidden, targets.shape[2]),
            ).to(codes)
        last = self._net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def _standard(self, codes: Float[Tensor, "p m"]) -> Float[Tensor, "p m"]:
        return ((codes - self._shift) / self._scale).clamp(-6, 6)

    def _examples(self, codes: Float[Tensor, "p m"]) -> Float[Tensor, "p n d"]:
        n = len(self._places)
        joined = torch.cat([codes[:, None].expand(-1, n, -1), self._places[None].expand(len(codes), -1, -1)], dim=2)
        return self._mean + self._net(joined)  # type: ignore[no-any-return]

    def fit(self, steps: int, lr: float, generator: torch.Generator, meter: Meter) -> float:
        """Mean squared error on the held-out tenth, in model-input units, of the weights that are kept."""
        held = max(len(self._codes) // 10, 1)
        optimiser = torch.optim.AdamW(self._net.parameters(), lr=lr, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        best, kept = float("inf"), copy.deepcopy(self._net.state_dict())
        for step in range(steps):
            if step % 25 == 0:
                with torch.no_grad():
                    score = float((self._examples(self._codes[:held]) - self._targets[:held]).square().mean())
                if score < best:
                    best, kept = score, copy.deepcopy(self._net.state_dict())
                meter.note(step, best)
            chosen = held + torch.randint(len(self._codes) - held, (64,), generator=generator)
            loss = (self._examples(self._codes[chosen]) - self._targets[chosen]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        self._net.load_state_dict(kept)
        return best

    @torch.no_grad()
    def __call__(self, codes: Float[Tensor, "p m"]) -> Float[Tensor, "p n d"]:
        """Examples in model-input units."""
        return self._examples(self._standard(codes))
