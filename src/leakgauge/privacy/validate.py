"""Can this network be trained with differential privacy at all?"""

from __future__ import annotations

from torch import nn

from leakgauge.privacy.accounting import opacus

MENDS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "mixes the examples of a batch; use GroupNorm"),
    (nn.modules.instancenorm._InstanceNorm, "keeps running statistics without noise; set track_running_stats=False"),
    (nn.LSTM, "has no per-example gradients; use opacus.layers.DPLSTM"),
    (nn.GRU, "has no per-example gradients; use opacus.layers.DPGRU"),
    (nn.RNN, "has no per-example gradients; use opacus.layers.DPRNN"),
    (nn.MultiheadAttention, "has no per-example gradients; use opacus.layers.DPMultiheadAttention"),
)


def validate_for_dp(module: nn.Module) -> tuple[str, ...]:
    """What must change in a network before DP-SGD, one sentence a layer; empty if nothing. Opacus decides.

    Layers without trainable parameters, which Opacus passes over, are looked at too: they mix examples as well.
    It is about training. An update computed in eval mode may be clipped example by example with BatchNorm as well.

    Raises:
        InputError: Opacus is not installed.
    """
    validators = opacus("opacus.validators").ModuleValidator.VALIDATORS
    found: list[str] = []
    for name, part in module.named_modules():
        errors = validators[type(part)](part) if type(part) in validators else []
        if errors:
            mend = next((text for kind, text in MENDS if isinstance(part, kind)), f"is refused ({errors[0]})")
            found.append(f"{name or 'the model'} ({type(part).__name__}) {mend}")
    return tuple(found)
