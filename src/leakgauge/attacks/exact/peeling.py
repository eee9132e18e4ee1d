"""A batch taken apart, example by example, from the gradient of one linear layer."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.exact.candidates import candidates, certify, factors, shown
from leakgauge.attacks.exact.finisher import finish
from leakgauge.attacks.exact.residual import FACTOR, ExplainedExamples, Remainder, refit, residual
from leakgauge.attacks.exact.sums import Sums, Tail, scale_of, sums_of
from leakgauge.attacks.matching.problem import Meter
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Mode, Task
from leakgauge.tracing import input_layers

BLURRED = 0.1  # largest error of an example, in shares of the largest input, with which it is worth subtracting


@dataclass(frozen=True, eq=False)
class Peeled:
    """How far the peeling came."""

    found: ExplainedExamples
    certified: Bool[Tensor, " k"]  # which of these are proved
    state: Remainder
    tried: int  # candidates that went through the model
    stopped: bool  # before it had ended
    search: str = ""  # how far that for sparse directions came in vain, in words


def _goes_on(meter: Meter, sums: Sums, index: int, state: Remainder, tried: int) -> bool:
    """Whether there is room for more, after a round and so many candidates."""
    meter.spent = -(-tried // sums.examples)
    meter.note(index, float(state.bias.norm() / sums.bias.norm()))
    return meter.over(1) is None


def peel(sums: Sums, meter: Meter, *, before: int = 0, most_rounds: int = 400) -> Peeled:
    """Reads the rows that one example alone drives, subtracts these examples, and reads again until nothing is new,
    `before` candidates having gone through the model already."""
    found = ExplainedExamples.none(sums.weight)
    state = residual(sums, found)
    read = back = found.x  # as they were accepted; and those that were taken back
    tests, stopped = 0, False
    for index in range(most_rounds):
        fresh, made = candidates(sums, state, torch.cat([found.x, back]))
        tests += made
        if not len(fresh):
            break
        read = torch.cat([read, fresh.x])
        found, state = refit(sums, found.joined(fresh))
        blurred = FACTOR * found.doubt > BLURRED
        if bool(blurred.any()):
            back = torch.cat([back, read[blurred]])
            found, read = found.take(~blurred), read[~blurred]
            state = residual(sums, found)
        if bool(state.explained.all()):
            break
        if not _goes_on(meter, sums, index, state, before + tests // len(sums.labels)):
            stopped = True
            break
    return Peeled(found, certify(sums, state, found, tests), state, tests // len(sums.labels), stopped)


def peel_rescaled(sums: Sums, meter: Meter) -> tuple[Sums, Peeled]:
    """As `peel`; where nothing is read at the stated length, or nothing proved at one that a clip may have shortened,
    at those that the rows agree on: at the first that is proved, or else at the one at which they show most."""
    first = peel(sums, meter)
    if first.stopped or bool(first.certified.any()) or (len(first.found) and sums.told):
        return sums, first
    named, tests = factors(sums)
    spent = first.tried + tests // len(sums.labels)
    best, most = (sums, first), int(shown(sums, first.state, first.found, spent * len(sums.labels)).sum())
    for factor in named:
        if not _goes_on(meter, sums, 0, first.state, spent):
            best = best[0], replace(best[1], stopped=True)
            break
        other = replace(sums, scale=factor * sums.scale, told=False)
        found = peel(other, meter, before=spent)
        spent += found.tried
        count = spent * len(sums.labels)
        found = replace(found, certified=certify(other, found.state, found.found, count))
        seen = int(shown(other, found.state, found.found, count).sum())
        ends = found.stopped or bool(found.certified.any())
        if seen > most or ends:
            best, most = (other, found), seen
        if ends:
            break
    return best[0], replace(best[1], tried=spent)


@ATTACKS.register(
    "peeling",
    needs="a linear layer with bias that reads the input, units that switch off (ReLU) behind it; example_count; "
    "one local step",
)
@dataclass(frozen=True, kw_only=True)
class Peeling(SearchingAttack):
    """Whole batches, with labels and certificates, out of the gradient of a biased linear layer that reads the input.

    Row i of ∂L/∂W is Σ_k s·δ_ki·x_k over the examples that drive unit i, and ∂L/∂b_i is Σ_k s·δ_ki. A row that one
    example alone drives is that example (Geiping et al., 2020, Proposition 3.1). It goes through the model, which
    tells its label and all its δ_ki; its whole gradient is subtracted, and rows that two examples drove are now driven
    by one. Repeated, this is the decoder of a fountain code.

    Source: Shariati and Meybodi, 2026 (LT codes). Differs: tolerances are derived from the format of the update
    (`leakgauge.attacks.exact.residual`), accepted examples are fitted jointly after every round, and a certificate
    needs two explained rows, or one with a chance below 1e-6 (`leakgauge.attacks.exact.candidates`).

    Rows tell the length of an update that was clipped, which a whole batch must prove (`candidates.certify`); an
    example tells by how much a known clipping of examples shortened its gradient (`sums`).

    Any depth may stand behind the layer. Known failure: activations that never switch off (sigmoid, leaky ReLU), and
    more examples than the units can tell apart.

    Result: the certified examples first, then what was read without proof. Labels are paired with the images. `EXACT`
    where all are certified, `CONVERGED` where some are, `FAILED` where nothing was read. Examples whose gradient is
    below the rounding of the update are in no read: `silent` counts them, once all else is explained without noise.

    Attributes:
        directions: where the peeling stalls, a search for sparse directions (`leakgauge.attacks.exact.finisher`) is
            tried for at most so many examples; 0 for none.
        groups: of sets of rows that this search tries, of `leakgauge.attacks.exact.finisher.BATCH` numbers each.
    """

    directions: int = 20
    groups: int = 120

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """Works in float64 whatever the effort says. One gradient evaluation is the batch once through the model."""
        observation, generator = observation.view, effort.generator
        meter = Meter(effort.budget, effort.on_step)
        sums = readable(observation, generator, effort.compute.like(torch.float64))
        if isinstance(sums, str):
            return Reconstruction.not_applicable(sums)
        sums, result = peel_rescaled(sums, meter)
        whole = bool(result.state.explained.all())
        if not whole and not _goes_on(meter, sums, 0, result.state, result.tried):
            result = replace(result, stopped=True)
        left = 0 if whole or result.stopped else sums.examples - len(result.found)
        if 0 < left <= self.directions:
            more, words = finish(sums, result.state, left, generator, meter, groups=self.groups)
            alone, result = result, replace(result, search=words)
            if more is not None:
                found, state = refit(sums, alone.found.joined(more))
                certified = certify(sums, state, found, max(1, alone.tried * len(sums.labels)))
                if int(certified.sum()) > int(alone.certified.sum()):  # else they explain less than they should
                    result = replace(alone, found=found, state=state, certified=certified)
        return report(observation, sums, result, meter.over(1) if result.stopped else None)


def report(observation: Observation, sums: Sums, result: Peeled, stopped: Status | None) -> Reconstruction:
    """What peeling came to, certified examples first."""
    proved, examples, data = int(result.certified.sum()), sums.examples, observation.task.data
    cost = Cost(-(-result.tried // examples))
    explained = bool(result.state.explained.all())
    rest = examples - len(result.found)
    silent = rest if explained and rest > 0 and not sums.noisy and (sums.told or proved) else 0
    message = f"{proved} of {examples} examples certified"
    if len(result.found) > proved:
        message += f", {len(result.found) - proved} read without proof"
    if rest > 0:
        message += f", {rest} silent (below the rounding of the update)" if silent else f", {rest} not read"
    message += result.search
    if not len(result.found):
        return Reconstruction(None, None, stopped or Status.FAILED, message, cost=cost, silent=silent)
    order = result.certified.int().argsort(descending=True, stable=True)[:examples]
    like = next(iter(observation.update.tensors.values()))
    inputs = data.denormalise(result.found.x[order].view(-1, *data.shape))
    status = Status.EXACT if proved == examples else stopped or Status.CONVERGED
    return Reconstruction(
        inputs.to(like.device),
        result.found.labels[order].to(like.device),
        status,
        message,
        cost=cost,
        certified=result.certified[order].to(like.device),
        silent=silent,
    )


def readable(observation: Observation, generator: torch.Generator, like: Tensor) -> Sums | str:
    """The layer's sums, or why they cannot be had."""
    if (examples := observation.examples) is None:
        return "needs the number of examples (knows: example_count, or labels)"
    if isinstance(scale := scale_of(observation, examples), str):
        return scale
    tail = readable_layer(observation.task, generator, like)
    return tail if isinstance(tail, str) else sums_of(observation, tail, examples, scale)


def readable_layer(task: Task, generator: torch.Generator, like: Tensor) -> Tail | str:
    """The layer that peeling reads, in the dtype and on the device of `like`, or why there is none."""
    if why := mixes(task):
        return why
    if not task.of_classes:
        return "the loss takes real numbers for labels, of which no list can be tried"
    raw = torch.rand((3, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    raw = task.data.low + task.data.range * raw
    for layer in input_layers(task, generator):
        if layer.bias is not None:
            tail = Tail(task.to(like), layer)
            if tail.gates(raw):
                return tail
    return "no linear layer with bias reads the input and is the only way from it to the output"


def mixes(task: Task) -> str:
    """Why an update is no sum over examples, each by itself; empty where it is."""
    if task.stochastic:
        return "the model draws at random, so an example does not tell its gradient"
    if task.penalties:
        return "the loss has penalties beside the one on the logits"
    norms = [n for n, m in task.module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms and task.mode is Mode.TRAIN:
        return f"the BatchNorm '{norms[0]}' in train mode mixes examples"
    return ""
