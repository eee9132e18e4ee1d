"""Examples are read and proved whatever the loss is; targets follow where the loss tells them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.attacks.labels.shares import average_target
from leakgauge.attacks.recipes.any_loss import AnyLossRead, with_shares
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import Clip, ClipExamples, Defense, NoDefense
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.step import losses
from leakgauge.task import Task

Parts = dict[str, Tensor]
NOTHING = NoDefense()
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.3, 1.5])


def perceptron(outputs: int, hidden: int = 160) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def survival(z: Tensor, event: Tensor) -> Tensor:
    """Cox's partial likelihood, which compares examples with each other."""
    order = event[:, 0].argsort(descending=True)
    risk, came = z[order], event[order, 1]
    return -((risk - torch.logcumsumexp(risk, 0)) * came).sum() / came.sum().clamp_min(1)


def bce(z: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, y.to(z))


KINDS: dict[str, tuple[int, Any, Callable[[nn.Module, Parts], Tensor]]] = {
    "squares": (1, lg.Values(), lambda m, b: F.mse_loss(m(b["x"])[:, 0], b["y"])),
    "several values": (3, lg.Values(3, low=0, high=9), lambda m, b: F.smooth_l1_loss(m(b["x"]), b["y"], beta=20.0)),
    "several labels": (4, lg.Labels(4), lambda m, b: bce(m(b["x"]), b["y"])),
    "one logit": (1, lg.Classes(2), lambda m, b: bce(m(b["x"])[:, 0], b["y"])),
    "weighted classes": (5, lg.Classes(5), lambda m, b: F.cross_entropy(m(b["x"]), b["y"], weight=WEIGHTS)),
    "survival": (1, lg.TimeToEvent(), lambda m, b: survival(m(b["x"])[:, 0], b["y"])),
}


def observe(task: Task, values: Parts, did: Defense = NOTHING, named: Defense | None = NOTHING) -> Observation:
    """A round of a client, and what is said of its defence."""
    update = client_update(task, FedSGD(), values, Draws(0), defense=did)
    return Observation(task, update, Knowledge(None, len(next(iter(values.values()))), FedSGD(), defense=named))


def gaps(found: Reconstruction, task: Task, values: Parts) -> Tensor:
    """Largest difference of each read example from each true one."""
    assert found.inputs is not None
    true = task.layout.batch(values).inputs
    return (found.inputs[:, None] - true[None]).abs().flatten(2).amax(2)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_read_and_proved_under_any_loss(kind: str, n: int) -> None:
    outputs, target, step = KINDS[kind]
    if kind == "survival" and n == 1:
        pytest.skip("one example alone has no risk to be compared with: its gradient is zero")
    torch.manual_seed(1)
    task = Task.of_step(perceptron(outputs), step, {"x": lg.Image((1, 6, 6)), "y": target})
    values = task.layout.made_up(n, torch.Generator().manual_seed(2))
    if kind == "survival":
        values["y"][:, 1] = 1.0
    found = AnyLossRead().reconstruct(observe(task, values), torch.Generator().manual_seed(0))
    assert found.status is Status.EXACT
    far = gaps(found, task, values)
    assert float(far.amin(1).max()) < 1e-4
    if kind != "survival":
        assert found.labels is not None
        torch.testing.assert_close(found.labels.to(values["y"].dtype), values["y"][far.argmin(1)], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("did", [NOTHING, Clip(norm=0.01), ClipExamples(norm=0.1)], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_no_target_is_wrong_where_nobody_named_the_defence(kind: str, did: Defense) -> None:
    """A client may have shortened what each example sends, which a real target can make up for; a class cannot."""
    outputs, target, step = KINDS[kind]
    told = 0
    for seed, n in enumerate((1, 2, 3, 3)):
        torch.manual_seed(seed)
        task = Task.of_step(perceptron(outputs), step, {"x": lg.Image((1, 6, 6)), "y": target})
        values = task.layout.made_up(n, torch.Generator().manual_seed(seed))
        found = AnyLossRead().reconstruct(observe(task, values, did, None), torch.Generator().manual_seed(0))
        proved = found.certified is not None and bool(found.certified.any())
        assert ("real targets" in found.message) == (proved and kind in {"squares", "several values"})
        if found.labels is None or not proved:
            continue
        told += len(found.labels)
        true = values["y"][gaps(found, task, values).argmin(1)]
        torch.testing.assert_close(found.labels.to(true.dtype), true, rtol=1e-2, atol=1e-2)
    assert told or kind in {"squares", "several values", "survival", "several labels"}


@pytest.mark.parametrize("kind", KINDS)
def test_examples_that_share_their_rows_are_told_apart(kind: str) -> None:
    """Of six few have two rows of their own, until what is read is taken off; of one output mixtures agree as well."""
    outputs, target, step = KINDS[kind]
    read = wrong = 0
    for seed in range(3, 9):
        torch.manual_seed(seed)
        task = Task.of_step(perceptron(outputs, 128), step, {"x": lg.Image((1, 6, 6)), "y": target})
        values = task.layout.made_up(6, torch.Generator().manual_seed(seed))
        if kind == "survival":
            values["y"][:, 1] = 1.0
        found = AnyLossRead().reconstruct(observe(task, values), torch.Generator().manual_seed(0))
        far = gaps(found, task, values)
        read += int((far.amin(0) < 1e-3).sum())
        assert found.certified is not None
        wrong += int((found.certified & (far.amin(1) > 1e-2)).sum())
    assert read >= 28
    assert wrong == 0


@pytest.mark.parametrize("hidden", [2, 6, 24])
def test_no_false_certificate_where_units_are_few(hidden: int) -> None:
    """Mixtures of a batch explain as much as the batch where the network cannot tell them apart."""
    wrong = proved = 0
    for seed in range(12):
        for kind in ("squares", "several labels", "one logit"):
            outputs, target, step = KINDS[kind]
            torch.manual_seed(seed)
            task = Task.of_step(perceptron(outputs, hidden), step, {"x": lg.Image((1, 6, 6)), "y": target})
            values = task.layout.made_up(2 + seed % 3, torch.Generator().manual_seed(seed))
            found = AnyLossRead().reconstruct(observe(task, values), torch.Generator().manual_seed(seed))
            if found.inputs is not None and found.certified is not None:
                wrong += int((found.certified & (gaps(found, task, values).amin(1) > 1e-2)).sum())
                proved += int(found.certified.sum())
    assert wrong == 0
    assert proved > 0 or hidden == 2


def test_a_linear_model_proves_no_mixture() -> None:
    """Every mixture of the batch explains a linear regression's update."""
    task = Task.of_step(
        nn.Sequential(nn.Flatten(), nn.Linear(36, 1)), KINDS["squares"][2], {"x": lg.Image((1, 6, 6)), "y": lg.Values()}
    )
    values = task.layout.made_up(2, torch.Generator().manual_seed(0))
    found = AnyLossRead().reconstruct(observe(task, values), torch.Generator().manual_seed(0))
    assert found.certified is None or not bool(found.certified.any())


def test_values_that_the_loss_no_longer_tells_are_left_out() -> None:
    """Far from its target Huber's loss is a line: the example is proved, its value is not known."""
    torch.manual_seed(0)

    def step(m: nn.Module, b: Parts) -> Tensor:
        return F.huber_loss(m(b["x"])[:, 0], b["y"])

    task = Task.of_step(perceptron(1), step, {"x": lg.Image((1, 6, 6)), "y": lg.Values(low=0, high=90)})
    values = {"x": torch.rand(2, 1, 6, 6), "y": torch.tensor([70.0, 40.0])}
    found = AnyLossRead().reconstruct(observe(task, values), torch.Generator().manual_seed(0))
    assert found.status is Status.EXACT
    assert found.labels is None


class Record(nn.Module):
    """A picture, numbers of a table and a category that is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.kinds, self.numbers = nn.Linear(36, 50), nn.Embedding(5, 3), nn.Linear(7, 80)
        self.out = nn.Linear(130, 3)

    def forward(self, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
        numbers = (t - t.new_tensor([0.5, 60, 0, 50])) / t.new_tensor([0.3, 20, 3, 30])
        rows = self.numbers(torch.cat([numbers, self.kinds(c[:, 0])], 1))
        return self.out(torch.cat([self.picture(x.flatten(1)), rows], 1).relu())


class Table(Record):
    def forward(self, t: Tensor, c: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(t.new_full((len(t), 36), 0.5), t, c)


NUMBERS = lg.Numbers(4, low=(0.0, 18.0, -5.0, 0.0), high=(1.0, 99.0, 5.0, 100.0))


@pytest.mark.parametrize(("n", "picture"), [(1, True), (1, False), (3, False)])
def test_parts_of_several_kinds_are_read_together(n: int, picture: bool) -> None:
    torch.manual_seed(0)
    inputs: dict[str, Any] = {"x": lg.Image((1, 6, 6))} if picture else {}
    inputs |= {"t": NUMBERS, "c": lg.Categories((5,))}

    def step(m: nn.Module, b: Parts) -> Tensor:
        return F.mse_loss(m(*(b[name] for name in inputs)), b["y"])

    task = Task.of_step(Record() if picture else Table(), step, {**inputs, "y": lg.Values(3)})
    values = task.layout.made_up(n, torch.Generator().manual_seed(3))
    update = client_update(task, FedSGD(), values, Draws(0))
    found = lg.attack(task, update, knows=Knowledge(None, n, FedSGD(), defense=NOTHING))
    assert found.status is Status.EXACT
    order = gaps(found, task, values).argmin(1)
    for name in [*inputs, "y"]:
        torch.testing.assert_close(found.parts[name], values[name][order], rtol=1e-3, atol=1e-3)


def test_a_masks_shares_are_in_the_last_bias() -> None:
    """The rare class of a mask is a share of the places, read off one entry."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1))

    def step(m: nn.Module, b: Parts) -> Tensor:
        return F.cross_entropy(m(b["image"]), b["mask"])

    task = Task.of_step(net, step, {"image": lg.Image((1, 16, 16)), "mask": lg.Mask(3, (16, 16))})
    image = torch.rand(2, 1, 16, 16)
    mask = (torch.rand(2, 16, 16) < 0.2).long() + (torch.rand(2, 16, 16) < 0.02).long()
    true = torch.bincount(mask.flatten(), minlength=3) / mask.numel()
    seen = observe(task, {"image": image, "mask": mask})
    exact, guessed = (average_target(seen, x, torch.Generator().manual_seed(0)) for x in (image, None))
    assert exact is not None
    assert guessed is not None
    torch.testing.assert_close(exact[0].float(), true, rtol=0, atol=2e-3)
    torch.testing.assert_close(guessed[0].float(), true, rtol=0, atol=5e-2)
    found = lg.attack(task, seen.update, budget=lg.Budget(gradient_evaluations=3))
    torch.testing.assert_close(found.shares["mask"].float(), true, rtol=0, atol=5e-2)


def whole_alone(logits: Tensor, mask: Tensor) -> Tensor:
    """Dice and cross-entropy of masks of whole numbers and of no other ones, as libraries have them."""
    truth = F.one_hot(mask, logits.shape[1]).movedim(-1, 1)
    return losses.dice(logits, truth.float()) + F.cross_entropy(logits, mask)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("radius", [2.0, 5.0])
@pytest.mark.parametrize("loss", [losses.dice_ce, whole_alone])
def test_shares_of_a_mask_are_read_through_a_loss_that_asks_where_it_lies(
    radius: float, classes: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Dice: with places at random a lesion's share of a known scan was off by up to .1."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, classes, 1))
    parts: dict[str, Any] = {"image": lg.Image((1, 16, 16)), "mask": lg.Mask(classes, (16, 16))}
    task = Task.of_step(net, lambda m, b: loss(m(b["image"]), b["mask"]), parts)
    places = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    ball = ((places - torch.tensor([5.0, 8.0])[:, None, None]).norm(dim=0) < radius).long()[None]
    image = 0.7 * torch.rand(1, 1, 16, 16) + 0.3 * ball
    seen = observe(task, {"image": image, "mask": ball})
    found, guessed = (average_target(seen, x, torch.Generator().manual_seed(0)) for x in (image, None))
    true = torch.bincount(ball.flatten(), minlength=classes) / ball.numel()
    assert found is not None
    assert guessed is not None  # of a scan that is not known
    for share, off in (found, guessed):
        torch.testing.assert_close(share.float(), true, rtol=0, atol=off)
    if loss is losses.dice_ce:
        torch.testing.assert_close(found[0].float(), true, rtol=0, atol=2e-3)


def table(outputs: int, *, normal: bool) -> nn.Module:
    between = [nn.BatchNorm1d(24)] if normal else []
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), *between, nn.ReLU(), nn.Linear(24, outputs))


def segmenter(classes: int, *, normal: bool) -> nn.Module:
    between = [nn.BatchNorm2d(6)] if normal else []
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), *between, nn.ReLU(), nn.Conv2d(6, classes, 1))


TOLD: dict[str, tuple[Callable[..., nn.Module], Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "classes": (partial(table, 3), lg.Classes(3), F.cross_entropy),
    "one logit": (partial(table, 1), lg.Labels(1), bce),
    "labels": (partial(table, 6), lg.Labels(6), bce),
    "mask": (partial(segmenter, 3), lg.Mask(3, (6, 6)), F.cross_entropy),
    "one class": (partial(segmenter, 1), lg.Mask(1, (6, 6)), losses.bce),
    "Dice": (partial(segmenter, 2), lg.Mask(2, (6, 6)), losses.dice_ce),
}


@pytest.mark.parametrize("sure", [False, True], ids=["fresh", "sure of its answers"])
@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("normal", [False, True], ids=["plain", "BatchNorm"])
@pytest.mark.parametrize("kind", TOLD)
def test_shares_are_no_further_off_than_is_said_and_labels_do_not_contradict_them(
    kind: str, normal: bool, n: int, sure: bool
) -> None:
    """Behind BatchNorm .67 was told of a batch of which labels that were read said .5."""
    torch.manual_seed(3)
    made, target, loss = TOLD[kind]
    net = made(normal=normal)
    if sure:
        list(net.parameters())[-2].data.mul_(5)
    mode = "train" if normal and n > 1 else "eval"
    task = Task.of_step(net, lambda m, b: loss(m(b["x"]), b["y"]), {"x": lg.Image((1, 6, 6)), "y": target}, mode=mode)
    values = task.layout.made_up(n, torch.Generator().manual_seed(1))
    values["x"] = values["x"] ** 3  # darker than those that an attacker makes up
    seen, batch = observe(task, values), task.layout.batch(values)
    single = values["y"].double() if isinstance(target, lg.Labels) else torch.eye(target.classes)[values["y"]].double()
    true = single.view(-1, target.classes).mean(0)
    answers = {
        "nothing": Reconstruction(None, None, Status.FAILED),
        "near": Reconstruction((batch.inputs + 0.1).clamp(0, 1), batch.labels, Status.OUT_OF_BUDGET),
        "inputs": Reconstruction(batch.inputs, None, Status.EXACT),
        "not proved": Reconstruction(batch.inputs, None, Status.CONVERGED),
        "all": Reconstruction(batch.inputs, batch.labels, Status.OUT_OF_BUDGET),
    }
    lacks = {}
    for name, answer in answers.items():
        found = with_shares(answer, seen, torch.Generator().manual_seed(0))
        if kind == "classes":  # read as labels
            assert not found.shares
            continue
        assert found.shares or name not in ("all", "inputs")
        assert found.shares_off == {"y": 0.0} or name != "all"
        for share in found.shares.values():
            torch.testing.assert_close(share, true, rtol=0, atol=found.shares_off["y"] + 1e-9)
            lacks[name] = float((share - true).abs().max())
    assert lacks.get("not proved", 0.0) <= lacks.get("nothing", 1.0) + 2e-3  # what was read is used


@pytest.mark.parametrize("seed", [1, 2])
def test_labels_that_were_read_say_the_shares(seed: int) -> None:
    """A credit table behind BatchNorm, whose made-up rows are unlike those of the batch."""
    torch.manual_seed(seed)
    layers = (nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    parts: dict[str, Any] = {"x": lg.Numbers(10), "y": lg.Labels(1)}
    task = Task.of_step(nn.Sequential(*layers), lambda m, b: bce(m(b["x"]), b["y"]), parts)
    values = task.layout.made_up(4, torch.Generator().manual_seed(seed))
    found = lg.attack(task, observe(task, values).update, budget=lg.Budget(gradient_evaluations=40))
    assert torch.equal(found.parts["y"].sum(0), values["y"].sum(0))
    assert torch.equal(found.shares["y"].float(), values["y"].mean(0))
    assert found.shares_off == {"y": 0.0}
