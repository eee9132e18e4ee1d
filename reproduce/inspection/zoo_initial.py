"""Initialisations that honest servers use. Each writes one model in place and names itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import init

from reproduce.inspection.zoo_dice import Dice

Fill = Callable[[Tensor], object]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)

FILLS: Mapping[str, Fill] = {
    "kaiming-uniform-fan-in": lambda w: init.kaiming_uniform_(w, nonlinearity="relu"),
    "kaiming-normal-fan-in": lambda w: init.kaiming_normal_(w, nonlinearity="relu"),
    "kaiming-normal-fan-out": lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    "xavier-uniform": init.xavier_uniform_,
    "xavier-normal-gain-2": lambda w: init.xavier_normal_(w, gain=2.0),
    "orthogonal": init.orthogonal_,
    "truncated-normal-.02": lambda w: init.trunc_normal_(w, std=0.02),
    "normal-.01": lambda w: init.normal_(w, std=0.01),
    "uniform-.5": lambda w: init.uniform_(w, -0.5, 0.5),
    "uniform-.05": lambda w: init.uniform_(w, -0.05, 0.05),
}
BIASES: Mapping[str, Fill] = {
    "zero": init.zeros_,
    ".01": lambda b: init.constant_(b, 0.01),
    ".1": lambda b: init.constant_(b, 0.1),
    "uniform-.5": lambda b: init.uniform_(b, -0.5, 0.5),
}


def initialise(module: nn.Module, dice: Dice) -> str:
    """One scheme for all weights (a third keep torch's default), one for biases, sometimes zeroed ends."""
    notes = []
    with dice.torch_seeded():
        if dice.chance(0.67):
            name = dice.pick(list(FILLS))
            bias = dice.pick(["default", "zero", "zero", *BIASES])
            # Biases of that size beside small weights are nobody's choice.
            bias = "default" if bias == "uniform-.5" != name else bias
            for layer in module.modules():
                if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
                    FILLS[name](layer.weight)
                    if layer.bias is not None and bias in BIASES:
                        BIASES[bias](layer.bias)
            notes.append(f"{name}, bias {bias}")
    if dice.chance(0.3):
        closing = [m for n, m in module.named_modules() if n.endswith("last_norm") and isinstance(m, NORMS)]
        for norm in closing:
            init.zeros_(norm.weight)  # type: ignore[arg-type]
        notes += ["residual branches closed"] if closing else []
    if dice.chance(0.12):
        last = [m for m in module.modules() if isinstance(m, nn.Linear)]
        if last:
            init.zeros_(last[-1].weight)
            if last[-1].bias is not None:
                init.zeros_(last[-1].bias)
            notes.append("last layer zero")
    return "; ".join(notes) or "torch default"


def lookalike(module: nn.Module, dice: Dice) -> str | None:
    """Honest initialisations that copy their input: Dirac convolutions, identity recurrences or linear layers.

    They look like what MKOR and identity convolutions do, and do let more of the input through; they are
    reported apart. None: this module has no layer for it.
    """
    squares = [m for m in module.modules() if isinstance(m, nn.Linear) and m.in_features == m.out_features]
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.groups == 1 and m.kernel_size[0] % 2]
    if convolutions and (not squares or dice.chance(0.7)):
        for conv in convolutions:
            init.dirac_(conv.weight)
        return "Dirac convolutions"
    if not squares:
        return None
    for linear in squares:
        init.eye_(linear.weight)
    return "identity linear layers"
