"""The reference framework `breaching` 0.1.2, run on the very task and update that leakgauge attacks.

It asks for torchvision, whose wheels beside a CPU build of torch fail to load (`torchvision::nms` and `qnms` are
missing). No attack on pictures uses it, so that empty modules stand in for it and for LPIPS.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.observation import Observation

ABSENT = ("torchvision", "torchvision.transforms", "torchvision.models", "torchvision.models.densenet")
ABSENT += ("torchvision.datasets", "torchvision.datasets.utils", "lpips")

SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "inverting-gradients": ("invertinggradients", ()),
    "inverting-gradients-tv-2e-2": ("invertinggradients", ("regularization.total_variation.scale=0.02",)),
    "inverting-gradients-tv-2e-3": ("invertinggradients", ("regularization.total_variation.scale=0.002",)),
    "modern": ("modern", ("regularization.deep_inversion.scale=0.0",)),
    "deep-leakage": ("deepleakage", ("attack_type=optimization",)),
    "deep-leakage-joint": ("deepleakage", ()),
    "r-gap": ("rgap", ()),
    "imprint": ("imprint", ("token_strategy=null",)),
    "tag": ("tag", ()),
}
"""Name here → its configuration and what is set beside. The last four take no label; to the others it is given, so
that none searches for it."""


def configured(setting: str) -> tuple[str, tuple[str, ...]]:
    """A name of `SETTINGS`, or a configuration of the package with what is set beside it, all split by spaces."""
    preset, *overrides = setting.split()
    return SETTINGS.get(setting, (preset, tuple(overrides)))


class _Absent(types.ModuleType):
    """A module whose every name is an empty class, to inherit from or to annotate with."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def framework() -> Any:
    """The package, with empty modules for what it imports and does not use here."""
    for name in ABSENT:
        module = _Absent(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules.setdefault(name, module)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    import breaching

    return breaching


def attack(
    seen: Observation,
    setting: str,
    steps: int | None,
    seed: int,
    watch: Callable[[Tensor], bool] | None,
    *,
    restarts: int = 1,
) -> Callable[[], Tensor]:
    """A run, as a function that returns the picture in model-input units.

    Args:
        steps: of its search; `None` for what its configuration says, or where it searches nothing.
        watch: is shown the candidate before each step; the run ends when it answers yes.
    """
    breaching = framework()
    preset, overrides = configured(setting)
    length = [f"optim.max_iterations={steps}", "optim.callback=1000000", f"restarts.num_trials={restarts}"]
    length = [] if steps is None else length
    cfg = breaching.get_attack_config(preset, [*overrides, *length])
    task, data = seen.task, seen.task.data
    like = types.SimpleNamespace(shape=data.shape, modality="text", classes=data.classes, task="classification")
    if not data.is_text:
        like.modality = "vision"
        like.mean, like.std = (torch.as_tensor(v).flatten().tolist() for v in (data.mean, data.std))
    held = _AttributesAndKeys(vars(like))
    loss = torch.nn.CrossEntropyLoss()
    attacker = breaching.attacks.prepare_attack(task.module, loss, cfg, {"device": "cpu", "dtype": torch.float32})
    if watch is not None:
        step, seeing = attacker._compute_objective, watch

        def watched(candidate: Tensor, *rest: Any) -> Any:
            if seeing(candidate.detach()):
                raise KeyboardInterrupt  # its own way to end a run early
            return step(candidate, *rest)

        attacker._compute_objective = watched
    payload = [{"parameters": list(task.parameters.values()), "buffers": list(task.buffers.values()), "metadata": held}]
    labels = seen.knowledge.labels
    header = {"num_data_points": seen.examples, "labels": labels, "local_hyperparams": None}
    shared = [{"gradients": list(seen.update.tensors.values()), "buffers": None, "metadata": header}]

    # What its server keeps of a block in front, which only its own attack on such blocks asks for.
    secret = {"weight_idx": 0, "bias_idx": 1, "shape": data.shape, "structure": "cumulative"}

    def run() -> Tensor:
        torch.manual_seed(seed)
        with sdpa_kernel(SDPBackend.MATH):  # the fast attention has no second derivative
            found, _ = attacker.reconstruct(payload, shared, {"ImprintBlock": secret})
        return found["data"]  # type: ignore[no-any-return]

    return run


class _AttributesAndKeys(dict[str, Any]):
    """Read both ways, as the framework's configurations are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error
