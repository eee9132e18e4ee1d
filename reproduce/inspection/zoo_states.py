"""What honest servers do to weights before they send them. Each changes a module in place and names itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from reproduce.inspection.zoo_dice import Dice
from reproduce.inspection.zoo_initial import CONVOLUTIONS
from reproduce.inspection.zoo_training import Regime, School

State = Callable[[nn.Module, School, Dice], str]


def _weights(module: nn.Module) -> list[Tensor]:
    """Matrices and kernels."""
    return [p.data for p in module.parameters() if p.dim() > 1]


def pruned(module: nn.Module, _: School, dice: Dice) -> str:
    """50 to 95 % of weights zeroed by magnitude, over all layers or in each, or at random."""
    share, way = dice.pick((0.5, 0.7, 0.8, 0.9, 0.95)), dice.pick(("global", "layer", "random"))
    weights = _weights(module)
    everything = torch.cat([w.abs().flatten() for w in weights])
    limit = everything.kthvalue(max(1, int(share * len(everything)))).values
    for w in weights:
        if way == "random":
            w.mul_(torch.rand(w.shape, generator=dice.generator) >= share)
        else:
            own = w.abs().flatten().kthvalue(max(1, int(share * w.numel()))).values if way == "layer" else limit
            w.mul_(w.abs() > own)
    return f"pruned {share:.0%} ({way})"


def channels_pruned(module: nn.Module, _: School, dice: Dice) -> str:
    """20 to 60 % of the output channels of every convolution or hidden layer zeroed, the weakest ones."""
    share, before = dice.real(0.2, 0.6), None
    layers = [m for m in module.modules() if isinstance(m, (nn.Linear, *CONVOLUTIONS, nn.BatchNorm2d))]
    for layer in layers[:-1]:
        if isinstance(layer, nn.BatchNorm2d):
            if before is not None and len(before) == len(layer.weight):
                layer.weight.data.mul_(before)
                layer.bias.data.mul_(before)
            continue
        if isinstance(layer, nn.ConvTranspose2d) or len(layer.weight) < 4:
            continue
        norms = layer.weight.data.flatten(1).norm(dim=1)
        before = torch.ones_like(norms)
        before[norms.argsort()[: int(share * len(norms))]] = 0
        layer.weight.data.mul_(before.view(-1, *[1] * (layer.weight.dim() - 1)))
        if layer.bias is not None:
            layer.bias.data.mul_(before)
    return f"channels pruned {share:.0%}"


def quantised(module: nn.Module, _: School, dice: Dice) -> str:
    """Symmetric rounding to 8 or 4 bits, one scale a tensor or a channel."""
    bits, by_channel = dice.pick((8, 4)), dice.chance(0.5)
    for w in _weights(module):
        rows = w.view(len(w), -1)
        top = rows.abs().amax(1, keepdim=True) if by_channel else rows.abs().max().view(1, 1)
        step = (top / (2 ** (bits - 1) - 1)).clamp(min=1e-12)
        rows.copy_((rows / step).round() * step)
    return f"{bits} bits a {'channel' if by_channel else 'tensor'}"


def fine_tuned(module: nn.Module, school: School, dice: Dice) -> str:
    """A fresh last layer, trained alone or with the others for 10 to 40 steps."""
    last = [m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1]
    with dice.torch_seeded():
        last.reset_parameters()
    frozen = dice.chance(0.5)
    trained = {id(p) for p in (last if frozen else module).parameters()}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    regime = Regime.drawn(dice, (10, 40))
    loss = school.train(module, regime, dice)
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    return f"fine-tuned{', rest frozen' if frozen else ''}, {regime.describe()}, loss {loss:.2f}"


def averaged(module: nn.Module, school: School, dice: Dice) -> str:
    """Mean of two or three clients' models after six local steps each (FedAvg)."""
    clients, states = dice.whole(2, 3), []
    for _ in range(clients):
        local = copy.deepcopy(module)
        regime = Regime(steps=6, batch=16, examples=128, optimiser="sgd", lr=0.01, weight_decay=0.0)
        school.train(local, regime, dice)
        states.append(local.state_dict())
    module.load_state_dict(
        {k: torch.stack([s[k].double() for s in states]).mean(0).to(v) for k, v in states[0].items()}
    )
    return f"mean of {clients} clients"


def low_rank(module: nn.Module, _: School, dice: Dice) -> str:
    """Every matrix and kernel replaced by its best approximation of a tenth to a half of its rank, four at least."""
    share = dice.real(0.1, 0.5)
    for w in _weights(module):
        flat = w.reshape(len(w), -1)
        u, s, v = torch.linalg.svd(flat, full_matrices=False)
        rank = max(min(4, len(s)), int(share * len(s)))
        w.copy_(((u[:, :rank] * s[:rank]) @ v[:rank]).view(w.shape))
    return f"rank {share:.0%}"


def noised(module: nn.Module, _: School, dice: Dice) -> str:
    """Gaussian noise of 1 to 30 % of each tensor's spread (central differential privacy)."""
    share = dice.scale(0.01, 0.3)
    for p in module.parameters():
        spread = float(p.data.std()) if p.numel() > 1 else 0.0
        p.data.add_(share * spread * torch.randn(p.shape, generator=dice.generator))
    return f"noise {share:.0%} of the spread"


def as_is(_: nn.Module, __: School, ___: Dice) -> str:
    """Nothing."""
    return ""


STATES: Mapping[str, State] = {
    "as-is": as_is,
    "pruned": pruned,
    "channels-pruned": channels_pruned,
    "quantised": quantised,
    "fine-tuned": fine_tuned,
    "averaged": averaged,
    "low-rank": low_rank,
    "noised": noised,
}
