"""A received model: read, checked against an architecture, and identified by its contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge.data.source import Source, open_source, spec
from leakgauge.errors import InputError, require
from leakgauge.inspection.rule import Received
from leakgauge.models.weights import read_model
from leakgauge.registry import MODELS, read_option
from leakgauge.resolve import resolve, split
from leakgauge.task import Batch, Task
from leakgauge.tensors import differences

DIGITS = 64


def read_hashes(texts: Iterable[str]) -> tuple[str, ...]:
    """Fingerprints as other clients passed them on, in lower case; ``sha256:`` may stand before them.

    Raises:
        InputError: one is not 64 hexadecimal digits.
    """
    found = []
    for text in texts:
        digits = text.strip().lower().removeprefix("sha256:")
        if len(digits) != DIGITS or set(digits) - set("0123456789abcdef"):
            raise InputError("--hash", f"'{text}' is no fingerprint", f"give the {DIGITS} digits that inspect prints")
        found.append(digits)
    return tuple(found)


SHOWN = 3
"""Tensors that a message names."""
EXAMPLES = 16
"""How many of the client's examples the rules see."""


def agrees(expected: Mapping[str, Tensor], given: Mapping[str, Tensor], field: str) -> None:
    """Raises `InputError` unless both hold the same names and shapes; names the first tensors that differ."""
    wrong = differences(expected, given)
    more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    hint = "give a state dict of the same architecture, and name that architecture"
    require(not wrong, field, f"does not fit: {', '.join(wrong[:SHOWN])}{more}", hint)


def build(text: str, state: Mapping[str, Tensor]) -> nn.Module:
    """The named architecture with the received weights, in eval mode.

    Args:
        text: a model's name, ``your_package.module:function``, or ``{name: {parameter: value}}``.

    Raises:
        InputError: unknown, cannot be built, or names and shapes differ from the received ones.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            module = resolve(MODELS, read_option(text, "--model"), "--model").value
        except (RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError("--model", f"cannot be built ({reason})", "give {name: {parameter: value}}") from error
    kind = type(module).__name__
    require(isinstance(module, nn.Module), "--model", f"'{text}' gives a {kind}", "return a torch.nn.Module")
    agrees(module.state_dict(), state, "--model")
    module.load_state_dict({name: t.dequantize() if t.is_quantized else t for name, t in state.items()})
    return module.eval()  # type: ignore[no-any-return]


def examples(text: str, field: str = "--data") -> tuple[Source, Batch]:
    """Some of the client's examples, the source's first ones.

    Args:
        text: ``folder:PATH`` or any source of a plan, ``{source: …, size: 32}``, or the path of a folder.
    """
    value = read_option(text, field)
    options = dict(value) if isinstance(value, dict) else {"source": text}
    source = str(options.pop("source", ""))
    require(bool(source), field, f"cannot read '{text}'", "write folder:PATH, or {source: folder:PATH, size: 32}")
    opened = open_source(f"folder:{source}" if Path(source).is_dir() else source, **options)
    return opened, opened.read(range(min(EXAMPLES, len(opened))))


def received(
    path: Path, *, model: str | None, reference: Path | None, previous: Path | None, data: str | None
) -> Received:
    """Everything that the rules may look at.

    Raises:
        InputError: a file or a name cannot be used, or they do not fit each other; names the tensor.
    """
    state = read_model(path, "state")
    others: dict[str, dict[str, Tensor] | None] = {}
    for field, other in (("--reference", reference), ("--previous", previous)):
        others[field] = None if other is None else read_model(other, field)
        if other is not None:
            agrees(state, others[field] or {}, field)
    require(data is None or model is not None, "--data", "needs the architecture", "give --model, too")
    module = None if model is None else build(model, state)
    task, batch = None, None
    if data is not None and module is not None:
        source, batch = examples(data)
        name, _ = split(read_option(model or "", "--model"), "--model")
        task = Task.of(module.float(), spec(source), name=name)
        batch = Batch(batch.inputs.float(), batch.labels)
    return Received(state, module, task, batch, others["--reference"], others["--previous"])
