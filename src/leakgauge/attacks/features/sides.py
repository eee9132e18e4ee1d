"""On which side of zero units are that stand nearer to it than examples are exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.read import Noisy
from leakgauge.attacks.features.signals import KnownInside
from leakgauge.attacks.features.systems import OFF, passing, rectified
from leakgauge.task import Batch

MARGIN = 1e-6  # of a tensor's deviation, as far as units are set from zero: beyond what float32 leaves of it
ODD = 1e-5  # share of a filter's gradient that it leaves whose signals pass a wrong zero


def nudged(inside: Inside, gradients: Mapping[str, Noisy], batch: Batch, faint: float) -> Float[Tensor, "n *shape"]:
    """Raw examples, moved by as little as puts units on the side of zero that the update shows.

    Of a unit at zero the client's own rounding decides, and its whole signal shows: examples that are exact to seven
    digits explain the update to three. The gradient of a layer is linear in which units behind it pass their signals,
    which is told from the output on. `faint`: share of a tensor's deviation that its units may be off.
    """
    known, batch = KnownInside(inside), Batch(batch.inputs.double(), batch.labels)
    at = {one.hidden: bent.at for one in inside.layers if (bent := known.bent(one.hidden)) and bent.below == 0}
    raw = dict(zip(at, inside.run([*at.values()], {}, batch), strict=True))
    values = {node: rectified(full, full > 0) for node, full in raw.items()}
    sent: dict[Node, Tensor] = {}
    for layer in reversed(inside.layers):
        behind = _behind(inside, layer, raw)
        if layer.weight in gradients and behind is not None:
            above, node = behind
            if above not in sent:
                (sent[above],) = inside.run([above], values | sent, batch)
            on = _told(inside, layer, gradients[layer.weight], batch, (values, sent), node, raw[node], faint)
            values[node] = rectified(raw[node], on)
    moved = [batch.inputs[i : i + 1] + _step(inside, at, raw, values, batch, i, faint) for i in range(len(batch))]
    return torch.cat(moved)


def _behind(inside: Inside, layer: Layer, raw: Mapping[Node, Tensor]) -> tuple[Node, Node] | None:
    """The tensor whose zeros a layer's signals pass last, and the signals before that."""
    graph, order = inside.graph, {n: k for k, n in enumerate(inside.graph.trace.code.graph.nodes)}
    todo, found = [layer.output], list[tuple[Node, Node, Node]]()
    seen = set(todo)
    while todo:
        node = todo.pop()
        above = [n for n in node.all_input_nodes if n in graph.colours.behind]
        masks = [n for n in raw if any(graph.same.get(m) is graph.same[n] for m in node.all_input_nodes)]
        if len(above) == 1 and len(masks) == 1:
            found.append((node, above[0], masks[0]))
            continue
        todo += [n for n in above if n not in seen]
        seen |= set(above)
    last = max(found, key=lambda one: order[one[0]], default=None)
    shaped = last is not None and inside.value_shape(layer.output) == tuple(raw[last[2]].shape)
    return last[1:] if last is not None and shaped else None


def _told(
    inside: Inside,
    layer: Layer,
    gradient: Noisy,
    batch: Batch,
    known: tuple[Mapping[Node, Tensor], Mapping[Node, Tensor]],
    node: Node,
    full: Tensor,
    faint: float,
) -> Tensor:
    """Which entries of a tensor are above zero, by the gradient of the layer in front of it."""
    values, sent = known
    on, near = values[node] > 0, full.abs() < faint * full.std()
    given = [{**values, **sent, node: rectified(full, mask)} for mask in (on, torch.ones_like(on))]
    now, opened = (inside.signals(layer.product, inside.run([layer.output], g, batch)[0]).flatten(0, 1) for g in given)
    (hidden,) = inside.run([layer.hidden], values, batch)
    rows = layer.unfolding.rows(layer.unfolding.of_hidden(hidden)).flatten(0, 1)
    left = (now.T @ rows - gradient.matrix).norm(dim=1) / gradient.matrix.norm(dim=1).clamp_min(1e-300)
    places = torch.arange(full.numel(), dtype=torch.float64).view(full.shape)
    entries, flat, near = inside.signals(layer.product, places).flatten(0, 1).long(), on.flatten(), near.flatten()
    allowed = max(ODD, OFF * float(left.median()), 3 * gradient.share)
    for k in (left > allowed).nonzero()[:, 0].tolist():
        mine = entries[:, k]
        flat[mine] = passing(flat[mine], near[mine], opened[:, k, None] * rows, gradient.matrix[k], allowed)
    return flat.view(full.shape)


def _step(
    inside: Inside,
    at: Mapping[Node, Node],
    raw: Mapping[Node, Tensor],
    values: Mapping[Node, Tensor],
    batch: Batch,
    index: int,
    faint: float,
) -> Float[Tensor, "1 *shape"]:
    """The least one that moves an example's units to their sides, and keeps others near zero where they are."""
    inputs = batch.inputs[index : index + 1].clone().requires_grad_()
    with torch.enable_grad():
        made = replace(inside, examples=1).run([*at.values()], {}, Batch(inputs, batch.labels[index : index + 1]))
    slopes, wanted = [], []
    for node, seen in zip(at, made, strict=True):
        full, on, seen = raw[node][index].flatten(), (values[node][index] > 0).flatten(), seen.flatten()
        size = float(raw[node].std())
        for i in (full.abs() < faint * size).nonzero()[:, 0].tolist():
            slopes.append(torch.autograd.grad(seen[i], inputs, retain_graph=True)[0].flatten())
            side = MARGIN * size * (1 if on[i] else -1)
            wanted.append(
                0.0 if bool(on[i]) == bool(full[i] > 0) and abs(float(full[i])) > abs(side) else side - float(full[i])
            )
    if not any(wanted):
        return torch.zeros_like(inputs.detach())
    rows, moved = torch.stack(slopes), inputs.new_tensor(wanted)
    step: Tensor = torch.linalg.pinv(rows) @ moved
    return step.view_as(inputs).detach()
