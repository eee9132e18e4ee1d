"""What a client does with a batch before it calls ``backward``: a loss of its own, or one of the logits and labels; the
network that it calls, made ready as a pure function; and what parts of that are given and put out while it runs."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leakgauge.batch import Batch
from leakgauge.errors import FOREIGN, InputError, refusing, require
from leakgauge.step.layout import Layout


def own_copy(module: nn.Module) -> nn.Module:
    """A private copy whose gradients can be differentiated again: no sparse ones, nothing worked out twice. Raises
    `InputError` where there is none."""
    while isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    for name, parameter in module.named_parameters():  # of 4 or 8 bits: they stand for real ones
        if not parameter.is_floating_point() or hasattr(parameter, "quant_state"):
            kind = str(parameter.dtype).removeprefix("torch.")
            problem = f"holds packed weights ('{name}' is {kind}), of which no second derivative is taken"
            raise InputError("model", problem, "load the base in bfloat16 or float32: the adapter's update is the same")
    scripted = isinstance(module, torch.jit.ScriptModule)
    require(not scripted, "model", "is a TorchScript program, which takes no other weights", "give what it was made of")
    empty = any(isinstance(p, nn.parameter.UninitializedParameter) or p.is_meta for p in module.parameters())
    require(not empty, "model", "has weights without values", "load them, and call its lazy layers once")
    # What was worked out of parameters and is held beside them, as pruning does, is no leaf and cannot be copied.
    held = (t for part in module.modules() for t in vars(part).values() if isinstance(t, Tensor))
    hint = "give a fresh module; torch.nn.utils.parametrizations.weight_norm can be copied, the old one cannot"
    with refusing("model", "cannot be copied", hint):
        made = copy.deepcopy(module, {id(t): t.detach() for t in held if not t.is_leaf})
    for part in made.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
        stop = getattr(part, "activation_checkpointing_disable", getattr(part, "gradient_checkpointing_disable", None))
        if callable(stop):
            stop()
    return made


_OWN = frozenset(vars(nn.Module()))


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Takes back what a call wrote over tensors that the module's parts hold beside parameters and buffers, by
    themselves, in lists or in dictionaries, or added to them: what is kept for the next call is of this one's types."""
    parts = [(vars(part), dict(vars(part))) for part in module.modules()]
    inside = [value for _, held in parts for name, value in held.items() if name not in _OWN]
    kept = [(value, value.copy()) for value in inside if isinstance(value, dict | list)]
    try:
        yield
    finally:
        for own, held in parts:
            for name in [k for k, value in own.items() if isinstance(value, Tensor) and value is not held.get(k)]:
                own.pop(name)
            own.update((k, value) for k, value in held.items() if isinstance(value, Tensor))
        for value, before in kept:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)


def without_numbers(module: nn.Module) -> dict[int, Tensor]:
    """Tensors that hooks of the way back left with the module's parts and that hold no numbers any more, by `id`, as a
    copy of the module has them: empty."""
    held = [value for part in module.modules() for name, value in vars(part).items() if name not in _OWN]
    inside = [value.values() if isinstance(value, dict) else value for value in held if isinstance(value, dict | list)]
    found = dict[int, Tensor]()
    for value in (*held, *(one for several in inside for one in several)):
        if isinstance(value, Tensor):
            try:
                value.untyped_storage().data_ptr()
            except (RuntimeError, NotImplementedError):
                found[id(value)] = torch.empty(0)
    return found


def logits_of(answer: Any) -> Tensor:
    """The logits in what a network answers: a tensor as it is; of a mapping, dataclass or named tuple what is called
    ``logits``, and else, as of a tuple or list, the first tensor with a row an example. Raises `InputError` where there
    is none."""
    found = next(tensors_of(answer), None)
    if found is None:
        problem = f"answers with a {type(answer).__name__}, which holds no tensor with a row an example"
        raise InputError("model", problem, "wrap it in a module that returns its logits, e.g. the first item")
    return found


def tensors_of(answer: Any) -> Iterator[Tensor]:
    """Tensors with a row an example, what is called ``logits`` first."""
    parts: list[Any] = []
    if isinstance(answer, Tensor) and answer.ndim:
        yield answer
    elif isinstance(answer, Mapping):
        parts = [answer.get("logits"), *answer.values()]
    elif is_dataclass(answer) and not isinstance(answer, type):
        parts = [getattr(answer, "logits", None), *(getattr(answer, f.name) for f in fields(answer))]
    elif isinstance(answer, tuple | list):
        parts = [getattr(answer, "logits", None), *answer]
    for part in parts:
        yield from tensors_of(part)


class in_one_type(TorchFunctionMode):
    """Around code of somebody's own that holds tensors, called with others of type `kind`: a weight of the classes, a
    module with buffers. In place of an error, floating ones of theirs become `kind` wherever they meet one of it."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.requires_grad_:  # fine-tuning hooks ask it of an embedding's output, where a function has it
            return args[0]
        given = [*args, *(kwargs or {}).values()]
        floats = {a.dtype for a in given if isinstance(a, Tensor) and a.is_floating_point()}
        if len(floats) < 2 or self.kind not in floats or func is Tensor.to:
            return func(*args, **(kwargs or {}))

        def same(value: Any) -> Any:
            return value.to(self.kind) if isinstance(value, Tensor) and value.is_floating_point() else value

        return func(*(same(a) for a in args), **{k: same(v) for k, v in (kwargs or {}).items()})


See = Callable[[str, tuple[Any, ...], Any], Any]  # called with a part's name, what it was given and what it put out


@contextmanager
def watched(module: nn.Module, names: Iterable[str], see: See) -> Iterator[None]:
    """Calls `see` after every call of the named parts; what it returns, if anything, takes the output's place.

    The module is afterwards as it was. The empty name is the module itself.
    """
    with ExitStack() as hooks:
        for name in names:
            part = module.get_submodule(name)
            hooks.enter_context(part.register_forward_hook(lambda _, given, out, name=name: see(name, given, out)))
        yield


@contextmanager
def inputs_of(module: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """What parts of a module are given first at their last call while it runs, by name, in the order of the calls."""
    seen: dict[str, Tensor] = {}
    with watched(module, names, lambda name, given, _out: seen.update({name: given[0]})):
        yield seen


Loss = Callable[[Tensor, Tensor], Tensor]  # ``(logits, labels) → scalar``; labels are indices or soft

TrainingStep = Callable[[nn.Module, dict[str, Tensor]], Tensor]
"""``(model, parts of a batch by name) → scalar``: what a training loop does with a batch before it calls
``backward``."""

Penalty = tuple[str, Callable[[Tensor], Tensor]]
"""The name of one part of the model, and what its output adds to the loss, read in the same forward pass."""


def cross_entropy(logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
    """Soft-max cross-entropy, mean over the batch."""
    return F.cross_entropy(logits, labels)


def nll_raw(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Negative log-likelihood of raw logits, no log-softmax: mean of −logit[label].

    The loss of MKOR's published code, unbounded below: a client that uses it lets the server choose its loss.
    """
    return F.nll_loss(logits, labels)


def on_logits(loss: Loss, logits: Float[Tensor, "n *outputs"], labels: Tensor) -> Float[Tensor, ""]:
    """The loss; tensors that it holds follow the type of the logits."""
    if loss is cross_entropy:
        return cross_entropy(logits, labels)
    with in_one_type(logits.dtype):
        return loss(logits, labels)


@dataclass(frozen=True)
class Supervised:
    """The step of one input and one target: a loss of the model's logits and the labels. Soft labels of fewer columns
    than the model has outputs give the others no weight."""

    loss: Loss

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Float[Tensor, ""]:
        logits, labels = logits_of(model(batch["inputs"])), batch["labels"]
        if labels.is_floating_point() and labels.ndim == 2 and labels.shape[1] < logits.shape[1]:
            labels = F.pad(labels, (0, logits.shape[1] - labels.shape[1]))
        return on_logits(self.loss, logits, labels)


class StepModule(nn.Module):
    """A step as a module, so that parameters and buffers can be put in from outside."""

    def __init__(self, module: nn.Module, step: TrainingStep) -> None:
        super().__init__()
        self.module = module
        self._step = step

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self._step(self.module, batch)


def _on_answer(step: TrainingStep, module: nn.Module, layout: Layout, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of a step whose model answers so. Raises `InputError` where it asks the model for more than logits."""
    model, spec = copy.copy(module), layout.spec
    model.forward = lambda *_given, **_named: logits
    grey = torch.full((len(logits), *spec.shape), (spec.low + spec.high) / 2).to(logits)
    hint = "return logits as a tensor and work out the loss from them"
    with refusing("loss", "is not one of the logits alone", hint), in_one_type(logits.dtype):
        return step(model, layout.given(Batch(grey, labels)))


Tried = tuple[list[Tensor], Tensor, Tensor]  # logits of each call of the model on a made-up batch, targets, loss


def loss_of_step(step: TrainingStep, module: nn.Module, layout: Layout, tried: list[Tried]) -> Loss:
    """The loss of a step as a function of the logits: the step on given logits, or plain cross-entropy where a network
    works that out itself; `no_loss_of_logits` where it looks at inputs too, or calls the model more than once."""
    if any(len(answers) != 1 for answers, _, _ in tried):
        return no_loss_of_logits
    ways: list[Loss] = [partial(_on_answer, step, module, layout)]
    if layout.of_classes and layout.targets and tried[0][0][0].ndim == 2:
        ways.append(cross_entropy)
    for way in ways:
        with suppress(*FOREIGN), torch.no_grad():
            made = [(way(answer, labels).double(), value.double()) for (answer,), labels, value in tried]
            if all(torch.allclose(*pair, rtol=1e-5, atol=1e-7) for pair in made):
                return way
    return no_loss_of_logits


def no_loss_of_logits(*_: Tensor) -> Tensor:
    """The loss of a step that does more than look at logits and targets."""
    hint = "read inputs instead, or work the loss out from model(…) and the targets"
    raise InputError("loss", "is not one of the logits and targets alone", hint)
