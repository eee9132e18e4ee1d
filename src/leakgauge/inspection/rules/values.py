"""Rules about values and sizes, constant rows, and sub-models for single examples."""

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.inspection.drives import driven, drives
from leakgauge.inspection.matrices import Omission, WeightTensor, comparable, layers, working
from leakgauge.inspection.rule import Measurement, Part, Received, most_suspicious, register
from leakgauge.task import Batch, Task


@register(
    "not-finite",
    "One such entry makes every output and every update NaN: a broken model, or a way to switch off clients or "
    "what compares updates. Honest reasons: training diverged.",
)
def not_finite(received: Received) -> Measurement:
    """Statistic: number of entries that are NaN or infinite."""
    counts = {
        name: int((~working(tensor).isfinite()).sum())
        for name, tensor in received.state.items()
        if tensor.is_floating_point() and not bool(working(tensor).sum().isfinite())
    }
    worst = sorted((n for n, c in counts.items() if c), key=lambda n: -counts[n])
    if not worst:
        return Measurement(0.0, (), "Every entry is finite.")
    evidence = f"{sum(counts.values())} entries are NaN or infinite, {counts[worst[0]]} of them in {worst[0]}."
    return Measurement(float(sum(counts.values())), tuple(worst), evidence)


@register(
    "huge-weights",
    "A weight far above all others makes its unit a threshold on one feature (feature fishing). Honest "
    "reasons: outlier features of large language models, unnormalised inputs.",
)
def huge_weights(received: Received) -> Measurement:
    """Statistic: largest absolute entry of any weight matrix. Not scale-free: inputs are taken to be near 1."""
    found, unjudged = layers(received.state)
    tops = {layer.name: min(1e30, *(float(part.abs().max()) for part in layer.chunks())) for layer in found}
    suspects = [(top, name, f"The largest entry of {name} is {top:.4g}.") for name, top in tops.items()]
    return most_suspicious(suspects, "No layer to judge.", unjudged, share=1 / 3)


MIN_INPUTS = 16
CAP = 1e4


@register(
    "constant-rows",
    "A unit that weighs all inputs alike has the mean of its inputs as a gradient and never sleeps; a first "
    "linear layer of such units gives each class's features away (MKOR). Honest reasons: fixed averaging filters.",
)
def constant_rows(received: Received) -> Measurement:
    """Looks for rows whose entries hardly differ.

    Statistic: max over layers of the second largest |mean|/std over the entries of a row (the largest where a
    layer has one row), at most 10⁴. A row of independent entries of mean zero has about 1/√k; trained rows
    reach a few where a filter is a blob. Rows below 10⁻⁶ of the layer's largest are left out. Invariant
    under a factor per row."""
    found, unjudged = comparable(received.state, units=1, inputs=MIN_INPUTS)
    suspects = []
    for layer in found:
        ratios = _ratios(layer).sort(descending=True).values
        if len(ratios):
            second = float(ratios[min(1, layer.units - 1)]) if len(ratios) > 1 or layer.units == 1 else 0.0
            count = int((ratios >= max(second / 2, 2.0)).sum())
            about = "over 10 000" if second >= CAP else f"{second:.2f}"
            evidence = f"The mean of a row is {about} times its spread in {layer.name}"
            evidence += f" ({count} of {layer.units} rows at least half of that)." if count else "."
            suspects.append((second, layer.name, evidence))
    return most_suspicious(suspects, "No layer to judge.", unjudged, share=1 / 2, least=2.0)


def _ratios(layer: WeightTensor) -> torch.Tensor:
    """|mean|/std of each row that is not dead."""

    def measure(part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        top = part.abs().amax(1)
        scaled = part / top.clamp_min(1e-30)[:, None]
        mean = scaled.mean(1, keepdim=True)
        return mean[:, 0].abs(), scaled.sub_(mean).square_().mean(1).sqrt(), top

    means, spreads, top = layer.by_rows(measure)
    return (means / spreads.clamp_min(1.0 / CAP)).clamp_max(CAP)[top > top.max() * 1e-6]


PICTURES = 16


def pictures(task: Task, number: int, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
    """Probe examples in the data's range that differ in brightness, shape and detail."""
    shape = task.data.shape
    noise = torch.rand((number, *shape), generator=generator, dtype=torch.float64)
    rough = torch.randn((number, *shape), generator=generator, dtype=torch.float64)
    for axis in range(2, rough.ndim):
        rough = rough.cumsum(axis)
    flat = rough.flatten(1)
    smooth = ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True).clamp_min(1e-12)).view_as(rough)
    level = torch.rand((number, *[1] * len(shape)), generator=generator, dtype=torch.float64)
    mixed = 0.2 + 0.6 * level + 0.15 * smooth + 0.2 * (noise - 0.5)
    return task.data.low + task.data.range * mixed.clamp(0, 1)


@register(
    "sub-models",
    "A part that serves one example has that example's gradient alone (routed sub-models, bins, trap weights). "
    "Honest reasons: a mixture of many experts; a layer with very sparse activations.",
    needs=(Part.TASK,),
)
def sub_models(received: Received) -> Measurement:
    """Parts of the model that one probe example alone drives.

    Statistic in [0, 1): the larger of two shares over sixteen made-up pictures with made-up labels. Of the layers below
    the answering one, those that exactly one picture drives, in (layers + 2). Of the rows of each linear layer,
    those that one picture drives, in (driven rows + 2); the first linear layer counts."""
    assert received.task is not None
    task = received.task
    labels = torch.arange(PICTURES) % task.data.classes
    found = drives(task, Batch(pictures(task, PICTURES, torch.Generator().manual_seed(0)), labels))
    if not found.hidden or int(found.erring.sum()) < PICTURES // 2:
        why = "has no watched layer below the one that answers, or does not err on made-up pictures"
        return Measurement(0.0, (), "Not judged.", (Omission("model", why), *found.remarks))
    private, rows_share, rows_name = [], 0.0, ""
    for layer in found.hidden:
        rows = layer.rows[found.erring].double()
        gain, on = rows.norm(dim=1), driven(rows)
        if int((gain > 1e-6 * gain.max()).sum()) == 1:
            private.append(layer.name)
        share = float((on.sum(0) == 1).sum()) / (float(on.any(0).sum()) + 2)
        if layer.first and share > rows_share:
            rows_share, rows_name = share, layer.name
    layers_share = len(private) / (len(found.hidden) + 2)
    where = (*private, *([rows_name] if rows_name and rows_share >= layers_share else []))
    evidence = f"{len(private)} of {len(found.hidden)} layers are driven by one of {PICTURES} probe pictures only" + (
        f", and so are {rows_share:.0%} of the rows of {rows_name}." if rows_name else "."
    )
    return Measurement(max(layers_share, rows_share), where, evidence, found.remarks)
