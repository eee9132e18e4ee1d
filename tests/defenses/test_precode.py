"""PRECODE: the bottleneck, its KL term, and how both reach the client's loss."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from cases import batch, task
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import ClipExamples, Compose, Precode
from leakgauge.defenses.representations import VariationalBottleneck, bits_to_standard_normal, bottlenecks
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.tracing import is_smooth, without_dropout

SMALL = Precode(size=6)


def precise() -> torch.Tensor:
    return torch.empty((), dtype=torch.float64)


def test_the_kl_term_by_hand() -> None:
    """μ = (1, 0), σ = (1, 2): ½(1 + 0) + ½(4 − 1 − ln 4) nats; two examples, the second at the prior."""
    rho = torch.tensor([1.0, 2.0], dtype=torch.float64).expm1().log()
    one = rho[0].expand(2)
    encoded = torch.stack(
        [torch.cat([torch.tensor([1.0, 0.0]).double(), rho]), torch.cat([torch.zeros(2).double(), one])]
    )
    nats = 0.5 + 0.5 * (4 - 1 - math.log(4))
    assert float(bits_to_standard_normal(1.0, encoded)) == pytest.approx(nats / math.log(2) / 2, rel=1e-12)
    assert float(bits_to_standard_normal(1e-3, encoded)) == pytest.approx(1e-3 * nats / math.log(2) / 2, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_kl_term_against_torch(seed: int) -> None:
    encoded = torch.randn((5, 14), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    ours = torch.distributions.Normal(encoded[:, :7], F.softplus(encoded[:, 7:]))
    prior = torch.distributions.Normal(torch.zeros(()).double(), torch.ones(()).double())
    expected = torch.distributions.kl_divergence(ours, prior).sum(1).mean() / math.log(2)
    assert float(bits_to_standard_normal(1.0, encoded)) == pytest.approx(float(expected), rel=1e-10)


def test_the_kl_term_is_finite_where_the_deviation_underflows() -> None:
    encoded = torch.full((1, 2), -500.0, requires_grad=True)
    value = bits_to_standard_normal(1.0, encoded)
    (slope,) = torch.autograd.grad(value, encoded)
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(slope).all())


def test_the_bottleneck_joins_the_model_before_its_last_linear_layer() -> None:
    plain, defended = task("dropped"), SMALL.on_task(task("dropped"))
    added = {k: tuple(v.shape) for k, v in defended.parameters.items() if "bottleneck" in k}
    assert added == {
        "4.bottleneck.encoder.weight": (12, 16),
        "4.bottleneck.encoder.bias": (12,),
        "4.bottleneck.decoder.weight": (16, 6),
        "4.bottleneck.decoder.bias": (16,),
    }
    assert torch.equal(defended.parameters["4.layer.weight"], plain.parameters["4.weight"])
    assert torch.equal(defended.parameters["1.weight"], plain.parameters["1.weight"])
    assert set(client_update(plain, FedSGD(), batch(), Draws(1), defense=SMALL).tensors) == set(defended.parameters)
    first = Precode(size=6, layer="1").on_task(plain)
    assert tuple(first.parameters["1.bottleneck.encoder.weight"].shape) == (12, 192)


def test_the_broadcast_bottleneck_is_the_same_for_all_who_ask() -> None:
    before = torch.random.get_rng_state()
    one, two, other = (d.on_task(task("flat")).parameters for d in (SMALL, SMALL, Precode(size=6, seed=1)))
    assert torch.equal(torch.random.get_rng_state(), before)
    name = "3.bottleneck.encoder.weight"
    assert torch.equal(one[name], two[name])
    assert not torch.equal(one[name], other[name])


def test_it_defends_the_broadcast_parameters_and_not_those_the_module_was_made_with() -> None:
    t = task("flat")
    t = t.with_state({"3.weight": t.parameters["3.weight"] + 1})
    assert torch.equal(SMALL.on_task(t).parameters["3.layer.weight"], t.parameters["3.weight"])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.value)
def test_the_update_is_the_gradient_of_a_twin_by_autograd(mode: Mode, dtype: torch.dtype, tolerance: float) -> None:
    """The twin is written out, with the ε that the client drew."""
    t, b, draws = SMALL.on_task(task("flat", mode, dtype)), batch(4, dtype), Draws(3)
    sent = client_update(task("flat", mode, dtype), FedSGD(), b, draws, defense=SMALL).tensors
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (), generator=draws.generator("model"))))
        draw = torch.randn((4, 6), dtype=torch.float64).to(dtype)
    p = {k: v.clone().requires_grad_() for k, v in t.parameters.items()}
    hidden = F.linear(t.data.normalise(b.inputs).flatten(1), p["1.weight"], p["1.bias"]).relu()
    encoded = F.linear(hidden, p["3.bottleneck.encoder.weight"], p["3.bottleneck.encoder.bias"])
    mean, std = encoded[:, :6], F.softplus(encoded[:, 6:])
    code = F.linear(mean + std * draw, p["3.bottleneck.decoder.weight"], p["3.bottleneck.decoder.bias"])
    bits = (mean**2 + std**2 - 1 - 2 * std.log()).sum(1).mean() / 2 / math.log(2)
    loss = F.cross_entropy(F.linear(code, p["3.layer.weight"], p["3.layer.bias"]), b.labels) + 1e-3 * bits
    for (name, value), slope in zip(p.items(), torch.autograd.grad(loss, list(p.values())), strict=True):
        assert value.dtype == sent[name].dtype == dtype
        assert float((sent[name] - slope).norm() / slope.norm()) <= tolerance, name


def test_a_heavier_penalty_changes_the_encoder_alone_above_the_features() -> None:
    def sent(beta: float) -> dict[str, torch.Tensor]:
        return client_update(task("flat"), FedSGD(), batch(), Draws(3), defense=Precode(size=6, beta=beta)).tensors

    light, heavy = sent(0.0), sent(1.0)
    changed = {k for k in light if not torch.allclose(light[k], heavy[k], rtol=1e-9, atol=1e-12)}
    assert changed == {"1.weight", "1.bias", "3.bottleneck.encoder.weight", "3.bottleneck.encoder.bias"}


def test_the_call_is_pure() -> None:
    t, b = SMALL.on_task(task("flat")), batch()
    before, hooks = torch.random.get_rng_state(), copy.deepcopy(t.module.get_submodule("3.bottleneck.encoder"))
    losses = [float(t(t.parameters, t.buffers, b, torch.Generator().manual_seed(s))[0]) for s in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not t.module.get_submodule("3.bottleneck.encoder")._forward_hooks
    assert not hooks._forward_hooks
    assert t.buffers["3.bottleneck.draw"].numel() == 0


def test_restarts_under_vmap_see_the_draw_that_one_alone_sees() -> None:
    t, b = SMALL.on_task(task("flat")), batch()
    many = torch.stack([b.inputs, b.inputs.flip(0)])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return t(t.parameters, t.buffers, Batch(x, b.labels), torch.Generator().manual_seed(5))[0]

    assert torch.allclose(vmap(loss, randomness="same")(many), torch.stack([loss(x) for x in many]), rtol=1e-12)


def test_a_known_draw_is_the_same_in_both_precisions() -> None:
    t, b = SMALL.on_task(task("flat", dtype=torch.float32)), batch(4, torch.float32)
    single = t(t.parameters, t.buffers, b, torch.Generator().manual_seed(5))[0]
    double = t.to(precise())
    value = double(
        double.parameters, double.buffers, Batch(b.inputs.double(), b.labels), torch.Generator().manual_seed(5)
    )[0]
    assert float(single) == pytest.approx(float(value), rel=1e-5)


def test_a_filled_buffer_takes_the_place_of_the_draw() -> None:
    t, b = SMALL.on_task(task("flat")), batch()
    zero = {**t.buffers, "3.bottleneck.draw": torch.zeros(4, 6).double()}
    losses = {float(t(t.parameters, zero, b, torch.Generator().manual_seed(s))[0]) for s in range(3)}
    assert len(losses) == 1
    far = {**t.buffers, "3.bottleneck.draw": torch.full((4, 6), 3.0).double()}
    assert float(t(t.parameters, far, b, torch.Generator())[0]) not in losses


def test_a_model_that_is_one_linear_layer() -> None:
    line = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).double(), task().data)
    assert list(bottlenecks(SMALL.on_task(line))) == ["1.bottleneck"]


def test_two_bottlenecks_pay_twice() -> None:
    t = Compose((Precode(size=6, layer="1"), SMALL)).on_task(task("flat"))
    assert [part for part, _ in t.penalties] == ["1.bottleneck.encoder", "3.bottleneck.encoder"]
    loss, _ = t(t.parameters, t.buffers, batch(), torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(loss))


def test_the_draw_is_no_part_of_the_state_that_is_saved() -> None:
    assert set(VariationalBottleneck(4, 2).state_dict()) == {
        "encoder.weight",
        "encoder.bias",
        "decoder.weight",
        "decoder.bias",
    }


def test_attacks_that_look_at_the_model_draw_nothing() -> None:
    """The classifier is found behind the bottleneck, its features are those at the mean, and L-BFGS is trusted."""
    t, b = SMALL.on_task(task("smooth")), batch()
    before = torch.random.get_rng_state()
    calm = without_dropout(t)
    one, two = (calm.logits(calm.parameters, calm.buffers, b.inputs)[0] for _ in range(2))
    zero = {**t.buffers, "3.bottleneck.draw": torch.zeros(4, 6).double()}
    assert torch.equal(one, two)
    assert torch.equal(one, t.logits(t.parameters, zero, b.inputs)[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert is_smooth(t, torch.Generator().manual_seed(0))
    assert not is_smooth(SMALL.on_task(task("relu")), torch.Generator().manual_seed(0))
    assert not is_smooth(SMALL.on_task(task("dropped", Mode.TRAIN)), torch.Generator().manual_seed(0))


def test_example_gradients_of_a_sampling_model_are_refused() -> None:
    with pytest.raises(InputError, match="precode"):
        client_update(task("flat"), FedSGD(), batch(), Draws(0), defense=Compose((SMALL, ClipExamples(norm=1.0))))


def test_a_text_is_no_number_to_the_network_whose_layer_is_looked_for() -> None:
    words = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    data = DataSpec(shape=(3,), classes=2, low=0, high=8, vocabulary=9)
    own = Task.of(words, data)
    assert len(Precode(size=2).on_task(own).parameters) == len(own.parameters) + 4
