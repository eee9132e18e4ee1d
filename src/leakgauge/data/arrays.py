"""Arrays: in memory, in NumPy archives, those that a capture kept, and named parts as `Task.of_step` takes them."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from jaxtyping import Int, Real
from torch import Tensor

from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import InputError, refusing, require
from leakgauge.registry import DATA
from leakgauge.step.layout import Layout
from leakgauge.task import Batch, DataSpec
from leakgauge.update import EXAMPLES

MOST = 16 << 30  # bytes that an archive may unpack to
SAVE = "write it with numpy.savez(x=…, y=…), plain arrays only"
CAPTURE = "hand minibatches to leakgauge.flower.seen as you train"
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class InMemory:
    """A source of a user's own tensors."""

    #: raw values in [low, high]; with `steps`, whole numbers from 0 to `steps` that stand for low to high.
    inputs: Real[Tensor, "n *shape"]
    labels: Int[Tensor, " n"]  #: classes of all examples, of any whole type
    count: int | None = None  #: of classes; by default one more than the largest label, and at least two.
    low: float = 0.0  #: low, high: the raw data's range.
    high: float = 1.0
    normalise: bool = False  #: whether pictures are normalised before the model sees them (see `leakgauge.data.spec`)
    name: str = "memory"  #: for reports
    called: Sequence[str] = ()  #: names of the examples in reports; by default their numbers.
    files: Sequence[Path] = ()  #: that hold all of this; a source without any is identified by its examples.
    steps: int = 0  #: 255 for pictures kept as bytes; 0 for values as they are.
    #: side that pictures are resized to when they are read (antialiased, not cropped); `None` keeps them.
    size: int | None = None
    parts: "Parts | None" = None  #: the same for a training step of named parts
    usual = "example {0}"  # name of an example without one, of its place from 0 or from 1

    def __post_init__(self) -> None:
        require(len(self.inputs) == len(self.labels) > 0, "labels", f"are {len(self.labels)}", "give one an example")
        require(self.inputs.numel() > 0, "inputs", "are empty", "give [n, …] with n > 0")
        whole = self.labels.ndim == 1 and not (self.labels.is_floating_point() or self.labels.is_complex())
        odd = f"are {self.labels.dtype} of shape {tuple(self.labels.shape)}"
        require(whole, "labels", odd, "give one whole number an example: its class, from 0")
        object.__setattr__(self, "labels", self.labels.long())
        require(self.high > self.low, "high", f"is {self.high}, low is {self.low}", "give the data's range")
        finite = bool(torch.isfinite(self.inputs).all())
        require(finite, "inputs", "hold NaN or infinity", "leave such examples out")
        least, most = self.inputs.min(), self.inputs.max()
        low, high = (0, self.steps) if self.steps else (self.low, self.high)
        problem = f"span [{float(least):g}, {float(most):g}], outside [{low:g}, {high:g}]"
        inside = bool(least >= low) and bool(most <= high)
        require(inside, "inputs", problem, "set low and high to the range of the raw data")
        known = bool((self.labels >= 0).all()) and bool((self.labels < self.classes).all())
        require(known, "labels", f"are not all in [0, {self.classes})", "give count (classes), and labels from 0")
        pictures = self.inputs.ndim == 4 and self.inputs.shape[1] in (1, 3)
        problem = f"is given, but examples of shape {tuple(self.inputs.shape[1:])} are no pictures"
        require(self.size is None or pictures, "size", problem, "leave it out")
        require(self.size is None or self.size > 0, "size", f"is {self.size}", "give the side in pixels")

    @property
    def shape(self) -> tuple[int, ...]:
        kept = tuple(self.inputs.shape[1:])
        return kept if self.size is None else (kept[0], self.size, self.size)

    @property
    def classes(self) -> int:
        return max(FEWEST_CLASSES, int(self.labels.max()) + 1) if self.count is None else self.count

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(list(indices), dtype=torch.long)
        inputs = self.inputs[chosen].float()
        if self.steps:
            inputs = self.low + (self.high - self.low) * (inputs / self.steps)
        if self.size is not None and len(inputs):
            inputs = F.interpolate(inputs, (self.size, self.size), mode="bicubic", antialias=True, align_corners=False)
        # Rounding to float32 and the bicubic filter both step over the edges of the range.
        return Batch(inputs.clamp(self.low, self.high), self.labels[chosen])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [self.called[i] if self.called else self.usual.format(i, i + 1) for i in indices]


@DATA.register("npz")
def npz(
    *, path: str, size: int | None = None, low: float = 0.0, high: float = 1.0, classes: int = 0, normalise: bool = True
) -> InMemory:
    """Arrays `x` (or `images`) and `y` (or `labels`) of a NumPy archive; pictures or not.

    Bytes are pictures, [n, h, w, c] or [n, h, w]; 0 to 255 becomes low to high. Floats are [n, c, h, w] (or
    [n, h, w, c] with one or three channels) or [n, features…], e.g. an ECG, and must lie in [low, high] as they
    are. All is checked when the archive is opened. Object arrays are refused: reading them would run code from
    the file.

    Args:
        path: the archive.
        size: side that pictures are resized to (antialiased, not cropped); `None` keeps them.
        low, high: the range of float data.
        classes: number of labels; 0 counts them as the largest + 1 (at least two).
    """
    x, y = read_archive(path, (("x", "images"), ("y", "labels")))
    y = classes_of(x, y)
    require(x.ndim >= 2 and x.size > 0, "x", f"has shape {x.shape}", "give [n, …] with n > 0")
    if x.dtype == np.uint8:
        x = x[:, None] if x.ndim == 3 else x
        require(x.ndim == 4, "x", f"holds bytes of shape {x.shape}", "bytes are pictures: give [n, h, w, c]")
        x = x.transpose(0, 3, 1, 2) if x.shape[-1] in (1, 3) else x
        require(x.shape[1] in (1, 3), "x", f"has {x.shape[1]} channels", "give one or three")
    else:
        require(x.dtype.kind == "f", "x", f"holds {x.dtype}", "store uint8 pictures, or floats")
        last = x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3)
        x = x.transpose(0, 3, 1, 2) if last else x
    return InMemory(
        inputs=torch.from_numpy(np.ascontiguousarray(x)),
        labels=torch.from_numpy(y),
        count=classes or None,
        low=low,
        high=high,
        normalise=normalise,
        name=f"npz:{path}",
        called=[f"npz:{path}[{i}]" for i in range(len(x))],
        files=[Path(path)],
        steps=255 if x.dtype == np.uint8 else 0,
        size=size,
    )


@DATA.register("capture")
def captured(*, path: str, rounds: tuple[str, ...] = (), classes: int = 0) -> "InMemory | Parts":
    """A captured round's examples as its network saw them, those of more `rounds`, then of others in the same folder.

    The range is that of all values together: attacks stay in it. Nothing is normalised again. Examples that occur in
    the rounds are left out of the others, which serve as line-up and public data; they are other clients' data. Targets
    that are no classes (masks, values) need a training step as the model, of one input and one target.

    Args:
        path: the round's folder.
        rounds: folders of further rounds, whose examples follow in order, also where they are the same again.
        classes: number of labels; 0 counts them as the largest + 1 (at least two).
    """
    own = [Path(one).absolute() for one in (path, *rounds)]
    near = sorted({f for folder in own for f in folder.parent.glob(f"*/{EXAMPLES}") if f.parent not in own})
    files = [*(folder / EXAMPLES for folder in own), *near]
    kept = [_kept(file) for file in files[: len(own)]]
    shape, held = kept[0][0].shape[1:], {row.numpy().tobytes() for x, _ in kept for row in x}
    alike = all(x.shape[1:] == shape for x, _ in kept)
    require(alike, "data.source", "has rounds of examples of different shapes", "audit them apart")
    called = [
        f"example {i + 1} of {folder.name if rounds else 'the round'}"
        for folder, (x, _) in zip(own, kept, strict=True)
        for i in range(len(x))
    ]
    for file in near:
        others, theirs = _kept(file)
        new = [i for i, row in enumerate(others) if row.numpy().tobytes() not in held]
        if others.shape[1:] == shape:
            held |= {others[i].numpy().tobytes() for i in new}
            kept.append((others[new], theirs[new]))
    x, y = (torch.cat(parts) for parts in zip(*kept, strict=True))
    called += [f"another round's {i}" for i in range(len(called), len(x))]
    named = Parts(values={"x": x, "y": y}, name=f"capture:{path}", called=called, files=files)
    if y.ndim > 1 or y.is_floating_point():
        return named
    return InMemory(
        inputs=x,
        labels=torch.from_numpy(classes_of(x.numpy(), y.numpy())),
        count=classes or None,
        low=float(x.min()),
        high=float(x.max()),
        name=named.name,
        called=called,
        files=files,
        parts=named,
    )


def _kept(file: Path) -> tuple[Tensor, Tensor]:
    x, y = read_archive(file, (("x",), ("y",)), CAPTURE)
    numbers = x.ndim >= 2 and x.size > 0 and x.dtype.kind in "fiu"
    inputs = torch.from_numpy(x.astype(np.float32)) if numbers else torch.tensor(torch.nan)
    problem = f"{file} has examples of shape {x.shape} that are no finite numbers"
    require(bool(inputs.isfinite().all()), "data.source", problem, CAPTURE)
    taught = len(y) == len(x) and y.dtype.kind in "fiu" and bool(np.isfinite(y).all())
    require(taught, "data.source", f"{file} has targets of shape {y.shape} for {len(x)} examples", CAPTURE)
    return inputs, torch.from_numpy(y if y.dtype.kind == "f" else y.astype(np.int64))


def read_archive(path: Path | str, arrays: Sequence[tuple[str, ...]], hint: str = SAVE) -> list[Array]:
    """The arrays of these names in an archive, the first of each that is there. Raises `InputError`: it is none, is
    damaged, unpacks to more than `MOST`, holds more than numbers, or lacks one."""
    with refusing("data.source", f"cannot read '{path}'", hint), open(path, "rb") as file:
        archive = np.load(file, allow_pickle=False)
        whole = isinstance(archive, np.lib.npyio.NpzFile)
        require(whole, "data.source", f"'{path}' is one array, not an archive", hint)
        size = sum(entry.file_size for entry in zipfile.ZipFile(file).infolist())
        problem = f"'{path}' unpacks to {size / 2**30:.0f} GiB"
        require(size <= MOST, "data.source", problem, f"give at most {MOST >> 30} GiB at a time")
        found = []
        with archive:
            for names in arrays:
                there = [name for name in names if name in archive.files]
                problem = f"the archive has no array '{names[0]}', only {sorted(archive.files)}"
                require(bool(there), "data.source", problem, f"name one '{names[0]}'")
                found.append(np.asarray(archive[there[0]]))
        return found


def classes_of(x: Array, y: Array) -> Array:
    """The labels as whole numbers. Raises `InputError` where they are none, or not one an example."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    require(y.ndim == 1, "y", f"has shape {y.shape}", "give one label an example")
    require(len(y) == len(x), "y", f"has {len(y)} labels for {len(x)} examples", "give one label an example")
    whole = y.dtype.kind in "iu" or (y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all()))
    whole = whole and int(y.min(initial=0)) >= 0 and int(y.max(initial=0)) < 2**31
    require(whole, "y", "holds labels that are not 0, 1, 2, …", "number the classes from zero")
    return y.astype(np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class PartsOfTask(InMemory):
    """The same of named parts: targets may be no classes, and `labels` are then zeros."""

    batch: Batch
    format: DataSpec  #: of an example as searches have it: one part as it is, or all of them in a row from 0 to 1.

    def __post_init__(self) -> None:
        """`Layout.batch` has checked them."""

    def read(self, indices: Sequence[int]) -> Batch:
        return self.batch.take(torch.as_tensor(list(indices), dtype=torch.long))


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """Named tensors, one a part with an example a row; an audit makes a source of them, given the parts of its task."""

    values: Mapping[str, Tensor] = field(default_factory=dict)  #: by the names of the parts
    name: str = "parts"
    called: Sequence[str] = ()  #: names of the examples in reports; by default their numbers.
    files: Sequence[Path] = ()  #: with values: captures, of an input as the network saw it and a target; else theirs

    def of(self, layout: Layout | None) -> PartsOfTask:
        """With the parts of a task. Raises `InputError`: there is none; a part is missing, of another shape, not
        finite, or outside its range."""
        values = self.values
        if layout is None:
            hint = "give lg.Task.of_step(…), or your_package.module:function that makes one"
            raise InputError("model", "is no training step, and the data are parts of one", hint)
        if self.files and not self.values:
            hint = f"write it with numpy.savez({', '.join(f'{name}=…' for name in layout.parts)}), plain arrays only"
            arrays = read_archive(self.files[0], [(name,) for name in layout.parts], hint)
            values = {name: torch.as_tensor(array) for name, array in zip(layout.parts, arrays, strict=True)}
            values = {k: v.float() if v.is_floating_point() else v.long() for k, v in values.items()}
        elif self.files:
            problem = f"kept one input and one target, and the training step has {', '.join(layout.parts)}"
            hint = "give their examples by --data 'parts:ARCHIVE', an array a part"
            require(len(layout.inputs) == len(layout.targets) == 1, "data.source", problem, hint)
            values = dict(zip([*layout.inputs, *layout.targets], self.values.values(), strict=True))
            values |= {k: p.denormalise(values[k]) for k, p in layout.inputs.items() if isinstance(p, DataSpec)}
        batch, format_ = layout.batch(values), layout.spec
        own = batch.labels
        return PartsOfTask(
            batch=batch,
            format=format_,
            inputs=batch.inputs,
            labels=own if own.ndim == 1 and not own.is_floating_point() else torch.zeros(len(own), dtype=torch.long),
            count=max(FEWEST_CLASSES, format_.classes),
            low=format_.low,
            high=format_.high,
            name=self.name,
            called=self.called,
            files=self.files,
        )


@DATA.register("parts")
def parts(*, path: str) -> Parts:
    """Arrays of a NumPy archive, one for each part of the model's training step, by its names."""
    return Parts(files=[Path(path)], name=f"parts:{Path(path).name}")
