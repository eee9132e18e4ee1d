"""Canvases that are networks, the phases of GIAS, and the two recipes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from reproduce.ci_net.rivals import AsItIs, DCGANGenerator
from torch import nn

from cases import SPEC, batch, task
from leakgauge.attacks.matching import (
    Adam,
    Canvas,
    Cosine,
    CosineOnSupport,
    Generator,
    InTurn,
    Matching,
    Pretrained,
    Simulator,
    SquaredL2,
    Turn,
)
from leakgauge.attacks.matching.adam import held
from leakgauge.attacks.matching.canvases import IntoRange
from leakgauge.attacks.matching.problem import Meter, Problem
from leakgauge.attacks.recipes import ci_net, gias
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import AttackerView, TopK
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR
from leakgauge.models.generators import CINetGenerator
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Mode, Task

SMALL = Generator(network=CINetGenerator(width=8))


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observe(truth: Batch, *, keep: float | None = None, known: bool = True, mode: Mode = Mode.EVAL) -> Observation:
    t = task("smooth", mode)
    defense = None if keep is None else TopK(keep=keep)
    update = client_update(t, FedSGD(), truth, Draws(3), defense=defense)
    knowledge = Knowledge(labels=truth.labels, local_training=FedSGD(), defense=defense if known else None)
    return Observation(t, update, knowledge)


def matched(canvas, truth: Batch):
    """The cosine distance of a canvas's variables, as the engine puts it together."""
    simulator = Simulator.of(observe(truth), torch.empty((), dtype=torch.float64), draws())

    def loss(variables):
        inputs = SPEC.denormalise(canvas.decode(variables, SPEC))
        term = Cosine()(simulator(Batch(inputs, truth.labels)), simulator.observed, simulator.view)
        return term, term

    return loss


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


def test_the_gradient_of_a_generator_canvas_is_that_of_finite_differences() -> None:
    truth = batch(2)
    loss = matched(SMALL, truth)
    start = {k: v[None] for k, v in SMALL.start(2, SPEC, draws()).items()}
    slope = Problem(loss, start, {}, Meter(Budget())).evaluate(start).gradient
    direction = {k: torch.randn(v.shape, generator=draws(2), dtype=torch.float64) for k, v in start.items()}
    direction["code"].zero_()

    def along(step: float) -> float:
        return float(loss({k: (v + step * direction[k])[0] for k, v in start.items()})[0])

    measured = (along(1e-6) - along(-1e-6)) / 2e-6
    assert sum(float((slope[k] * direction[k]).sum()) for k in slope) == pytest.approx(measured, rel=1e-5)
    assert float(slope["code"].abs().max()) == 0


def test_two_restarts_side_by_side_are_two_restarts_alone() -> None:
    for canvas in (SMALL, Pretrained(module=Toy(), code=(6,))):
        loss = matched(canvas, batch(2))
        starts = [canvas.start(2, SPEC, draws(s)) for s in (0, 1)]
        both = {k: torch.stack([s[k] for s in starts]) for k in starts[0]}
        whole = Problem(loss, both, {}, Meter(Budget())).evaluate(both)
        for i in (0, 1):
            alone = {k: v[i : i + 1] for k, v in both.items()}
            one = Problem(loss, alone, {}, Meter(Budget())).evaluate(alone)
            torch.testing.assert_close(whole.total[i : i + 1], one.total)
            for name, slope in one.gradient.items():
                torch.testing.assert_close(whole.gradient[name][i : i + 1], slope, rtol=1e-6, atol=1e-9)


def test_outputs_are_as_they_are_or_in_the_range() -> None:
    data = dataclasses.replace(SPEC, low=-1.0, high=3.0)
    for output, low, high in ((AsItIs(), -1, 1), (IntoRange(), -1, 3)):
        canvas = dataclasses.replace(SMALL, output=output)
        raw = data.denormalise(canvas.decode(canvas.start(4, data, draws()), data))
        assert raw.shape == (4, 3, 8, 8)
        assert low <= float(raw.min()) < low + 0.5 * (high - low) < float(raw.max()) <= high


def test_odd_sides_are_cut_from_the_middle() -> None:
    odd, even = DataSpec((1, 7, 6), 3), DataSpec((1, 8, 8), 3)
    one, two = (SMALL.decode(SMALL.start(2, d, draws()), d) for d in (odd, even))
    assert torch.equal(one, two[:, :, :7, 1:7])


def test_data_that_no_generator_makes_is_a_status() -> None:
    for shape in ((12, 100), (3, 257, 257)):
        assert "pictures" in SMALL.refuses(DataSpec(shape, 3))
    flat = DataSpec((192,), 5)
    net = nn.Sequential(nn.Linear(192, 5)).double()
    t = Task.of(net, flat)
    truth = Batch(torch.rand(2, 192, dtype=torch.float64), torch.tensor([0, 1]))
    seen = Observation(t, client_update(t, FedSGD(), truth, Draws(0)), Knowledge(labels=truth.labels))
    found = ci_net(steps=2).reconstruct(seen, draws())
    assert found.status is Status.NOT_APPLICABLE
    assert "pictures" in found.message


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


def test_the_support_objective_ignores_what_was_not_sent() -> None:
    a = {"w": torch.tensor([1.0, 2.0, 3.0])}
    b = {"w": torch.tensor([1.0, 0.0, 3.0])}
    assert float(CosineOnSupport()(a, b, AttackerView())) == pytest.approx(0, abs=1e-6)
    assert float(Cosine()(a, b, AttackerView())) > 0.1
    assert float(CosineOnSupport()(b, a, AttackerView())) == pytest.approx(float(Cosine()(b, a, AttackerView())))


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


def test_ci_net_beats_the_same_attack_on_another_update() -> None:
    truth, other = batch(2, seed=1), batch(2, seed=9)
    secret = [Batch(nn.functional.avg_pool2d(b.inputs, 3, 1, 1), torch.tensor([0, 1])) for b in (truth, other)]
    scores = []
    for source in secret:
        found = ci_net(width=8, steps=100).reconstruct(observe(source), draws(1))
        assert found.status is Status.OUT_OF_STEPS
        assert found.cost.gradient_evaluations == 102
        scores.append(float(PSNR()(found.inputs.double(), secret[0].inputs).mean()))
    assert scores[0] > 18
    assert scores[0] > scores[1] + 3


def test_other_parts_run_on_the_canvas() -> None:
    canvas = Generator(network=DCGANGenerator(width=4), output=AsItIs())
    found = Matching(canvas=canvas, objective=SquaredL2(), minimiser=Adam(steps=3)).reconstruct(
        observe(batch(2)), draws()
    )
    assert found.inputs is not None
    assert found.inputs.shape == (2, *SPEC.shape)


@pytest.mark.parametrize("made", [(3, 4, 4), (3, 8, 6), (1, 8, 8), (3, 64)], ids=str)
def test_a_users_generator_of_too_small_or_other_pictures_is_refused(made: tuple[int, ...]) -> None:
    """Negative cuts gave 2 × 2 pictures of a 4 px generator."""
    module = nn.Sequential(nn.Linear(6, math.prod(made)), nn.Unflatten(1, made))
    canvas = Pretrained(module=module, code=(6,))
    with pytest.raises(InputError, match="makes shape"):
        canvas.decode(canvas.start(2, SPEC, draws()), SPEC)
