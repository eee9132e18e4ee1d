"""What a task makes of a user's network."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task

SPEC = DataSpec((3, 8, 8), 5)
WIDTH = 16


class Fused(nn.Module):
    """Attention as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MultiHead(nn.Module):
    """torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, activation=F.gelu, batch_first=True)


class Transformer(nn.Module):
    """A vision transformer of four patches."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.patches, self.block, self.head = nn.Conv2d(3, WIDTH, 4, 4), block, nn.Linear(WIDTH, 5)
        self.place = nn.Parameter(0.02 * torch.randn(1, 4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.patches(x).flatten(2).transpose(1, 2) + self.place).mean(1))


@pytest.mark.parametrize("block", [Fused, MultiHead, layer])
def test_an_attack_may_differentiate_attention_twice(block: Callable[[], nn.Module]) -> None:
    """The fused kernels have no second derivative, so every search on a transformer died."""
    torch.manual_seed(0)
    t = Task.of(Transformer(block()), SPEC)
    b = Batch(torch.rand(2, 3, 8, 8), torch.tensor([1, 2]))
    fast = torch.backends.mha.get_fastpath_enabled()

    def length(x: Tensor) -> Tensor:
        gradient = grad(lambda p: t(p, t.buffers, Batch(x, b.labels))[0])(t.parameters)
        return torch.stack([g.square().sum() for g in gradient.values()]).sum()

    x = b.inputs.clone().requires_grad_()
    alone = torch.autograd.grad(length(x), x)[0]
    together = vmap(grad(length))(b.inputs.repeat(3, 1, 1, 1, 1))
    assert torch.allclose(together[1], alone, atol=1e-6 + 1e-4 * float(alone.abs().max()))
    assert torch.backends.mha.get_fastpath_enabled() is fast
    known = Knowledge(b.labels, 2, FedSGD())
    observation = Observation(t, client_update(t, FedSGD(), b, Draws(0)), known)
    found = Auto().reconstruct(observation, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=4))
    assert found.inputs is not None


class Answers(nn.Module):
    """A model whose answer is made by `wrap`."""

    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.inner, self.wrap = nn.Linear(192, 5), wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.inner(x.flatten(1)))


class Two(nn.Module):
    """A model of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(192, 5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.inner(x.flatten(1)) * mask


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Answers(lambda out: {"loss": out.sum()}), "answers with a dict"),
        (Answers(str), "answers with a str"),
        (Two(), "missing 1 required positional argument: 'mask'"),
    ],
)
def test_models_of_another_signature_are_one_clear_line(module: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        Task.of(module, SPEC)
    assert "wrap it in a module" in str(error.value)
    assert "\n" not in str(error.value)


def test_normalisation_is_channel_by_channel_and_undone() -> None:
    data = DataSpec((3, 2, 2), 4, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
    x = torch.ones(5, 3, 2, 2, dtype=torch.float64)
    assert data.normalise(x)[0, :, 0, 0].tolist() == pytest.approx([0.9, 0.4, 0.175])
    torch.testing.assert_close(data.denormalise(data.normalise(x)), x)


def test_a_task_holds_its_weights_once() -> None:
    """A model may fill half of the memory: copies of a task, and modules to hook, share what they do not change."""
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.BatchNorm1d(5), nn.Linear(5, 5)), SPEC)
    double = task.to(torch.empty((), dtype=torch.float64))
    other = task.with_state({"1.weight": torch.zeros(5, 192)})
    for one in (task, task.to(torch.empty(())), double, other.to(torch.empty(())), double.to(torch.empty(()))):
        held = dict((one.module_copy() if one is task else one.module).named_parameters())
        assert {k: p.data_ptr() for k, p in held.items()} == {k: t.data_ptr() for k, t in one.parameters.items()}
    assert task.to(torch.empty(())).parameters["1.weight"].data_ptr() == task.parameters["1.weight"].data_ptr()
    assert task.module_copy()[2].running_mean is not task.module[2].running_mean


class Dropping(nn.Module):
    """Dropout as a function, which no module of torch's shows."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.always, self.first, self.last = always, nn.Linear(192, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.first(x.flatten(1)))
        out: Tensor = self.last(F.dropout(hidden, 0.3, self.always or self.training))
        return out


@pytest.mark.parametrize(
    ("always", "mode", "draws"), [(False, "train", True), (False, "eval", False), (True, "eval", True)]
)
def test_a_model_that_draws_is_known_by_what_it_does(always: bool, mode: str, draws: bool) -> None:
    """Dropout called as a function drew from torch's own numbers: the same client sent another update each time."""
    task = Task.of(Dropping(always=always), SPEC, mode=mode)
    assert task.stochastic == draws
    batch = Batch(torch.rand(2, *SPEC.shape), torch.tensor([0, 1]))
    before = torch.get_rng_state()
    one, two = (client_update(task, FedSGD(), batch, Draws(0)).tensors for _ in range(2))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert torch.equal(before, torch.get_rng_state())


class _Keeping(nn.Module):
    """Makes what it needs once, and keeps it in every way that modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.listed: list[Tensor] = []
        self.named: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "ones"):
            self.ones = x[:1] * 0 + 1
            self.listed.append(self.ones)
        kept = self.named.setdefault(len(x), self.ones + self.listed[0])
        found: Tensor = self.fc(x * kept / 2)
        return found


def test_what_a_network_keeps_from_a_transformed_call_reaches_no_other() -> None:
    task = Task.of(_Keeping(), DataSpec(shape=(4,), classes=3))
    batch = Batch(torch.rand(2, 4), torch.arange(2))
    for _ in range(2):
        torch.func.grad(lambda p: task(p, task.buffers, batch)[0])(task.parameters)
        copy.deepcopy(task.module)
    assert not [t for part in task.module.modules() for t in vars(part).get("listed", [])]
