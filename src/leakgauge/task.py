"""Model, loss and data format: what both sides of the wire know."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.batch import Batch, DataSpec
from leakgauge.errors import FOREIGN, InputError, require, said
from leakgauge.step.answers import in_one_type, logits_of
from leakgauge.tensors import Tensors, twice_differentiable
from leakgauge.tensors import cast as cast_tensors


@runtime_checkable
class Loss(Protocol):
    """``(logits, labels) → scalar``; labels are indices or soft."""

    def __call__(self, logits: Tensor, labels: Tensor, /) -> Tensor: ...


def cross_entropy(logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
    """Soft-max cross-entropy, mean over the batch."""
    return F.cross_entropy(logits, labels)


def nll_raw(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Negative log-likelihood of raw logits, no log-softmax: mean of −logit[label].

    The loss of MKOR's published code, unbounded below: a client that uses it lets the server choose its loss.
    """
    return F.nll_loss(logits, labels)


@runtime_checkable
class Penalty(Protocol):
    """What the output of one part of the model adds to the loss, read in the same forward pass.

    Attributes:
        part: name of the submodule whose output it is given.
    """

    @property
    def part(self) -> str: ...

    def __call__(self, output: Tensor, /) -> Float[Tensor, ""]: ...


__all__ = ["Batch", "DataSpec", "Loss", "Mode", "Penalty", "Task", "cross_entropy", "nll_raw"]


def _own_copy(module: nn.Module) -> nn.Module:
    lazy = any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters())
    require(not lazy, "model", "has lazy layers that have seen no example", "call it once before it is audited")
    try:
        return copy.deepcopy(module)
    except FOREIGN as error:
        hint = "give a fresh module; torch.nn.utils.parametrizations.weight_norm can be copied, the old one cannot"
        raise InputError("model", f"cannot be copied ({said(error)})", hint) from error


class Mode(Enum):
    """Whether the client's model runs in train or in eval mode.

    In train mode BatchNorm uses the statistics of the batch, so examples mix; in eval mode the running ones.
    """

    EVAL = "eval"
    TRAIN = "train"


@dataclass(frozen=True, eq=False)
class Task:
    """Model, loss, data format and mode, with the parameters the server broadcast. Made by `Task.of`.

    The call is pure. Buffers are cloned per call and never stripped; parameters that do not require
    a gradient travel with the buffers. `module` is a private copy and never changes.
    See `leakgauge.tensors.twice_differentiable`.

    Attributes:
        stochastic: the model draws at random (dropout in train mode, a variational bottleneck), by its layers or as
            its answers show.
        penalties: added to the loss.
        of_classes: labels are classes. Not where the loss tells real numbers apart, as that of a regression does: an
            attack that tries every class would then prove what nobody had.
    """

    module: nn.Module
    data: DataSpec
    parameters: Tensors
    buffers: Tensors
    mode: Mode = Mode.EVAL
    loss: Loss = cross_entropy
    name: str = ""
    stochastic: bool = False
    outputs: int = 0
    penalties: tuple[Penalty, ...] = ()
    of_classes: bool = True

    @staticmethod
    def of(
        module: nn.Module,
        data: DataSpec,
        *,
        mode: Mode | str = Mode.EVAL,
        loss: Loss = cross_entropy,
        name: str = "",
    ) -> Task:
        """Wraps a module as it is now; `mode` may be given as in a plan, ``"train"`` or ``"eval"``.

        Raises:
            InputError: another mode; the module has no trainable parameters, does not accept the data, or answers
                with fewer outputs than the data has classes.
        """
        known = {m.value for m in Mode}
        require(isinstance(mode, Mode) or mode in known, "mode", f"is {mode!r}", f"give {' or '.join(sorted(known))}")
        mode = Mode(mode)
        module = _own_copy(module)
        for part in module.modules():
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                part.sparse = False  # the same gradient, which can be differentiated again
        module.train(mode is Mode.TRAIN)
        named = {k: v.detach() for k, v in module.named_parameters()}  # the copy's own: weights are held once
        trained = {k for k, v in module.named_parameters() if v.requires_grad}
        require(
            bool(trained),
            "model",
            "has no trainable parameters",
            "an update of it carries nothing; give a model that learns",
        )
        buffers = {k: v.detach().clone() for k, v in module.named_buffers()}
        buffers |= {k: v for k, v in named.items() if k not in trained}
        drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in module.modules())
        task = Task(
            module=module,
            data=data,
            parameters={k: v for k, v in named.items() if k in trained},
            buffers=buffers,
            mode=mode,
            loss=loss,
            name=name or type(module).__name__,
            stochastic=drops and mode is Mode.TRAIN,
        )
        outputs = task._check()
        return replace(
            task,
            outputs=outputs,
            stochastic=task.stochastic or task._draws(),
            of_classes=not task._tells_values_apart(outputs),
        )

    def _check(self) -> int:
        try:
            probe = torch.full((2, *self.data.shape), (self.data.low + self.data.high) / 2)
            probe = probe.to(next(iter(self.parameters.values())))
            logits = self.logits(self.parameters, self.buffers, probe)[0]
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            problem = f"does not accept examples of shape {self.data.shape} ({reason})"
            raise InputError("model", problem, "set data.size or the model to match") from error
        except FOREIGN as error:
            hint = "wrap it in a module whose forward takes one tensor of inputs: leakgauge.models.of_parts"
            raise InputError("model", f"does not run on a single tensor ({said(error)})", hint) from error
        require(
            logits.ndim == 2 and logits.shape[1] >= self.data.classes,
            "model",
            f"answers with shape {tuple(logits.shape[1:])} but the labels have {self.data.classes} classes",
            "give the model at least as many outputs as classes",
        )
        self._check_loss(logits)
        return int(logits.shape[1])

    def _draws(self) -> bool:
        """Whether two calls on the same inputs differ, as where dropout is called as a function."""
        inputs = torch.full((2, *self.data.shape), (self.data.low + self.data.high) / 2)
        if not self.data.is_text:
            inputs += self.data.range * (torch.rand(inputs.shape, generator=torch.Generator().manual_seed(0)) - 0.5)
        inputs = inputs.to(next(iter(self.parameters.values())))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            one, two = (self.logits(self.parameters, self.buffers, inputs)[0] for _ in range(2))
        return not torch.allclose(one, two, rtol=1e-3, atol=1e-5, equal_nan=True)

    def _check_loss(self, logits: Tensor) -> None:
        try:
            value = self.loss_of(logits, torch.arange(2, device=logits.device) % self.data.classes)
        except InputError:
            raise
        except FOREIGN as error:
            hint = "give a function of logits [n, outputs] and labels [n]"
            raise InputError("loss", f"does not run ({said(error)})", hint) from error
        scalar = isinstance(value, Tensor) and value.ndim == 0
        require(scalar, "loss", "is not one number", "return the mean over the batch as a tensor without dimensions")

    def _tells_values_apart(self, outputs: int) -> bool:
        """Whether the loss takes real numbers for labels, one an example, and differs between them."""
        if self.loss is cross_entropy:
            return False
        like = next(iter(self.parameters.values()))
        logits = torch.linspace(-1, 1, 5 * outputs).view(5, outputs).to(like)
        values = torch.linspace(0.1, 0.5, 5).to(like)
        for shape in ((5,), (5, 1)):
            try:
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("error")  # torch warns of shapes that it stretches
                    one, two = (self.loss_of(logits, (k * values).view(shape)) for k in (1.0, 1.5))
            except FOREIGN:
                continue
            if bool(torch.isfinite(one)) and not torch.allclose(one, two, rtol=1e-4):
                return True
        return False

    def with_state(self, state: Mapping[str, Tensor]) -> Task:
        """The same task with other parameters and buffers, e.g. of the next round."""
        parameters = {k: state.get(k, v).detach().to(v).clone() for k, v in self.parameters.items()}
        buffers = {k: state.get(k, v).detach().to(v).clone() for k, v in self.buffers.items()}
        return replace(self, parameters=parameters, buffers=buffers)

    def to(self, like: Tensor) -> Task:
        """The same task in the dtype and on the device of `like`."""
        task = replace(self, parameters=cast_tensors(self.parameters, like), buffers=cast_tensors(self.buffers, like))
        return replace(task, module=task.module_copy().to(device=like.device, dtype=like.dtype))

    def module_copy(self) -> nn.Module:
        """A module of its own, to hook or to change, that shares the task's parameters: large models are held once."""
        held, own = {**self.buffers, **self.parameters}, self.module.named_parameters()
        return copy.deepcopy(self.module, {id(p): nn.Parameter(held[k], p.requires_grad) for k, p in own if k in held})

    def logits(
        self, parameters: Tensors, buffers: Tensors, inputs: Float[Tensor, "n *shape"]
    ) -> tuple[Float[Tensor, "n outputs"], Tensors]:
        """Model outputs for raw examples, and the buffers after the call (the given ones stay)."""
        # In train mode BatchNorm writes into them: under vmap each restart must own its copy, which
        # `new_zeros` of a batched input gives.
        fresh = {k: inputs.new_zeros(v.shape, dtype=v.dtype) + v for k, v in buffers.items()}
        with twice_differentiable():
            out = functional_call(self.module, {**parameters, **fresh}, (self.data.given(inputs),))
        return logits_of(out), fresh

    def loss_of(self, logits: Float[Tensor, "n outputs"], labels: Tensor) -> Float[Tensor, ""]:
        """The loss on the logits; tensors that it holds follow the type of these."""
        if self.loss is cross_entropy:
            return cross_entropy(logits, labels)
        with in_one_type(logits.dtype):
            return self.loss(logits, labels)

    def __call__(
        self, parameters: Tensors, buffers: Tensors, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, ""], Tensors]:
        """Loss of a batch, penalties included, and the new buffers.

        Dropout draws from `generator` (a model that draws needs one): torch's dropout reads the global
        generator, which is set inside and put back. Soft labels of fewer columns than the model has outputs
        give the others no weight.
        """
        if not self.stochastic:
            return self._loss(parameters, buffers, batch)
        if generator is None:
            raise InputError("generator", "is missing, and the model draws at random", "pass a torch.Generator")
        seed = int(torch.randint(2**31, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._loss(parameters, buffers, batch)

    def _loss(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Float[Tensor, ""], Tensors]:
        with _outputs_of(self.module, {p.part for p in self.penalties}) as seen:
            logits, fresh = self.logits(parameters, buffers, batch.inputs)
        labels = batch.labels
        if labels.is_floating_point() and labels.shape[1] < logits.shape[1]:
            labels = F.pad(labels, (0, logits.shape[1] - labels.shape[1]))
        loss = self.loss_of(logits, labels)
        for penalty in self.penalties:
            loss = loss + penalty(seen[penalty.part])
        return loss, fresh


@contextmanager
def _outputs_of(module: nn.Module, parts: Set[str]) -> Iterator[dict[str, Tensor]]:
    """What parts of a module put out while it runs, by name; the module is afterwards as it was."""
    seen: dict[str, Tensor] = {}
    handles = []
    for name in parts:

        def keep(_module: nn.Module, _given: tuple[Tensor, ...], out: Tensor, name: str = name) -> None:
            seen[name] = out

        handles.append(module.get_submodule(name).register_forward_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
