"""Honest models to calibrate and judge the inspection of received models with.

A model is drawn from (split, number) alone: family of architecture, data format, initialisation or a trained base,
and what was done to the weights afterwards. Calibration and evaluation share no seed, no example, no trained base;
two families and two states exist in the evaluation split only. Nothing of it is needed at run time.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge.draws import Draws
from leakgauge.inspection.rule import Received
from leakgauge.task import Batch, DataSpec, Mode, Task
from reproduce.inspection.zoo_dice import Dice
from reproduce.inspection.zoo_families import (
    Family,
    convnet_bn,
    groupnorm,
    lenet5,
    lenet_zhu,
    mlp,
    plain,
    resnet,
    vgg,
    vgg_of,
)
from reproduce.inspection.zoo_formats import CLASSES, drawn_format
from reproduce.inspection.zoo_initial import initialise, lookalike
from reproduce.inspection.zoo_modern import densenet, mobile, recurrent, unet, vit, wave
from reproduce.inspection.zoo_pretrained import pretrained
from reproduce.inspection.zoo_states import STATES
from reproduce.inspection.zoo_stock import Split, Stock
from reproduce.inspection.zoo_training import Regime, School

FAMILIES: Mapping[str, Family] = {
    "mlp": mlp,
    "lenet": lenet_zhu,
    "lenet5": lenet5,
    "plain": plain,
    "vgg": vgg,
    "convnet": convnet_bn,
    "resnet": resnet,
    "groupnorm": groupnorm,
    "unet": unet,
    "vit": vit,
    "wave": wave,
    "recurrent": recurrent,
    "densenet": densenet,
    "mobile": mobile,
}
EVALUATION_ONLY = ("densenet", "mobile")
"""Families that no limit was calibrated with."""
STATES_EVALUATION_ONLY = ("averaged", "low-rank")
"""The same of states."""
SLOW = ("fine-tuned", "averaged")
"""States that train, and are therefore kept in the cache."""
EXAMPLES = 12
"""Of the client's own, for rules that use data."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ZooModel:
    """A model as a server sends it, and what is known of its making.

    Attributes:
        module, task, batch: in eval mode; format, loss and mode; the client's own examples.
        kind: honest, lookalike, or the dishonest server's name and strength.
        family, state: as in `FAMILIES` and `STATES` (with `untrained` for those without training).
        sent: the floating-point type on the wire.
        description: all of the above and the strengths, in words.
    """

    module: nn.Module
    task: Task
    batch: Batch
    kind: str
    family: str
    state: str
    description: str
    sent: torch.dtype = torch.float32

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The state dict on the wire."""
        state = self.module.state_dict()
        return {k: v.to(self.sent) if v.is_floating_point() else v for k, v in state.items()}

    def received(self, *, whole: bool) -> Received:
        """Tensors alone, or with the model, the task and the client's own examples."""
        if not whole:
            return Received(state=self.tensors)
        return Received(state=self.tensors, module=self.module, task=self.task)


@dataclass(frozen=True, kw_only=True, eq=False)
class Zoo:
    """One split's models.

    Attributes:
        bases: number of trained networks that trained models derive from.
        steps: range of the bases' training steps.
        weights: folder with convolutions pretrained on ImageNet, or None.
    """

    split: Split
    stock: Stock
    cache: Path
    bases: int = 24
    steps: tuple[int, int] = (150, 400)
    weights: Path | None = None

    def dice(self, purpose: str, index: int) -> Dice:
        """The randomness of one model."""
        return Dice(Draws(1_000_003 * self.split.seed).generator(purpose, index))

    @property
    def families(self) -> tuple[str, ...]:
        """Those of this split."""
        hidden = EVALUATION_ONLY if self.split is Split.CALIBRATION else ()
        return tuple(name for name in FAMILIES if name not in hidden)

    @property
    def states(self) -> tuple[str, ...]:
        """Those of this split."""
        hidden = STATES_EVALUATION_ONLY if self.split is Split.CALIBRATION else ()
        return tuple(name for name in STATES if name not in hidden)

    def school(self, data: DataSpec) -> School:
        """Training on this split's examples."""
        return School(data=data, split=self.split, stock=self.stock)

    def honest(self, index: int) -> ZooModel:
        """The honest model of that number; its kind is `lookalike` where it starts from copies of its input."""
        dice = self.dice("honest", index)
        if index % 100 == 57:
            return self._full_vgg16(dice)
        if self.weights is not None and index % 33 == 5:
            return self._pretrained(dice, self.weights)
        if dice.chance(0.5):
            return self._derived(index, dice)
        family = dice.pick(self.families)
        data = drawn_format(dice, family)
        with dice.torch_seeded():
            module = FAMILIES[family](dice, data)
        # Zhu's LeNet is its initialisation.
        note = "U(−.5, .5)" if family == "lenet" and dice.chance(0.7) else initialise(module, dice)
        alike = lookalike(module, dice) if dice.chance(0.03) else None
        state = dice.pick(("as-is",) * 9 + ("pruned", "quantised", "channels-pruned"))
        done = STATES[state](module, self.school(data), dice)
        what = "untrained" if state == "as-is" else f"untrained, {state}"
        kind = "lookalike" if alike else "honest"
        return self.wrap(module, data, dice, kind, family, what, "; ".join(filter(None, (note, alike, done))))

    def lookalike(self, index: int) -> ZooModel:
        """An honest model that starts from copies of its input (`reproduce.inspection.zoo_initial.lookalike`)."""
        dice = self.dice("lookalike", index)
        while True:
            family = dice.pick(("mlp", "plain", "vgg", "resnet"))
            data = drawn_format(dice, family, largest=32)
            with dice.torch_seeded():
                module = FAMILIES[family](dice, data)
            if note := lookalike(module, dice):
                return self.wrap(module, data, dice, "lookalike", family, "untrained", note)

    def base(self, index: int, family: str | None = None) -> ZooModel:
        """A trained network; from the cache where it is there. Families take turns, unless one is given."""
        dice = self.dice(f"base-{family or 'any'}", index)
        name = family or self.families[index % len(self.families)]
        data = drawn_format(dice, name, largest=32)
        with dice.torch_seeded():
            module = FAMILIES[name](dice, data)
        note = initialise(module, dice)
        regime = Regime.drawn(dice, self.steps)
        file = self._file(f"base-{family or 'any'}", index, f"{module} {data} {note} {regime}")
        if file.exists():
            saved = torch.load(file, weights_only=True)
        else:
            loss = self.school(data).train(module, regime, dice)
            saved = {"state": module.state_dict(), "loss": loss}
            _save(saved, file)
        module.load_state_dict(saved["state"])
        text = f"{note}; trained {regime.describe()}, loss {saved['loss']:.2f}"
        return self.wrap(module, data, self.dice("wrap", index), "honest", name, "trained", text)

    def _file(self, what: str, index: int, made: str) -> Path:
        """In the cache; a change in how it is made gives another name."""
        return self.cache / f"{what}-{self.split.seed}-{index}-{hashlib.sha256(made.encode()).hexdigest()[:10]}.pt"

    def _derived(self, index: int, dice: Dice) -> ZooModel:
        base = self.base(dice.whole(0, self.bases - 1))
        module, data = copy.deepcopy(base.module), base.task.data
        notes, first = [base.description], dice.pick(self.states)
        # A second treatment, as after fine-tuning a pruned model.
        then = dice.pick(("as-is", "as-is", "quantised", "noised"))
        file = self._file("derived", index, f"{base.description} {module} {first}")
        if first in SLOW and file.exists():
            saved = torch.load(file, weights_only=True)
            module.load_state_dict(saved["state"])
            notes.append(saved["note"])
        else:
            notes.append(STATES[first](module, self.school(data), dice))
            if first in SLOW:
                _save({"state": module.state_dict(), "note": notes[-1]}, file)
        ends = self.dice("derived", index)
        notes.append(STATES[then](module, self.school(data), ends))
        what = "trained" if first == then == "as-is" else "trained, " + ", ".join({first: 0, then: 0})
        return self.wrap(module, data, ends, "honest", base.family, what, "; ".join(filter(None, notes)))

    def _full_vgg16(self, dice: Dice) -> ZooModel:
        side = dice.pick((32, 64))
        data = DataSpec(shape=(3, side, side), classes=dice.pick((10, 100)))
        with dice.torch_seeded():
            module = vgg_of(data, depth=16, width=64, hidden=4096, norm=False, dropout=dice.pick((0.0, 0.5)))
        return self.wrap(module, data, dice, "honest", "vgg16-full", "untrained", "torch default")

    def _pretrained(self, dice: Dice, folder: Path) -> ZooModel:
        data = DataSpec(
            shape=(3, 64, 64), classes=dice.pick(CLASSES), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
        )
        with dice.torch_seeded():
            module = pretrained(folder, self.split, data)
        cheap = ("as-is", "pruned", "quantised", "noised", "channels-pruned")
        state = dice.pick(cheap)
        done = STATES[state](module, self.school(data), dice)
        return self.wrap(
            module, data, dice, "honest", "pretrained", f"trained, {state}", f"ImageNet convolutions; {done}"
        )

    def wrap(
        self, module: nn.Module, data: DataSpec, dice: Dice, kind: str, family: str, state: str, note: str
    ) -> ZooModel:
        """Task, client's examples and wire type; names everything."""
        module.eval()
        mode = Mode.TRAIN if dice.chance(0.3) else Mode.EVAL
        sent = dice.pick((torch.float32,) * 8 + (torch.float16, torch.bfloat16))
        if sent is not torch.float32:
            module.load_state_dict({k: v.to(sent).to(v) for k, v in module.state_dict().items()})
        batch = self.stock.examples(data, self.split, EXAMPLES, dice.generator)
        text = f"{family} {tuple(data.shape)} {data.classes} classes; {state}; {note}; {mode.value}; {sent}"
        task = Task.of(module, data, mode=mode, name=family)
        return ZooModel(
            module=module, task=task, batch=batch, kind=kind, family=family, state=state, description=text, sent=sent
        )


def _save(values: Mapping[str, object], file: Path) -> None:
    """Whole or not at all: another worker may be reading."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    torch.save(values, part)
    part.replace(file)
