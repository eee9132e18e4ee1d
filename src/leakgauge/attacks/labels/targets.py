"""What an update says of targets under any loss: error signals of inputs, and the targets that make them."""

from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.matching.simulator import ROUNDING, SHIFT, every_input_shows, motions, stand_out
from leakgauge.batch import BatchPart
from leakgauge.defenses.defense import leaves_gradients
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.step.parts import Classes, Labels, Mask, NextToken, Values
from leakgauge.task import Task
from leakgauge.view.entries import relative_rounding, surely_sent
from leakgauge.view.front import told_apart

MOST = 2**25  # entries of the Jacobian that is held: signals × parameters
SPARE = 4  # equations for each unknown, at least


@dataclass(frozen=True, eq=False)
class ErrorSignals:
    """The gradient of any loss that depends on the network by its logits alone is Σ_k (∂z_k/∂θ)ᵀ e_k: linear in the
    error signals e = ∂L/∂z, which least squares finds for given inputs. No label and no loss is needed."""

    task: Task
    # the client's one gradient, in one row; rounding may leave a share `tolerance` of its length
    sent: Float[Tensor, " p"]
    tolerance: float
    heard: Bool[Tensor, " p"] | None = None  # numbers of the row that the client did send; `None` for all
    shortened: bool = False  # what an example sends may have been, by a factor of its own: no defence is named

    @staticmethod
    def of(observation: Observation) -> "ErrorSignals | str":
        """What the update says of signals, or why it says nothing."""
        task, gradient = observation.task, observation.gradient
        if gradient is None or not leaves_gradients(observation.knowledge.defense):
            return "the update is no gradient at one point as the client worked it out"
        if task.stochastic or task.penalties:
            return "the model draws at random or is penalised, so its logits do not make its gradient"
        double = task.to(torch.empty((), dtype=torch.float64))
        sent = torch.cat([gradient[name].detach().double().flatten().cpu() for name in double.parameters])
        if not bool(sent.any()) or not bool(sent.isfinite().all()):
            return "the update is empty or not finite"
        entry, weights = relative_rounding(observation)
        tolerance = max(ROUNDING * entry + 2 * weights, 1e-9)
        kept = surely_sent(observation, tolerance)
        heard = None if kept is None else torch.cat([kept[name].flatten().cpu() for name in double.parameters])
        return ErrorSignals(double, sent, tolerance, heard, observation.knowledge.defense is None)

    def logits(self, inputs: Float[Tensor, "n *shape"]) -> Tensor:
        with torch.no_grad():
            return self.task.logits(self.task.parameters, self.task.buffers, inputs.double())[0]

    def affords(self, inputs: Tensor) -> bool:
        unknowns = self.logits(inputs).numel()
        return SPARE * unknowns <= len(self.sent) and unknowns * len(self.sent) <= MOST

    def solve(self, inputs: Float[Tensor, "n *shape"]) -> tuple[Tensor, Float[Tensor, " p"]]:
        """Error signals, of the shape of the logits, and what they leave of the gradient."""
        z, matrix = jacobian(self.task, list(self.task.parameters), inputs.double())
        solved, left = least(matrix, self.sent)
        return solved.view_as(z), left

    def left(self, inputs: Float[Tensor, "n *shape"]) -> float:
        """Share of the gradient's length that no error signals of these inputs explain."""
        return float(self.solve(inputs)[1].norm() / self.sent.norm())

    def nearest(self, candidates: Float[Tensor, "m *shape"], count: int) -> Float[Tensor, "n *shape"]:
        """The candidates that carry most of the gradient: mixtures of examples carry nothing beside these."""
        if len(candidates) <= count:
            return candidates
        signals, _ = self.solve(candidates)
        weight = signals.flatten(1).norm(dim=1)
        return candidates[weight.argsort(descending=True)[:count].sort().values]

    def certified(self, inputs: Float[Tensor, "n *shape"], generator: torch.Generator) -> Bool[Tensor, " n"]:
        """Which examples are proved: together they explain the gradient to its rounding, and none moved at random, or
        towards every other one, do so in any combination: of a linear model mixtures explain what the batch does. An
        example whose motion others can make up for is not proved."""
        count, data, size = len(inputs), self.task.data, float(self.sent.norm())
        none = torch.zeros(count, dtype=torch.bool)
        if self.tolerance > SHIFT / 10 or not self.affords(inputs):
            return none
        signals, left = self.solve(inputs)
        if not float(left.norm()) <= self.tolerance * size:
            return none
        changes = [(self.solve(moved)[1] - left) / size for moved in motions(inputs, data, generator)]
        proved = stand_out(torch.stack(changes, 1), count, 10 * self.tolerance)

        def made(x: Tensor) -> Tensor:
            own = {name: value.detach().requires_grad_() for name, value in self.task.parameters.items()}
            z = self.task.logits(own, self.task.buffers, x)[0]
            back = torch.autograd.grad(z, list(own.values()), signals, create_graph=True, materialize_grads=True)
            return torch.cat([g.flatten() for g in back])

        proved = proved & told_apart(self.task, data.normalise(inputs.double()))
        return proved & every_input_shows(made, self.heard, inputs, self.task, self.tolerance * size)


def jacobian(
    task: Task, names: list[str], inputs: Float[Tensor, "n *shape"]
) -> tuple[Tensor, Float[Tensor, "p signals"]]:
    """Logits of raw examples, and the gradient of some parameters that one signal of each makes."""
    own = {name: task.parameters[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        z = task.logits({**task.parameters, **own}, task.buffers, inputs)[0]
    rows = [
        torch.autograd.grad(z, list(own.values()), unit.view_as(z), retain_graph=True, materialize_grads=True)
        for unit in torch.eye(z.numel()).to(z)
    ]
    return z.detach(), torch.stack([torch.cat([slope.flatten() for slope in row]) for row in rows], 1)


def least(matrix: Float[Tensor, "p signals"], sent: Float[Tensor, " p"]) -> tuple[Tensor, Float[Tensor, " p"]]:
    """The shortest least-squares solution, and what it leaves."""
    size = (norm := matrix.norm(dim=0)).where(norm > 0, 1.0)  # of zeros, as of a class without weights
    solved = torch.linalg.lstsq(matrix / size, sent, driver="gelsd").solution / size
    return solved, sent - matrix @ solved


STEPS, MOST_AT_ONCE = 30, 256  # of Gauss–Newton, from each start; real numbers that are solved for at once
FITS, NEAR = 1e-3, 1e-2  # share of the signals' length that targets may leave; of its range that one may be off
DETERMINED = 1e-6  # least share of the most that slopes move, by which every target moves them: else some are not told


def targets_of(signals: ErrorSignals, inputs: Float[Tensor, "n *shape"]) -> Tensor | None:
    """Targets as `Batch.labels` has them, in the inputs' order; `None` where none fit, or there are several kinds. Real
    numbers and shares are solved for; classes, masks and next tokens are tried at every place, by the signals' way."""
    targets = list(signals.task.layout.targets.values())
    if len(targets) != 1:
        return None
    with suppress(*FOREIGN):  # a loss of somebody's own
        logits, (wanted, _) = signals.logits(inputs), signals.solve(inputs)
        found = _fitted(signals, targets[0], logits, wanted)
        return found if found is None or _fit(signals.task, logits, found, wanted) <= FITS else None
    return None


def slopes_at(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    with torch.enable_grad():
        at = logits.detach().requires_grad_()
        return torch.autograd.grad(task.loss_of(at, labels), at, create_graph=labels.requires_grad)[0]


def _fit(task: Task, logits: Tensor, labels: Tensor, wanted: Tensor) -> float:
    """Share of the signals that these targets leave, at the best length."""
    made = slopes_at(task, logits, labels)
    length = (made * wanted).sum() / made.square().sum().clamp_min(torch.finfo(made.dtype).tiny)
    return float((length * made - wanted).norm() / wanted.norm())


def _fitted(signals: ErrorSignals, target: BatchPart, logits: Tensor, wanted: Tensor) -> Tensor | None:
    task, shape, least = signals.task, (len(logits), *target.shape), signals.tolerance * float(wanted.norm())
    if isinstance(target, Classes | Mask | NextToken):
        return _tried(task, target, logits, wanted, least)
    if not isinstance(target, Values | Labels) or torch.Size(shape).numel() > MOST_AT_ONCE:
        return None
    low, high = target.edges
    starts = (0.5 * (low[0] + high[0]), low[0], high[0])
    ends = [_newton(task, logits, wanted, torch.full(shape, start).to(logits)) for start in starts]
    best = min(ends, key=lambda y: _fit(task, logits, y, wanted))
    if isinstance(target, Labels):
        return best.round().clamp(0, 1).to(torch.float32)
    ways = NEAR * (high[0] - low[0]) * torch.eye(best.numel()).view(-1, *shape).to(best)
    # At the edge of where a loss grows in a line, only one way shows.
    told = all(_shows(task, logits, best, best + way, least, signals.shortened) for way in (ways, -ways))
    return best if told else None


def _shows(task: Task, logits: Tensor, labels: Tensor, others: Tensor, least: float, shortened: bool = False) -> bool:
    """Whether slopes move by more than `least` whatever is changed towards `others`, alone or together, or with what
    examples send `shortened`, each by a factor of its own."""
    at = slopes_at(task, logits, labels)
    moves = [(slopes_at(task, logits, one) - at).flatten() for one in others]
    if shortened:
        moves += list(torch.block_diag(*at.flatten(1)))
    values = torch.linalg.svdvals(torch.stack(moves))
    return len(moves) <= at.numel() and float(values.min()) > max(DETERMINED * float(values.max()), least)


def _newton(task: Task, logits: Tensor, wanted: Tensor, start: Tensor) -> Tensor:
    """Gauss–Newton for real targets: exact at once where the slope is a line in them, as of squares or BCE."""
    found = start
    for _ in range(STEPS):
        left = (slopes_at(task, logits, found) - wanted).flatten()
        # A loss that grows in a line far from its target has no bend there.
        bend = torch.autograd.functional.jacobian(lambda y: slopes_at(task, logits, y).flatten(), found.detach())
        move = torch.linalg.lstsq(bend.flatten(1), -left[:, None], driver="gelsd").solution[:, 0]
        found = found + move.view_as(start)
        if not float(move.norm()) > 1e-12 * (1 + float(found.norm())):
            break
    return found.nan_to_num()


def _tried(task: Task, target: BatchPart, logits: Tensor, wanted: Tensor, least: float) -> Tensor | None:
    """Each plain class everywhere; place by place the one whose slope points as the signal does. `None` where the next
    best at the faintest places does not show: a place that is as good as sure carries next to no signal of Dice."""
    shape, gaps, sizes = (len(logits), *target.shape), [], torch.empty(0)
    for label in range(target.classes):
        slope = slopes_at(task, logits, torch.full(shape, label, dtype=torch.long))
        one, two = (v.flatten(1) if v.ndim == 2 else v for v in (slope, wanted))
        gaps.append(1 - torch.nn.functional.cosine_similarity(one, two, axis := _axis(one, target)))
        sizes = two.norm(dim=axis).flatten()
    best, second = torch.stack(gaps).view(len(gaps), -1).topk(2, 0, largest=False).indices
    faint = sizes.argsort()[:MOST_AT_ONCE]
    others = best.repeat(len(faint), 1)
    others[torch.arange(len(faint)), faint] = second[faint]
    told = _shows(task, logits, best.view(shape), others.view(-1, *shape), least)
    return best.view(shape) if told else None


def _axis(signal: Tensor, target: BatchPart) -> int:
    """Which axis of the logits tells the classes apart."""
    if signal.ndim == 2 or signal.shape[1:] == (1, *target.shape) or signal.shape[2:] == target.shape:
        return 1
    return signal.ndim - 1
