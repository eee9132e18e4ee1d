"""Small honest models, and what honest owners do to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def network() -> nn.Module:
    """Convolutions with BatchNorm, a depthwise one, and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.Conv2d(32, 64, 1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(256),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def initialised(with_: Callable[[Tensor], object], seed: int = 0) -> State:
    """The network with its matrices drawn anew."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = network()
        for parameter in net.parameters():
            if parameter.dim() > 1:
                with_(parameter.data)
    return state(net)


def state(net: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def matrices(found: State, change: Callable[[Tensor], Tensor], *, head: bool = True) -> State:
    """The state with every matrix changed, the last one only if asked."""
    names = [name for name, tensor in found.items() if tensor.dim() > 1]
    chosen = names if head else names[:-1]
    return {name: change(tensor) if name in chosen else tensor for name, tensor in found.items()}


def pruned(found: State, share: float) -> State:
    """Without the smallest entries of every matrix."""

    def prune(w: Tensor) -> Tensor:
        return w * (w.abs() > w.abs().flatten().kthvalue(max(1, int(share * w.numel()))).values)

    return matrices(found, prune)


def without_filters(found: State) -> State:
    """Half of the units of every layer but the last are zero."""

    def drop(w: Tensor) -> Tensor:
        norms = w.flatten(1).norm(dim=1)
        keep = norms >= norms.median()
        return w * keep.view(-1, *[1] * (w.dim() - 1))

    return matrices(found, drop, head=False)


def quantised(found: State, bits: int) -> State:
    """Every tensor on a grid of 2^bits steps, kept as float."""

    def quantise(t: Tensor) -> Tensor:
        step = t.abs().max() / (2 ** (bits - 1) - 1)
        return (t / step).round() * step if t.is_floating_point() and bool(step > 0) else t

    return {name: quantise(tensor) for name, tensor in found.items()}


def decayed(found: State) -> State:
    """Dead filters as weight decay leaves them: tiny, some down to the last entry above zero."""
    g = torch.Generator().manual_seed(1)

    def decay(w: Tensor) -> Tensor:
        w = w.clone()
        dead = torch.rand(len(w), generator=g) < 0.3
        w[dead] *= 1e-12
        if len(w) > 4:
            w[4] = 0
            w[4].view(-1)[0] = 1e-38
        return w

    return matrices(found, decay, head=False)


def residual() -> State:
    """Fixup-like: zero last layers and gammas."""
    found = initialised(lambda w: nn.init.kaiming_normal_(w))
    return found | {name: torch.zeros_like(found[name]) for name in ("1.weight", "6.weight", "12.weight", "12.bias")}


def trained() -> State:
    """A few hundred steps on two-sided blobs, with weight decay."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
        middle = torch.rand(4, 48)
        for _ in range(300):
            y = torch.randint(4, (32,))
            loss = nn.functional.cross_entropy(net(middle[y] + 0.3 * torch.rand(32, 48)), y)
            parameters = list(net.parameters())
            for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.data.mul_(1 - 1e-3).sub_(slope, alpha=0.1)
    return state(net)


KINDS: dict[str, Callable[[], State]] = {
    "torch-default": lambda: initialised(lambda _: None),
    "kaiming-uniform": lambda: initialised(lambda w: nn.init.kaiming_uniform_(w)),
    "kaiming-normal": lambda: initialised(lambda w: nn.init.kaiming_normal_(w)),
    "xavier-uniform": lambda: initialised(lambda w: nn.init.xavier_uniform_(w)),
    "xavier-normal": lambda: initialised(lambda w: nn.init.xavier_normal_(w)),
    "uniform-half": lambda: initialised(lambda w: nn.init.uniform_(w, -0.5, 0.5)),
    "truncated": lambda: initialised(lambda w: nn.init.trunc_normal_(w, std=0.02)),
    "orthogonal": lambda: initialised(lambda w: nn.init.orthogonal_(w)),
    "residual": residual,
    "trained": trained,
    "trained-pruned": lambda: pruned(trained(), 0.8),
    "pruned-50": lambda: pruned(initialised(lambda _: None), 0.5),
    "pruned-90": lambda: pruned(initialised(lambda _: None), 0.9),
    "pruned-95": lambda: pruned(initialised(lambda _: None), 0.95),
    "without-filters": lambda: without_filters(initialised(lambda _: None)),
    "quantised-8": lambda: quantised(initialised(lambda _: None), 8),
    "quantised-4": lambda: quantised(initialised(lambda _: None), 4),
    "pruned-quantised": lambda: quantised(pruned(initialised(lambda _: None), 0.9), 4),
    "decayed": lambda: decayed(initialised(lambda _: None)),
    "half": lambda: {k: v.half() if v.is_floating_point() else v for k, v in initialised(lambda _: None).items()},
    "embedding": lambda: {"embed.weight": torch.ones(50, 32), "position": torch.arange(50), **state(nn.Linear(32, 4))},
    "tiny": lambda: state(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(4, 2))),
    "scalars": lambda: {"scale": torch.tensor(2.0), "mask": torch.ones(4, 4, dtype=torch.bool), "n": torch.tensor(3)},
    "empty-shape": lambda: {"w": torch.zeros(0, 4), "v": torch.zeros(4, 0)},
}
