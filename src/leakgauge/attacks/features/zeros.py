"""On which side of zero units are that stand nearer to it than what is known is exact."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.read import Noisy
from leakgauge.attacks.features.signals import KnownInside
from leakgauge.task import Batch

MARGIN = 1e-6  # of a tensor's deviation, as far as units are set from zero: beyond what float32 leaves of it
LEFT = 1e-5  # share of a filter's gradient that it may leave whose signals pass no wrong zero
GAP = 30.0  # times what numbers are below zero up to which the widest gap behind zeros is looked for
OFF = 4.0  # times as much as most that a filter leaves whose signals may pass a wrong zero


def rectified(full: Float[Tensor, "n c ..."], on: Bool[Tensor, "n c ..."]) -> Float[Tensor, "n c ..."]:
    """What a ReLU lets through; an entry that is on stays above zero where its read is below."""
    return torch.where(on, full.clamp_min(torch.finfo(full.dtype).tiny), 0.0)


def zero_of(full: Float[Tensor, "n c ..."]) -> float:
    """Up to where numbers of a tensor behind a ReLU are zeros: the widest gap above what its errors reach below."""
    least = float((-full).max().clamp_min(1e-12 * float(full.abs().max())))
    near = full[(full > least) & (full < GAP * least)].sort().values
    near = torch.cat([near.new_tensor([least]), near, near.new_tensor([GAP * least])])
    widest = int((near[1:] / near[:-1]).argmax())
    return float((near[widest] * near[widest + 1]).sqrt())


def behind(inside: Inside, layer: Layer, tensors: Collection[Node]) -> tuple[Node, Node] | None:
    """Of ReLUs' outputs the one whose zeros a layer's signals have passed last, and these signals before it."""
    graph, todo, seen = inside.graph, [layer.output], {layer.output}
    order, found = [*graph.trace.code.graph.nodes], dict[Node, tuple[Node, Node]]()
    while todo:
        node = todo.pop()
        above = [n for n in node.all_input_nodes if n in graph.colours.behind]
        masks = [n for n in tensors if any(graph.same.get(m) is graph.same[n] for m in node.all_input_nodes)]
        if len(above) == len(masks) == 1:
            found[node] = above[0], masks[0]
        else:
            todo += [n for n in above if n not in seen]
            seen |= set(above)
    last = found[max(found, key=order.index)] if found else None
    return last if last is not None and inside.value_shape(layer.output) == inside.value_shape(last[1]) else None


def turned(
    known: KnownInside,
    layer: Layer,
    gradient: Noisy,
    rows: Float[Tensor, "m columns"],
    node: Node,
    full: Float[Tensor, "n c ..."],
    near: Bool[Tensor, "n c ..."],
    batch: Batch | None = None,
) -> Bool[Tensor, "n c ..."]:
    """Which entries of a tensor behind a layer of known `rows` pass their signals. Each filter's gradient is linear in
    them: of those `near` zero those do that make it. `full`: the tensor, with what a ReLU would set to zero."""
    inside, on = known.inside, known.values[node] > 0

    def signals(mask: Tensor) -> Float[Tensor, "m filters"]:
        given = replace(known, values={**known.values, node: rectified(full, mask)}).given
        return inside.signals(layer.product, inside.run([layer.output], given, batch)[0]).flatten(0, 1)

    now, opened = signals(on), signals(torch.ones_like(on))
    left = (now.T @ rows - gradient.matrix).norm(dim=1) / gradient.matrix.norm(dim=1).clamp_min(1e-300)
    allowed = max(LEFT, OFF * float(left.median()), 3 * gradient.share)
    places = torch.arange(full.numel(), dtype=torch.float64).view(full.shape)
    entries, flat = inside.signals(layer.product, places).flatten(0, 1).long(), on.flatten()
    for k in (left > allowed).nonzero()[:, 0].tolist():
        mine, passed, target = entries[:, k], opened[:, k, None] * rows, gradient.matrix[k]
        some = near.flatten()[mine]
        missing = target - flat[mine[~some]].double() @ passed[~some]
        if 0 < int(some.sum()) <= rows.shape[1] // 2:
            found = torch.linalg.lstsq(passed[some].T, missing[:, None]).solution[:, 0] > 0.5
            if float((missing - found.double() @ passed[some]).norm()) < allowed * float(target.norm()):
                flat[mine[some]] = found
    return flat.view(full.shape)


def nudged(inside: Inside, gradients: Mapping[str, Noisy], batch: Batch, faint: float) -> Float[Tensor, "n *shape"]:
    """Raw examples, moved by as little as puts units on the side of zero that the update shows.

    Of a unit at zero the client's own rounding decides, and its whole signal shows: examples that are exact to seven
    digits explain the update to three. `faint`: share of a tensor's deviation that its units may be off.
    """
    known, batch = KnownInside(inside), Batch(batch.inputs.double(), batch.labels)
    at = {one.hidden: bent.at for one in inside.layers if (bent := known.bent(one.hidden)) and bent.below == 0}
    raw = dict(zip(at, inside.run([*at.values()], {}, batch), strict=True))
    near = {node: full.abs() < faint * full.std() for node, full in raw.items()}
    known.values.update({node: rectified(full, full > 0) for node, full in raw.items()})
    for layer in reversed(inside.layers):
        passed = behind(inside, layer, at) if layer.weight in gradients else None
        if passed is not None:
            above, node = passed
            if above not in known.sent:
                (known.sent[above],) = inside.run([above], known.given, batch)
            (hidden,) = inside.run([layer.hidden], known.values, batch)
            rows = layer.unfolding.rows(layer.unfolding.of_hidden(hidden)).flatten(0, 1)
            on = turned(known, layer, gradients[layer.weight], rows, node, raw[node], near[node], batch)
            known.values[node] = rectified(raw[node], on)
    moved = batch.inputs.clone()
    for index in range(len(moved)):
        inputs = moved[index : index + 1].clone().requires_grad_()
        with torch.enable_grad():
            made = replace(inside, examples=1).run([*at.values()], {}, Batch(inputs, batch.labels[index : index + 1]))
        slopes, steps = [], []
        for node, seen in ((n, t.flatten()) for n, t in zip(at, made, strict=True) if t.requires_grad):
            full, on = raw[node][index].flatten(), known.values[node][index].flatten() > 0
            for i in near[node][index].flatten().nonzero()[:, 0].tolist():
                slopes.append(torch.autograd.grad(seen[i], inputs, retain_graph=True)[0].flatten())
                side = MARGIN * float(raw[node].std()) * (1 if on[i] else -1)
                steps.append(0.0 if float(full[i]) / side > 1 else side - float(full[i]))
        if any(steps):
            moved[index] += (torch.linalg.pinv(torch.stack(slopes)) @ moved.new_tensor(steps)).view_as(moved[index])
    return moved
