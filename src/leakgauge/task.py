"""Model, loss and data format: what both sides of the wire know."""

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.batch import Batch, BatchPart, DataSpec
from leakgauge.errors import FOREIGN, InputError, refusing, require, said
from leakgauge.step import training
from leakgauge.step.layout import Layout
from leakgauge.step.training import Loss, Penalty, Supervised, TrainingStep, Tried, cross_entropy, nll_raw
from leakgauge.tensors import Tensors, twice_differentiable
from leakgauge.tensors import cast as cast_tensors

__all__ = ["Batch", "DataSpec", "Loss", "Mode", "Task", "cross_entropy", "nll_raw"]


class Mode(Enum):
    """Whether the client's model runs in train or in eval mode.

    In train mode BatchNorm uses the statistics of the batch, so examples mix; in eval mode the running ones.
    """

    EVAL = "eval"
    TRAIN = "train"


@dataclass(frozen=True, eq=False)
class Task:
    """Model, loss, data format and mode, with the parameters the server broadcast.

    Made by `Task.of_step`, or by its short form `Task.of`.

    The call is pure. Buffers are cloned per call and never stripped; parameters that do not require
    a gradient travel with the buffers. `module` is a private copy and never changes.
    See `leakgauge.tensors.twice_differentiable`."""

    module: nn.Module
    data: DataSpec
    parameters: Tensors
    buffers: Tensors
    mode: Mode = Mode.EVAL
    loss: Loss = cross_entropy
    name: str = ""
    #: the model draws at random (dropout in train mode, a variational bottleneck), by its layers or as its answers show
    stochastic: bool = False
    outputs: int = 0
    penalties: tuple[Penalty, ...] = ()  #: added to the loss
    #: labels are classes. Not where the loss tells real numbers apart, as that of a regression does: an attack that
    #: tries every class would then prove what nobody had.
    of_classes: bool = True
    #: named, trains: parts and step of `Task.of_step`; `None` for the short form, see `layout`.
    named: Layout | None = None
    trains: TrainingStep | None = None

    @staticmethod
    def of(
        module: nn.Module, data: DataSpec, *, mode: Mode | str = Mode.EVAL, loss: Loss = cross_entropy, name: str = ""
    ) -> "Task":
        """The step of one input and a class an example; `mode` may be given as in a plan, ``"train"`` or ``"eval"``.
        Raises `InputError`: another mode; the module has no trainable parameters, does not accept the data, or answers
        with fewer outputs than the data has classes."""
        task = Task._wrapped(module, data, mode, loss, name)
        task = replace(task, outputs=task._check())
        made = data.made_up(2, torch.Generator().manual_seed(0)).to(task.like)
        stochastic = task.stochastic or task._draws(task.logits, made)
        return replace(task, stochastic=stochastic, of_classes=not task._tells_values_apart())

    @staticmethod
    def of_step(
        module: nn.Module,
        step: TrainingStep,
        batch: Mapping[str, BatchPart | Tensor],
        *,
        mode: Mode | str = Mode.EVAL,
        name: str = "",
        probe: Callable[[int, torch.Generator], Any] | None = None,
    ) -> "Task":
        """A training step of your own. Raises `InputError`: no part that a client keeps to itself; the step does not
        run, or its loss is not one number that depends on the model it is given.

        Args:
            module: as it is broadcast; is not changed.
            step: ``loss(model, batch)``, where `batch` holds tensors by name: one number, with a gradient.
            batch: the parts of a batch, e.g. ``{"image": lg.Image((1, 64, 64)), "age": lg.Values()}``; a tensor
                stands for what both sides know, the same for all examples.
            probe: a batch of so many made-up examples, drawn from the generator, where parts in their ranges do not
                make one that the step accepts.
        """
        layout = Layout.of(batch)
        task = Task._wrapped(module, layout.spec, mode, cross_entropy, name)
        task = replace(task, of_classes=layout.of_classes, named=layout, trains=step)
        draws, tried = torch.Generator().manual_seed(0), list[Tried]()
        for _ in range(3):  # several: batches of one class hide the weights of the classes
            made, answers, value = task.fits(probe(4, draws) if probe is not None else layout.made_up(4, draws))
            tried.append((answers, made.labels, value))
        loss = training.loss_of_step(step, task.module, layout, tried)
        task = replace(task, loss=loss, outputs=answers[0].shape[-1] if answers and answers[0].ndim == 2 else 0)
        return replace(task, stochastic=task.stochastic or task._draws(task._loss, made))

    @staticmethod
    def _wrapped(module: nn.Module, data: DataSpec, mode: Mode | str, loss: Loss, name: str) -> "Task":
        known = {m.value for m in Mode}
        require(isinstance(mode, Mode) or mode in known, "mode", f"is {mode!r}", f"give {' or '.join(sorted(known))}")
        mode = Mode(mode)
        module = training.own_copy(module)
        module.train(mode is Mode.TRAIN)
        named = {k: v.detach() for k, v in module.named_parameters()}  # the copy's own: weights are held once
        trained = {k for k, v in module.named_parameters() if v.requires_grad}
        hint = "an update of it carries nothing; give a model that learns"
        require(bool(trained), "model", "has no trainable parameters", hint)
        buffers = {k: v.detach().clone() for k, v in module.named_buffers()}
        buffers |= {k: v for k, v in named.items() if k not in trained}
        parameters = {k: v for k, v in named.items() if k in trained}
        drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in module.modules())
        name, stochastic = name or type(module).__name__, drops and mode is Mode.TRAIN
        return Task(module, data, parameters, buffers, mode, loss, name, stochastic)

    @property
    def layout(self) -> Layout:
        """The parts of a batch."""
        return self.named or Layout.plain(self.data)

    def of_module(self, module: nn.Module, name: str = "") -> "Task":
        """The same step of another module."""
        if not self.named or not self.trains:
            return Task.of(module, self.data, mode=self.mode, loss=self.loss, name=name)
        parts: dict[str, BatchPart | Tensor] = {**self.named.parts, **self.named.fixed}
        return Task.of_step(module, self.trains, parts, mode=self.mode, name=name)

    def fits(self, values: Any) -> tuple[Batch, list[Tensor], Tensor]:
        """A made-up batch, and the answers and loss of a step on it. Raises `InputError`: there is no loss, it has no
        gradient, or it is not finite, as the answers are."""
        batch = self.layout.batch(values)
        batch = Batch(batch.inputs.to(self.like), batch.labels.to(self.like.device))
        leaves = {k: v.detach().clone().requires_grad_() for k, v in self.parameters.items()}
        problem, answers = f"does not run on a made-up batch of {len(batch)}", list[Tensor]()
        hint = "give loss(model, batch) that takes the parts by name and of the model's answer a tensor"
        hint += ", or a probe that makes a batch it accepts"
        with refusing("loss", problem, hint), torch.random.fork_rng(devices=[]):
            value = self._run(leaves, self.buffers, batch, answers)[0]
            _refuse_several(value)
            moved = torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if value.requires_grad else ()
        finite = bool(value.isfinite()) or all(bool(answer.isfinite().all()) for answer in answers)
        require(finite, "loss", "is not finite, as the model's answers are not", "give a model that answers numbers")
        hint = "call the model that the loss is given, not one from outside, and detach nothing of it"
        require(any(g is not None for g in moved), "loss", "does not depend on the model's parameters", hint)
        return batch, [answer.detach() for answer in answers], value.detach()

    def _check(self) -> int:
        try:
            probe = torch.full((2, *self.data.shape), (self.data.low + self.data.high) / 2).to(self.like)
            logits = self.logits(self.parameters, self.buffers, probe)[0]
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            if isinstance(error, InputError):
                raise
            problem = f"does not accept examples of shape {self.data.shape} ({said(error)})"
            keys = self.data.mended(lambda x: copy.deepcopy(self.module)(x.to(self.like)))
            raise InputError("model", problem, f"set {keys} or the model to match") from error
        except FOREIGN as error:
            hint = "name its parts in leakgauge.Task.of_step, or wrap it in a module of one: leakgauge.models.of_parts"
            raise InputError("model", f"does not run on a single tensor ({said(error)})", hint) from error
        fits = logits.ndim == 2 and logits.shape[1] >= self.data.classes
        problem = f"answers with shape {tuple(logits.shape[1:])} but the labels have {self.data.classes} classes"
        hint = "give the model at least as many outputs as classes; other targets: leakgauge.Task.of_step"
        require(fits, "model", problem, hint)
        with refusing("loss", "does not run", "give a function of logits [n, outputs] and labels [n]"):
            value = self.loss_of(logits, torch.arange(2, device=logits.device) % self.data.classes)
        _refuse_several(value)
        return int(logits.shape[1])

    def _draws(self, call: Callable[..., tuple[Tensor, Tensors]], given: Batch | Tensor) -> bool:
        """Whether two calls on the same inputs differ, as where dropout is called as a function."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            one, two = (call(self.parameters, self.buffers, given)[0] for _ in range(2))
        return not torch.allclose(one, two, rtol=1e-3, atol=1e-5, equal_nan=True)

    def _tells_values_apart(self) -> bool:
        """Whether the loss takes real numbers for labels, one an example, and differs between them."""
        if self.loss is cross_entropy:
            return False
        like = next(iter(self.parameters.values()))
        logits = torch.linspace(-1, 1, 5 * self.outputs).view(5, self.outputs).to(like)
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

    def with_state(self, state: Mapping[str, Tensor]) -> "Task":
        """The same task with other parameters and buffers, e.g. of the next round."""
        parameters = {k: state.get(k, v).detach().to(v).clone() for k, v in self.parameters.items()}
        buffers = {k: state.get(k, v).detach().to(v).clone() for k, v in self.buffers.items()}
        return replace(self, parameters=parameters, buffers=buffers)

    def to(self, like: Tensor) -> "Task":
        """The same task in the dtype and on the device of `like`."""
        task = replace(self, parameters=cast_tensors(self.parameters, like), buffers=cast_tensors(self.buffers, like))
        return replace(task, module=task.module_copy().to(device=like.device, dtype=like.dtype))

    def module_copy(self) -> nn.Module:
        """A module of its own, to hook or to change, with the task's values; parameters are shared: held once."""
        held = {**self.buffers, **self.parameters}
        own: dict[int, Tensor] = {id(b): held[k].clone() for k, b in self.module.named_buffers() if k in held}
        trained = self.module.named_parameters()
        own |= {id(p): nn.Parameter(held[k], p.requires_grad) for k, p in trained if k in held}
        own |= training.without_numbers(self.module)
        return copy.deepcopy(self.module, own)

    def in_eval(self) -> "Task":
        """The same task in eval mode, where examples do not mix and nothing is drawn."""
        return replace(self, module=self.module_copy().eval(), mode=Mode.EVAL, stochastic=False)

    def logits(
        self, parameters: Tensors, buffers: Tensors, inputs: Float[Tensor, "n *shape"]
    ) -> tuple[Float[Tensor, "answers *outputs"], Tensors]:
        """Model outputs, a row an example unless a hook answers for others, and the buffers after (the given stay)."""
        answers, fresh = self.passed(parameters, buffers, inputs)
        problem = "is not called as a whole by the loss, so that it has no logits"
        require(bool(answers), "model", problem, "call model(…) in the loss where its logits are to be read")
        return answers[0], fresh

    @property
    def like(self) -> Tensor:
        """What raw examples are held like: never in half precision, which counts no tokens."""
        first = next(iter(self.parameters.values()))
        return first.new_empty((), dtype=torch.promote_types(first.dtype, torch.float32))

    def _typed(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """Inputs in the type that the network computes in, as a client hands them over; targets stay."""
        own = (p.dtype for p in self.module.parameters() if p.is_floating_point())  # frozen ones too
        kind, taught = next(own, torch.get_default_dtype()), self.layout.targets
        return {k: v.to(kind) if v.is_floating_point() and k not in taught else v for k, v in given.items()}

    def passed(
        self, parameters: Tensors, buffers: Tensors, inputs: Float[Tensor, "n *shape"]
    ) -> tuple[list[Tensor], Tensors]:
        """Raw examples sent through the model with the plainest targets: the logits of every call of it as a whole,
        and the buffers after."""
        if self.trains is None:
            fresh = _fresh(buffers, inputs)
            with twice_differentiable(), training.as_it_was(self.module):
                given = self._typed({"inputs": self.data.given(inputs)})["inputs"]
                out = functional_call(self.module, {**parameters, **fresh}, (given,))
            return [training.logits_of(out)], fresh
        zeros = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
        answers = list[Tensor]()
        try:
            _, fresh = self._run(parameters, buffers, Batch(inputs, zeros), answers)
        except FOREIGN:  # a loss that counts its examples, where a hook answers for others
            if not answers:
                raise
            fresh = dict(buffers)
        return answers, fresh

    def _run(
        self, parameters: Tensors, buffers: Tensors, batch: Batch, answers: list[Tensor]
    ) -> tuple[Float[Tensor, ""], Tensors]:
        """Loss of a batch without penalties, and new buffers; `answers` takes the logits of each call of the model."""
        fresh = _fresh(buffers, batch.inputs)
        given = self._typed(self.layout.given(batch))
        state = {f"module.{name}": value for name, value in {**parameters, **fresh}.items()}
        kind = next(iter(parameters.values())).dtype
        keep = training.watched(
            self.module, [""], lambda _name, _given, out: answers.extend(islice(training.tensors_of(out), 1))
        )
        quiet = training.in_one_type(kind) if self.trains else nullcontext()
        with keep, twice_differentiable(), training.as_it_was(self.module), quiet:
            stepped = training.StepModule(self.module, self.trains or Supervised(self.loss))
            value = functional_call(stepped, state, (given,))
        return value, fresh

    def loss_of(self, logits: Float[Tensor, "n *outputs"], labels: Tensor) -> Float[Tensor, ""]:
        """The loss on the logits; tensors that it holds follow the type of these."""
        return training.on_logits(self.loss, logits, labels)

    def __call__(
        self, parameters: Tensors, buffers: Tensors, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, ""], Tensors]:
        """Loss of a batch, penalties included, and the new buffers.

        Dropout draws from `generator` (a model that draws needs one): torch's dropout reads the global
        generator, which is set inside and put back.
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
        seen, parts = dict[str, Tensor](), {part for part, _ in self.penalties}
        with training.watched(self.module, parts, lambda name, _given, out: seen.update({name: out})):
            loss, fresh = self._run(parameters, buffers, batch, [])
        return sum((penalty(seen[part]) for part, penalty in self.penalties), loss), fresh


def _refuse_several(loss: Any) -> None:
    scalar = isinstance(loss, Tensor) and loss.ndim == 0
    require(scalar, "loss", "is not one number", "return the mean over the batch as a tensor without dimensions")


def _fresh(buffers: Tensors, like: Tensor) -> Tensors:
    """Buffers of its own for a call. In train mode BatchNorm writes into them: under vmap each restart must own its
    copy, which `new_zeros` of a batched input gives."""
    return {k: like.new_zeros(v.shape, dtype=v.dtype) + v for k, v in buffers.items()}
