"""GIAS: its canvas, its phases, what it finds, and the contracts of every attack."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from reproduce.ci_net.gias import CosineOnSupport, InTurn, Pretrained, Turn, gias, held
from torch import nn

from attacks import test_contracts as contracts
from attacks.matching.test_generator import assert_restarts_stand_alone, draws, observe
from cases import SPEC, batch
from leakgauge.attacks.matching import Adam, Canvas, Cosine, Matching
from leakgauge.attacks.matching.priors import Pull
from leakgauge.attacks.matching.problem import Meter, Problem
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import AttackerView
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR
from leakgauge.observation import Status
from leakgauge.task import Batch


class Toy(nn.Module):
    """Codes of six numbers to pictures of 8 px in (−1, 1): the family that the secrets of GIAS come from."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3 * 16)
        self.norm = nn.BatchNorm2d(3)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, code: torch.Tensor) -> torch.Tensor:
        return self.norm(self.up(self.line(code).view(-1, 3, 4, 4))).tanh()  # type: ignore[no-any-return]


@pytest.fixture
def toy() -> Toy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Toy().double().eval()


def secrets(toy: Toy, n: int = 1) -> Batch:
    code = torch.randn(n, 6, generator=draws(9), dtype=torch.float64)
    return Batch((toy(code).detach() + 1) / 2, torch.arange(n))


def test_held_variables_do_not_move_and_the_others_do() -> None:
    seen = observe(batch(2))
    canvas = Pretrained(module=Toy(), code=(6,))
    kept: list[dict[str, torch.Tensor]] = []

    @dataclasses.dataclass(frozen=True)
    class Seen(Canvas):
        """The canvas, whose variables are kept."""

        def start(self, *arguments):
            return canvas.start(*arguments)

        def bounds(self, data):
            return {}

        def decode(self, variables, data):
            kept.append({k: v.detach().clone() for k, v in variables.items()})
            return canvas.decode(variables, data)

    for moves, still in (("code", "weights."), ("weights.", "code")):
        turns = (Turn(moves=(moves,), minimiser=Adam(steps=5, signed=False, decay=())),)
        Matching(canvas=Seen(), minimiser=InTurn(turns=turns)).reconstruct(
            seen, draws(), compute=Compute(dtype=torch.float64)
        )
        moved = {k for k, v in kept[0].items() if not torch.equal(kept[-1][k], v)}
        kept.clear()
        assert not any(k.startswith(still) for k in moved), moved
        assert moved


def test_phases_share_a_small_budget() -> None:
    turns = tuple(Turn(moves=(m,), minimiser=Adam(steps=s, signed=False)) for m, s in (("code", 20), ("weights.", 60)))
    attack = Matching(canvas=Pretrained(module=Toy(), code=(6,)), minimiser=InTurn(turns=turns), restarts=2)
    found = attack.reconstruct(observe(batch(2)), draws(), budget=Budget(gradient_evaluations=40))
    assert found.status is Status.OUT_OF_BUDGET
    assert found.cost.gradient_evaluations == 40
    whole = attack.reconstruct(observe(batch(2)), draws())
    assert whole.cost.gradient_evaluations == 160
    assert whole.status is Status.OUT_OF_STEPS
    stopped = attack.reconstruct(observe(batch(2)), draws(), on_step=lambda step: step.gradient_evaluations >= 10)
    assert stopped.status is Status.STOPPED
    assert stopped.cost.gradient_evaluations == 10


def test_held_is_the_loss_itself() -> None:
    def loss(v):
        total = (v["a"] * v["b"]).sum()
        return total, total

    point = {k: torch.ones(2, requires_grad=True) for k in "ab"}
    total = held(loss, ("a",))(point)[0]
    assert float(total.detach()) == 2
    slopes = torch.autograd.grad(total, list(point.values()), allow_unused=True)
    assert slopes[0].tolist() == [1, 1]
    assert slopes[1] is None


@pytest.mark.parametrize(("keep", "known"), [(None, True), (0.3, False)])
def test_gias_finds_pictures_of_its_generator(toy: Toy, keep: float | None, known: bool) -> None:
    """Codes alone carry them; the top-k support is on the wire, and no knowledge of the defence is needed."""
    truth = secrets(toy)
    attack = gias(generator=toy, code=(6,), code_steps=120, weight_steps=5, restarts=1)
    found = attack.reconstruct(observe(truth, keep=keep, known=known), draws(1), compute=Compute(dtype=torch.float64))
    assert found.inputs is not None
    assert float(PSNR()(found.inputs, truth.inputs).min()) > 25


def test_a_mask_is_worth_having(toy: Toy) -> None:
    truth = secrets(toy)
    seen = observe(truth, keep=0.03, known=False)
    masked = gias(generator=toy, code=(6,), code_steps=120, weight_steps=1, restarts=1)
    plain = dataclasses.replace(masked, objective=Cosine())
    scores = []
    for attack in (masked, plain):
        found = attack.reconstruct(seen, draws(1), compute=Compute(dtype=torch.float64))
        assert found.inputs is not None
        scores.append(float(PSNR()(found.inputs, truth.inputs).mean()))
    assert scores[0] > scores[1] + 3


def test_a_users_module_is_copied_and_left_alone(toy: Toy) -> None:
    toy.train()
    canvas = Pretrained(module=toy, code=(6,))
    assert toy.training
    assert not canvas.module.training
    before = canvas.decode(canvas.start(1, SPEC, draws()), SPEC)
    with torch.no_grad():
        toy.line.weight.zero_()
    assert torch.equal(before, canvas.decode(canvas.start(1, SPEC, draws()), SPEC))
    assert next(iter(toy.parameters())).requires_grad


def test_pretrained_pictures_are_the_modules_own(toy: Toy) -> None:
    canvas = Pretrained(module=toy, code=(6,))
    start = canvas.start(3, SPEC, draws())
    made = SPEC.denormalise(canvas.decode(start, SPEC))
    torch.testing.assert_close(made, (toy(start["code"]) + 1) / 2)


@pytest.mark.parametrize("made", [(3, 4, 4), (3, 8, 6), (1, 8, 8), (3, 64)], ids=str)
def test_a_users_generator_of_too_small_or_other_pictures_is_refused(made: tuple[int, ...]) -> None:
    """Negative cuts gave 2 × 2 pictures of a 4 px generator."""
    module = nn.Sequential(nn.Linear(6, math.prod(made)), nn.Unflatten(1, made))
    canvas = Pretrained(module=module, code=(6,))
    with pytest.raises(InputError, match="makes shape"):
        canvas.decode(canvas.start(2, SPEC, draws()), SPEC)


def test_two_restarts_side_by_side_are_two_restarts_alone() -> None:
    assert_restarts_stand_alone(Pretrained(module=Toy(), code=(6,)))


def test_a_balanced_prior_keeps_to_the_variables_that_move() -> None:
    start = {"x": torch.ones((1, 2)), "y": torch.ones((1, 2))}
    pull = Pull(lambda v: v["x"].square().sum() + v["y"].square().sum(), 0.5)
    loss = lambda v: ((v["x"] - 3).square().sum() + (v["y"] - 3).square().sum(),) * 2  # noqa: E731
    turns = (Turn(moves=("x",), minimiser=Adam(steps=3)),)
    found = InTurn(turns=turns).minimise(Problem(loss, start, {}, Meter(Budget()), pull=pull))
    assert torch.equal(found.variables["y"], start["y"])
    assert not torch.equal(found.variables["x"], start["x"])


def painter() -> nn.Module:
    """A generator for GIAS: six numbers to a picture in (−1, 1)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wide = (nn.Linear(6, 48), nn.Unflatten(1, (3, 4, 4)))
        return nn.Sequential(*wide, nn.Upsample(scale_factor=2, mode="bilinear"), nn.Tanh()).double()


CASE = contracts.Case("gias", gias(generator=painter(), code=(6,), code_steps=10, weight_steps=20, restarts=1))


def test_2_3_the_output_depends_on_the_observation_and_the_seed_alone(tmp_path: Path) -> None:
    contracts.test_2_3_the_output_depends_on_the_observation_and_the_seed_alone(CASE, tmp_path)


def test_2_no_tensor_within_reach_is_the_truth() -> None:
    contracts.test_2_no_tensor_within_reach_is_the_truth(CASE)


def test_a_budget_is_kept_and_counted() -> None:
    contracts.test_a_budget_is_kept_and_counted(CASE)


def test_everything_unknown_is_a_status_and_never_an_exception() -> None:
    contracts.test_everything_unknown_is_a_status_and_never_an_exception(CASE)


@pytest.mark.parametrize("value", [0.0, 1e30])
def test_a_degenerate_update_is_a_status_and_never_an_exception(value: float) -> None:
    contracts.test_a_degenerate_update_is_a_status_and_never_an_exception(CASE, value)


@pytest.mark.parametrize("model", ["normed", "tabular"])
def test_train_mode_batchnorm_and_sparse_updates_run(model: str) -> None:
    contracts.test_train_mode_batchnorm_and_sparse_updates_run(CASE, model)


def test_the_support_objective_ignores_what_was_not_sent() -> None:
    a = {"w": torch.tensor([1.0, 2.0, 3.0])}
    b = {"w": torch.tensor([1.0, 0.0, 3.0])}
    assert float(CosineOnSupport()(a, b, AttackerView())) == pytest.approx(0, abs=1e-6)
    assert float(Cosine()(a, b, AttackerView())) > 0.1
    assert float(CosineOnSupport()(b, a, AttackerView())) == pytest.approx(float(Cosine()(b, a, AttackerView())))
