"""How often each label occurs, from the update of the classifier."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.labels.posterior import CountPosterior, Regression, best_expected_f1, labels_of, mean_field
from leakgauge.attacks.labels.strategy import (
    IDLG,
    LabelGuess,
    SimulatedHead,
    Unknown,
    find_classifier,
    stand_ins,
    tangent_below,
)
from leakgauge.clients.local_training import FedSGD
from leakgauge.clients.protocol import Protocol
from leakgauge.defenses import parts_of, view_of
from leakgauge.defenses.dp import shortens
from leakgauge.errors import Checked, InputError, limited, said
from leakgauge.observation import Observation
from leakgauge.registry import LABELS
from leakgauge.tracing import LinearLayer
from leakgauge.update import UpdateKind
from leakgauge.view.entries import SentTensor, low_rank

STAND_INS = 64  # inputs whose features stand for the client's; `Knowledge.public_data` where there is enough of it
ROUNDS = 20  # of alternating least squares
ANCHOR = 1e-3  # weight of the made-up feature beside one mean row: it decides the sign, and what no row shows


def completed(observation: Observation, layer: LinearLayer, count: int, generator: torch.Generator) -> Observation:
    """The same with ∂L/∂[W b] ≈ c·[h 1]ᵀ in place of classifier entries that were not sent (random-k).

    A random-k drops the label's own entry of the bias more often than not; its row of the weight tells the label all
    the same. Of one example c and h follow by alternating least squares over what was sent, from the mean feature of
    `STAND_INS`; of several h stays that feature. Unchanged where all was sent, of one example behind top-k, which sends
    the label's entry of the bias, and where the defence is not known."""
    parts = {n: SentTensor.of(observation, n, decay=0.0) for n in (layer.weight, layer.bias) if n is not None}
    weight = parts[layer.weight]
    if weight.support is None or (weight.smallest and count == 1):
        return observation
    every = [part[...] for part in parts.values()]
    sent = torch.cat([e.seen.cpu().view(len(e.value), -1) for e in every if e.seen is not None], 1)
    if bool(sent.all()):
        return observation
    moved = torch.cat([e.value.cpu().view(len(e.value), -1) for e in every], 1)
    feature = layer.features(observation.task, stand_ins(observation, STAND_INS, generator)).mean(0)
    start = feature if layer.bias is None else torch.cat([feature, torch.ones(1).double()])
    c, h = low_rank(moved, sent, start[None], ROUNDS if count == 1 else 0, ANCHOR)
    made = c @ h
    if not bool(torch.isfinite(made).all()):
        return observation
    filled = torch.where(sent, moved, made).split([moved.shape[1] - len(parts) + 1, *[1] * (len(parts) - 1)], 1)
    tensors = dict(observation.update.tensors)
    tensors |= {n: f.reshape(tensors[n].shape).to(tensors[n]) for n, f in zip(parts, filled, strict=True)}
    return replace(observation, update=replace(observation.update, tensors=tensors))


FACTORS, RATIO = 64, 1.1  # lengths that are tried, each so many times the one before, from the sent one on


def unclipped(
    observation: Observation, layer: LinearLayer, protocol: Protocol, features: Float[Tensor, "m f"], count: int
) -> Observation:
    """The update at the length at which `mean_field` makes the wholest counts of it: a clip multiplies what is read by
    an unknown factor of at most one. Clips of single examples count as one of them all."""
    head = [name for name in (layer.weight, layer.bias) if name is not None]
    tensors = observation.update.tensors

    def longer(power: int, names: Iterable[str]) -> Observation:
        moved = tensors | {name: RATIO**power * tensors[name] for name in names}
        return replace(observation, update=replace(observation.update, tensors=moved))

    tried = (mean_field(longer(k, head), layer, protocol, features, count)[1] for k in range(FACTORS))
    _, power = max((found, -k) for k, found in enumerate(tried))
    return longer(-power, tensors)


DIRECTIONS, PRINCIPAL = 3, 64  # feature directions read one by one, and those whose energy is read
WIDER = 3.0  # times that the posterior is widened for the confidence: stand-ins' features are not the client's
MOST_OUTPUTS, MOST_WORK = 32, 2e10
"""Beyond them (work in multiply-adds) the mean-field answer is given, whose confidence is no more than the share of
labels that rounding left alone."""
RELABELLED = (0.5, 0.3, 0.2, 0.15)  # share of examples that a simulated client draws a new label for, round by round


@LABELS.register("counts", needs="the example count; for a delta also local_training")
@dataclass(frozen=True, kw_only=True)
class CountsFromLastLayer(Checked):
    """Label counts with repeats, by simulating the classifier's update for made-up clients.

    B·∂L/∂b_i = Σ_k p_ki − n_i. Clients with stand-in inputs and labels near the current guess are simulated
    (`SimulatedHead`), their statistics s regressed on their counts, s ≈ A·n + ε with ε ~ N(0, S), and the counts of
    the observed statistics follow by generalised least squares over whole numbers; this is repeated. s holds the
    update of the bias, that of the weight along the mean feature and along the directions that move the logits most,
    and the energy of each weight row in the other principal directions, which grows with a class's own examples.

    Sources: counts from the bias, Wainakh et al., 2021; p through the model's own layer, iLRG (Ma et al., ICLR 2023);
    p from simulated inputs over local steps, RLU (ICML 2024).
    Differs: one linear-Gaussian model in place of class embeddings; the answer maximises the expected multiset F1.
    Assumes: the task's own loss, one class an example, and features that vary as the stand-ins' do.
    Confidence: expected multiset F1 of the answer under the posterior, widened by the misfit of the statistics and
    by `WIDER`. It can be too high on trained networks, whose features depend on the class.
    `Unknown`: a loss that cannot be simulated for many clients at once, an unknown example count, or a delta without
    `Knowledge.local_training`. More outputs than classes: labels below `DataSpec.classes` only.
    Classifier entries that a known defence left out whatever their size (random-k, Soteria) are filled in first
    (`completed`), of several examples also what top-k left out; the length that a known clip took off is found with
    the counts (`Regression.lengthened`; `unclipped` for large classifiers). Other defences are read as if there were
    none, of several examples, with confidence 0 where they reshape the update.
    Known failures: local steps that overshoot, as the order of the examples decides what each does; features that
    depend on the class.

    `clients`: simulated in each round."""

    clients: int = limited(1024, lambda clients: clients >= 64, "give at least 64")

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        observation = observation.view
        layer, count = find_classifier(observation), observation.examples
        known, kind = observation.knowledge.local_training, observation.update.header.kind
        if isinstance(layer, Unknown):
            return layer
        if known is None and kind is not UpdateKind.GRADIENT:
            return Unknown(
                "a delta of unknown learning rate and steps gives only ratios of the labels; add local_training"
            )
        protocol = known or FedSGD()
        if protocol.kind is not kind:
            return Unknown(f"the update is a {kind.value}, but the known protocol sends a {protocol.kind.value}")
        if count is None or count < 1:
            return Unknown("the example count is unknown, so only ratios of the labels can be read; add example_count")
        observation = completed(observation, layer, count, generator.clone_state())
        if count == 1:  # sharper than any regression, and it survives clipping, noise and sparsity
            single = IDLG().infer(observation, generator)
            if isinstance(single, LabelGuess):
                return single
        try:
            steps = protocol.steps(count)
        except InputError as error:
            return Unknown(str(error))
        inputs = stand_ins(observation, STAND_INS, generator)
        features = layer.features(observation.task, inputs)
        if not bool(torch.isfinite(features).all()):
            return Unknown("the model's features are not finite on ordinary inputs")
        outputs, clipped = len(observation.task.parameters[layer.weight]), shortens(observation.knowledge.defense)
        work = self.clients * len(RELABELLED) * 4.0 * (outputs + PRINCIPAL + 1) * outputs * (max(steps, 1) + count)
        coarse = outputs > MOST_OUTPUTS or work > MOST_WORK
        try:
            if clipped and coarse:
                observation = unclipped(observation, layer, protocol, features, count)
            start, confidence = mean_field(observation, layer, protocol, features, count)
        except RuntimeError as error:  # a loss of the user's own that looks into its tensors
            return Unknown(
                f"label counts are not estimated: the loss cannot be simulated for many clients ({said(error)})"
            )
        if coarse:
            return _doubted(observation, LabelGuess(labels_of(start), confidence))
        head, observed = _head(observation, layer, protocol, features, inputs)
        return _doubted(observation, self._regressed(head, observed, start, generator, clipped=clipped))

    def _regressed(
        self,
        head: SimulatedHead,
        observed: Float[Tensor, " p"],
        counts: Float[Tensor, " c"],
        generator: torch.Generator,
        *,
        clipped: bool,
    ) -> LabelGuess:
        """Rounds of simulate, regress, solve, from first counts; then the labels of the largest expected F1."""
        classes, count, energies = len(counts), int(counts.sum()), len(head.task.parameters["weight"])
        posterior = CountPosterior(torch.eye(classes).double(), counts)
        for share in RELABELLED:
            labels = labels_of(counts).repeat(self.clients, 1)
            change = torch.rand(labels.shape, generator=generator) < max(share, min(1.0, 1.5 / count))
            labels = torch.where(change, torch.randint(classes, labels.shape, generator=generator), labels)
            labels = labels.gather(1, torch.rand(labels.shape, generator=generator).argsort(1))
            index = torch.randint(len(head.features), labels.shape, generator=generator)
            fitted = Regression.of(head(index, labels), labels, energies, classes)
            if clipped:
                observed, counts = fitted.lengthened(observed, counts)
            posterior = fitted.posterior(observed, counts)
            counts = posterior.mode(counts)
        labels = best_expected_f1(posterior.sample(counts, generator), count)
        wide = replace(posterior, temperature=WIDER * posterior.temperature).sample(counts, generator)
        chosen = torch.bincount(labels, minlength=classes)
        return LabelGuess(labels, float((torch.minimum(wide, chosen).sum(1) / count).mean()))


def _doubted(observation: Observation, guess: LabelGuess) -> LabelGuess:
    """Without confidence where a known defence reshapes the update in a way that this reading ignores."""
    known = observation.knowledge.defense
    for part in () if known is None else parts_of(known):
        view = view_of(part, observation.update, None)
        if view.support is not None or (not shortens(part) and (part.acts_on_examples or view.acts)):
            return replace(guess, confidence=0.0)
    return guess


def _head(
    observation: Observation,
    layer: LinearLayer,
    protocol: Protocol,
    features: Float[Tensor, "m f"],
    inputs: Float[Tensor, "m *shape"],
) -> tuple[SimulatedHead, Float[Tensor, " p"]]:
    """The simulated client, and the statistics of the observed update."""
    weight, _ = layer.of(observation.task.parameters)
    moved, moved_bias = layer.of(observation.update.tensors)
    mean = features.mean(0)
    axis, spread = mean / mean.norm().clamp_min(1e-12), features - mean
    _, values, principal = torch.linalg.svd(spread, full_matrices=False)
    principal, variance = principal[:PRINCIPAL], (values**2 / len(features))[:PRINCIPAL]
    loud = torch.linalg.svd(spread @ weight.T @ weight, full_matrices=False)[2][:DIRECTIONS]
    whiten = principal / (variance + 0.3 * variance.mean().clamp_min(1e-24)).sqrt()[:, None]
    whiten = whiten - (whiten @ axis)[:, None] * axis
    ways = torch.cat([axis[None], weight / weight.norm().clamp_min(1e-12), principal])
    _, size, rows = torch.linalg.svd(ways, full_matrices=False)  # not qr: the rows may be dependent
    basis = rows[size > 1e-9 * size[0]]
    scale = float(moved.norm() ** 2) or 1.0

    def statistics(read: Tensor, energy: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        parts = [(w @ read.T).flatten(), (w @ energy.T).square().sum(1) / scale]
        return torch.cat(parts if b is None else [b, *parts])

    read, tangent = torch.cat([axis[None], loud]), tangent_below(observation, layer, inputs)
    summary = partial(statistics, read @ basis.T, whiten @ basis.T)
    head = SimulatedHead.of(observation.task, layer, protocol, basis, features, summary, tangent)
    return head, statistics(read, whiten, moved, moved_bias)
