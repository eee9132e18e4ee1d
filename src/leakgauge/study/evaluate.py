"""The only place where truth meets a result, and whether an attack's answer is one."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.batch import BatchPart
from leakgauge.errors import FOREIGN
from leakgauge.metrics.likeness import STRUCTURE, Assignment, LineUp, assign, mean_image, nearest_public, twins
from leakgauge.metrics.metric import MSE, PSNR, SSIM, Metric, best_constant, is_exact, label_f1, label_f1_by_prior
from leakgauge.observation import Cost, KnownFeatures, Reconstruction, Status, Tried
from leakgauge.step.parts import Classes, Labels
from leakgauge.study.judging.records import LabelScores, Nulls, OtherClients, PartScores, Scores, TokenScores, Values
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.view.normal import in_plain_layers

COPY = 40.0
"""dB from which a read is a copy to the eye, whatever the line-up says of it: a hundredth of the range in error."""
MARGIN = 3.0
"""dB by which a copy must beat the nearest public picture, which a data set of one grey tone reaches by itself."""
STRANGERS = 64  # other clients' examples that a reconstruction is held against as well, about


@dataclass(frozen=True, eq=False)
class Truth:
    """What the evaluator holds and no attack does."""

    batch: Batch
    gallery: Float[Tensor, "m *shape"]
    public: Float[Tensor, "k *shape"]
    others: tuple[Batch, ...]  #: batches of other clients, for the mismatched control
    prior: Float[Tensor, " classes"]  #: class shares, for the label baselines
    #: what the client trained on, where a defence changed the examples first; one for each example.
    trained: Float[Tensor, "n *shape"] | None = None
    #: how many distractors are whole other examples, rather than crops of some; `None` for all.
    whole: int | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """`order` holds for each true example the slot of the read that is shown beside it, or `None`."""

    scores: Scores | None
    labels: LabelScores | None
    controls: Nulls
    order: tuple[int | None, ...]
    tokens: TokenScores | None = None
    parts: tuple[PartScores, ...] = ()


def evaluate(
    reconstruction: Reconstruction,
    truth: Truth,
    data: DataSpec,
    *,
    labels_known: bool,
    perceptual: Metric | None = None,
    task: Task | None = None,
) -> Evaluation:
    """Scores every true example: its one-to-one mate, or nothing where the attack has none.

    An example without a reconstruction scores `None`, is not identified, and stays in the count: an
    attack that gives back fewer images than the client had is not better for it. Whose examples did not come out is
    asked, given the `task`, of the inputs of a layer that were proved.
    """
    labels = label_scores(reconstruction, truth, data, labels_known)
    sure = [one for one in reconstruction.features if one.certified and task is not None]
    if not reconstruction.status.has_result or (reconstruction.inputs is None and not sure):
        return Evaluation(None, labels, _nulls(truth, data, None), (None,) * len(truth.batch))
    found = truth.batch.inputs[:0] if reconstruction.inputs is None else reconstruction.inputs
    # An attack that offers more than the client had would get the best of many tries: what it proved comes first.
    proved = reconstruction.certified
    if proved is None:
        proved = torch.full((len(found),), reconstruction.status is Status.EXACT)
    kept = proved.int().argsort(descending=True, stable=True)[: len(truth.batch)].sort()[0]
    guessed = reconstruction.labels if reconstruction.paired else None
    guessed = guessed[kept] if guessed is not None and len(guessed) == len(found) else None
    found, true = found[kept.to(found.device)].to(truth.batch.inputs), truth.batch
    mates = assign(found, true.inputs, labels_hat=guessed, labels=true.labels, data_range=data.range, low=data.low)
    reads = LineUp(found, truth.gallery, data.range, data.low)
    scores, order = _scores(reads, truth, data, mates, perceptual, int(proved[kept].sum()))
    told = None
    if task is not None and sure and not all(scores.identified):
        layer = max(sure, key=lambda one: (len(one.maps), -one.error))
        told = _layer_line_up(layer, truth, data, task)
        ranks = scores.rank if told is None else told.identify(true.inputs)[0].ranks.tolist()
        ranks = tuple(map(min, scores.rank, ranks))
        if ranks.count(1) > scores.rank.count(1):
            scores = replace(scores, rank=ranks, identified=tuple(r == 1 for r in ranks), layer=layer.layer)
        else:
            told = None  # it must not count for chance either
    if told is None and reconstruction.inputs is None:
        return Evaluation(None, labels, _nulls(truth, data, None), (None,) * len(truth.batch))
    shown = tuple(None if slot is None else int(kept[slot]) for slot in order)
    return Evaluation(scores, labels, _nulls(truth, data, reads, told), shown)


def _layer_line_up(known: KnownFeatures, truth: Truth, data: DataSpec, task: Task) -> LineUp | None:
    """What the layer was given beside what it is given for strangers' examples, of the network in plain layers or as it
    is: in one of them it was read. `None` where neither has such maps."""
    for own in (in_plain_layers(task), task):
        with suppress(*FOREIGN):
            inside = Inside.of(own, len(truth.batch))
            for layer in (one for one in inside.layers if one.weight == known.layer):
                if known.maps.shape[1:] == (layer.unfolding.channels, layer.unfolding.pixels):
                    return LineUp(known.maps, truth.gallery, data.range, data.low, partial(_given, inside, layer))
    return None


def _given(inside: Inside, layer: Layer, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        batch = Batch(inputs.double(), torch.zeros(len(inputs), dtype=torch.long))
        return layer.unfolding.of_hidden(inside.run([layer.hidden], {}, batch)[0])


def _scale(data: DataSpec) -> Mapping[str, float]:
    return {"data_range": data.range, "low": data.low}


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values.tolist())


def _of_mates(score: Callable[[Tensor, Tensor], Tensor], found: Tensor, x: Tensor, mates: Assignment) -> Values:
    values = dict(zip(mates.matched, _rounded(score(mates.take(found), x[list(mates.matched)])), strict=True))
    return tuple(map(values.get, range(len(x))))


def _scores(
    reads: LineUp, truth: Truth, data: DataSpec, mates: Assignment, perceptual: Metric | None, certified: int
) -> tuple[Scores, tuple[int | None, ...]]:
    found, x = reads.reads, truth.batch.inputs
    metric, ssim = PSNR(**_scale(data)), SSIM(**_scale(data))
    psnr = _of_mates(metric, found, x, mates)
    placed = reads.identify(x)[0]
    recovered = reads.recovered([placed], [x], truth.public)[0] | _copies(psnr, x, truth, data)
    ranks, trained = placed.ranks, None
    if truth.trained is not None:
        # The picture that the client trained on gives its original away where it would itself be recovered.
        own = assign(found, truth.trained, data_range=data.range, low=data.low)
        trained = _of_mates(metric, found, truth.trained, own)
        shows = LineUp(truth.trained, truth.gallery, data.range, data.low).identify(x, paired=True)[0]
        as_trained = reads.identify(truth.trained)[0]
        read = reads.recovered([as_trained], [truth.trained], truth.public)[0]
        recovered |= (read & (shows.ranks == 1)) | _copies(trained, truth.trained, truth, data)
        ranks = torch.where(shows.ranks == 1, torch.minimum(ranks, as_trained.ranks), ranks)
        placed = as_trained if int(read.sum()) > int((placed.ranks == 1).sum()) else placed
    exact = _of_mates(lambda x_hat, own: is_exact(metric(x_hat, own)).double(), found, x, mates)
    alike = _rounded((1 - placed.residuals[:STRUCTURE].amin(0)).clamp_min(0).sqrt())
    likeness = tuple(None if slot is None else value for slot, value in zip(placed.slots, alike, strict=True))
    perceptual = perceptual if perceptual is not None and perceptual.defined_for(data) else None
    seen = ranks == 1
    moved = placed.slots if bool((seen | recovered).any()) else mates.slots
    scores = Scores(
        psnr=psnr,
        ssim=_of_mates(ssim, found, x, mates) if ssim.defined_for(data) else None,
        mse=_of_mates(MSE(**_scale(data)), found, x, mates),
        lpips=None if perceptual is None else _of_mates(perceptual, found, x, mates),
        likeness=likeness if data.is_image else None,
        rank=tuple(ranks.tolist()),
        identified=tuple(seen.tolist()),
        recovered=tuple(recovered.tolist()),
        exact=tuple(value == 1 for value in exact),
        trained_psnr=trained,
        certified=certified,
        gallery=len(truth.gallery),
        whole=len(truth.gallery) if truth.whole is None else truth.whole,
    )
    return scores, moved


def _copies(psnr: Values, x: Tensor, truth: Truth, data: DataSpec) -> Tensor:
    """Which scores only the example itself gets: no line-up is needed for a copy."""
    public = PSNR(**_scale(data))(nearest_public(x, truth.public, **_scale(data)), x)
    bars = public.add(MARGIN).clamp_min(COPY).tolist()
    return torch.tensor([p is not None and p >= bar for p, bar in zip(psnr, bars, strict=True)])


def _nulls(truth: Truth, data: DataSpec, reads: LineUp | None, told: LineUp | None = None) -> Nulls:
    """Of an attacker without the update: the mean picture, and the public one that the truth itself says is closest."""
    x, psnr = truth.batch.inputs, PSNR(**_scale(data))
    nearest = nearest_public(x, truth.public, **_scale(data))
    constant = LineUp(mean_image(truth.public, 1), truth.gallery, data.range, data.low)
    picked = sum(int(p.identified.sum()) for p in constant.identify(*x.split(1)))
    mean, others = mean_image(truth.public, len(x)), None if reads is None else _other_clients(reads, told, truth, data)
    return Nulls.of(_rounded(psnr(mean, x)), picked, _rounded(psnr(nearest, x)), others)


def other_clients(truth: Truth, same: Callable[[Tensor], Tensor]) -> list[Float[Tensor, "n *shape"]]:
    """Examples of other clients. Neighbouring ones first; where they are few, public examples make up more of the same
    size. Who holds an example that is all but the client's own (`same`), as the next frame of a film is, is no other
    client: the reads are of both."""
    n = len(truth.batch)
    held = itertools.chain((batch.inputs for batch in truth.others), truth.public.split(n))
    strange = (other for other in held if len(other) == n and not bool(same(other).any()))
    return list(itertools.islice(strange, max(2, STRANGERS // n)))


def _other_clients(reads: LineUp, told: LineUp | None, truth: Truth, data: DataSpec) -> OtherClients | None:
    """This reconstruction held against other clients' examples, as against its own: what a mismatched update gives."""
    others = other_clients(truth, lambda x: twins(truth.batch.inputs, x, **_scale(data)))
    if not others:
        return None
    placed = reads.identify(*others)
    as_told = placed if told is None else told.identify(*others)
    mates = [assign(reads.reads, x, data_range=data.range, low=data.low) for x in others]
    taken = torch.cat([mate.take(reads.reads) for mate in mates])
    mated = torch.cat([x[list(mate.matched)] for x, mate in zip(others, mates, strict=True)])
    return OtherClients(
        _rounded(PSNR(**_scale(data))(taken, mated)),
        tuple(int((p.identified | q.identified).sum()) for p, q in zip(placed, as_told, strict=True)),
        tuple(int(r.sum()) for r in reads.recovered(placed, others, truth.public)),
    )


def label_scores(reconstruction: Reconstruction, truth: Truth, data: DataSpec, known: bool) -> LabelScores | None:
    """Scores of labels that were read or given; `None` where the attack found none."""
    if reconstruction.labels is None and not known:
        return None
    true, guesses, sure = truth.batch.labels, len(truth.batch), reconstruction.label_confidence
    agreement = (
        label_f1(reconstruction.labels, true, data.classes),
        label_f1(best_constant(truth.prior, guesses), true, data.classes),
        label_f1_by_prior(true, truth.prior, guesses),
    )
    own, constant, baseline = _rounded(torch.tensor(agreement, dtype=torch.float64))
    return LabelScores(own, constant, baseline, None if sure is None else float(f"{sure:.6g}"), known)


def class_prior(labels: Tensor, classes: int) -> Float[Tensor, " classes"]:
    counts = torch.bincount(labels, minlength=classes).double()
    return counts / counts.sum()


def evaluate_parts(
    reconstruction: Reconstruction,
    truth: Truth,
    task: Task,
    others: Batch,
    whole_of: Callable[..., Evaluation] = evaluate,
    *,
    labels_known: bool,
) -> Evaluation:
    """Examples as a whole, by `whole_of` their inputs, and each part; targets that are no classes pair no reads."""
    kinds = [type(target) for target in task.layout.targets.values()]
    found, seen = reconstruction, truth
    if kinds != [Classes]:
        found = replace(found, labels=None, paired=False)
        seen = replace(truth, batch=Batch(truth.batch.inputs, torch.zeros(len(truth.batch), dtype=torch.long)))
    whole = whole_of(found, seen, task.data, labels_known=labels_known and kinds == [Classes])
    named = reconstruction.in_parts(task).parts if reconstruction.status.has_result else {}
    true, usual = task.layout.raw(truth.batch), task.layout.raw(others)
    parts = (
        _part_scores(name, part, true[name], usual[name], named.get(name), whole.order)
        for name, part in task.layout.parts.items()
    )
    return replace(whole, parts=tuple(parts))


def _part_scores(
    name: str, part: BatchPart, true: Tensor, usual: Tensor, read: Tensor | None, order: Sequence[int | None]
) -> PartScores:
    agrees = part.whole or isinstance(part, Labels)
    guess = usual.reshape(len(usual), -1).double()
    if agrees:  # how often others agree with it
        bars = torch.stack([(guess == own).double().mean() for own in true.reshape(len(true), -1).double()])
    else:
        bars = _distances(guess.mean(0).expand(len(true), -1), true, part, agrees=False)
    values: Values = (None,) * len(true)
    if read is not None and len(read) and read[0].shape == true[0].shape:
        kept = torch.tensor([slot or 0 for slot in order])
        off = _rounded(_distances(read.detach().cpu()[kept].reshape(len(true), -1), true, part, agrees=agrees))
        values = tuple(None if slot is None else v for slot, v in zip(order, off, strict=True))
    return PartScores(name, _kind(part), "equal" if agrees else "error", values, _rounded(bars))


def _distances(read: Tensor, true: Tensor, part: BatchPart, *, agrees: bool) -> Float[Tensor, " n"]:
    """Share of entries that are equal, or the mean absolute error in shares of the range, of each example."""
    read, true = read.double(), true.reshape(len(true), -1).double()
    if agrees:
        return (read.round() == true).double().mean(1)
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in part.edges)
    return ((read - true).abs() / (high - low)).mean(1)


def _kind(part: BatchPart) -> str:
    if not isinstance(part, DataSpec):
        return type(part).__name__.lower()
    return "text" if part.is_text else {2: "series", 3: "picture", 4: "volume"}.get(len(part.shape), "numbers")


def checked(found: Any, task: Task) -> Reconstruction:
    """The reconstruction, or a failure where its parts are no answer or do not fit together."""
    if not isinstance(found, Reconstruction) or not isinstance(found.status, Status):
        return _failed(f"gave a {type(found).__name__}, no Reconstruction with a Status")
    cost, inputs, labels = found.cost, found.inputs, found.labels
    if not (isinstance(cost, Cost) and _finite(cost.seconds) and _finite(cost.gradient_evaluations)):
        return _failed(f"its cost is {cost}, no finite numbers")
    cost = Cost(int(cost.gradient_evaluations), float(cost.seconds))
    if problem := next(_problems(found, task), ""):
        return _failed(problem, cost)
    if inputs is not None and not bool(torch.isfinite(inputs).all()):
        return Reconstruction(None, None, Status.NON_FINITE, "the examples are not finite", cost=cost)
    return replace(
        found,
        inputs=None if inputs is None else inputs.detach(),
        labels=None if labels is None else labels.detach().cpu(),
        message=str(found.message),
        cost=cost,
        trace=tuple((int(evaluations), float(objective)) for evaluations, objective in found.trace),
        certified=None if found.certified is None else found.certified.detach().cpu().bool(),
        blind=str(found.blind),
        restarts=tuple(float(v) for v in found.restarts),
        tried=tuple(
            Tried(str(t.name), Status(t.status), str(t.why), bool(t.raised), bool(t.opaque)) for t in found.tried
        ),
        features=tuple(
            replace(one, layer=str(one.layer), error=float(one.error))
            for one in found.features
            if isinstance(one, KnownFeatures) and _finite(one.error)
        ),
    )


def _failed(problem: str, cost: Cost = Cost()) -> Reconstruction:
    return Reconstruction(None, None, Status.FAILED, f"the attack's answer cannot be used: {problem}", cost=cost)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _problems(found: Reconstruction, task: Task) -> Iterator[str]:
    inputs, labels, sure = cast(Any, found.inputs), cast(Any, found.labels), found.label_confidence
    if inputs is not None and (not isinstance(inputs, Tensor) or inputs.layout != torch.strided):
        yield f"its examples are a {type(inputs).__name__}, no plain tensor"
    elif inputs is not None and not inputs.is_floating_point():
        yield f"its examples are {inputs.dtype}, not real numbers with a fraction"
    elif inputs is not None and (tuple(inputs.shape[1:]) != task.data.shape or not len(inputs)):
        yield f"gave examples of shape {tuple(inputs.shape)}, the data have {task.data.shape}"
    plain = isinstance(labels, Tensor) and labels.layout == torch.strided
    soft = plain and labels.ndim == 2
    if labels is None:
        pass
    elif not task.of_classes:
        real = plain and labels.ndim and not labels.is_complex()
        if not (real and bool(torch.isfinite(labels).all())):
            yield "its targets are no finite real numbers, one row an example"
    elif not plain or labels.ndim not in (1, 2):
        yield "its labels are no list of classes and no table of shares"
    elif labels.is_complex() or labels.is_floating_point() != soft or (soft and not labels.numel()):
        yield f"its labels are {labels.dtype} of shape {tuple(labels.shape)}"
    elif not bool(torch.isfinite(labels).all()):
        yield "its labels are not finite"
    elif len(labels):
        hard = labels.argmax(1) if soft else labels
        if not 0 <= int(hard.min()) <= int(hard.max()) < task.data.classes:
            yield f"its labels are not all in [0, {task.data.classes})"
    if not (sure is None or (_finite(sure) and 0 <= sure <= 1)):
        yield f"its confidence in the labels is {sure}, no share"
    if found.certified is not None and (inputs is None or tuple(found.certified.shape) != (len(inputs),)):
        yield "it does not say of each example whether it is certified"
