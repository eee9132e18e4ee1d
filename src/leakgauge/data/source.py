"""A source of examples by its name, and how clients, distractors and the attacker's public data are taken from it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.errors import InputError, did_you_mean, require
from leakgauge.registry import DATA, typed
from leakgauge.task import Batch, DataSpec

AT_ONCE = 2**24  # bytes of examples that are worked on at a time

CIFAR_MEAN, CIFAR_STD = (0.4915, 0.4823, 0.4468), (0.2470, 0.2435, 0.2616)
"""Per channel (red, green, blue) over CIFAR-10's training images in [0, 1]."""

GREY_MEAN, GREY_STD = (0.5,), (0.25,)
"""For one channel: the middle of the range and about CIFAR's spread; grey sets differ too much for one set's own."""

FEWEST_CLASSES = 2  # a soft-max over one class has no gradient at all, which would read as a perfect defence


@runtime_checkable
class Source(Protocol):
    """Examples that are decoded when they are read.

    Guarantees: `read` is deterministic, answers in the order asked, and decodes nothing else; its
    values are finite and in [low, high], the raw data's range; `labels`, of all examples, is cheap; labels are in
    [0, classes), at least two. `name` is as in the plan; `normalise` is whether models see pictures normalised
    (see `spec`).

    It may have more: `files` that hold all examples, whose content is its identity; of texts, `vocabulary` and
    `padding`, the number that fills up short ones (or `None`); the `format` of examples of named parts; `columns`, what
    the words of an example are called (none for running text), and ``in_words(inputs)``, those of each example, also of
    one that an attack made; and ``others(exclude, part, size, generator)``, pictures that it makes where it is too
    small to lend whole examples."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def classes(self) -> int: ...
    @property
    def labels(self) -> Int[Tensor, " n"]: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def normalise(self) -> bool: ...
    def __len__(self) -> int: ...
    def read(self, indices: Sequence[int]) -> Batch:
        """Raises `InputError`, which names the file, for an example that cannot be decoded."""

    def names(self, indices: Sequence[int]) -> list[str]:
        """What to call the examples in a report, e.g. file names."""


class Share(Enum):
    """The two disjoint shares of the examples that are not the client's."""

    GALLERY = 0
    PUBLIC = 1


def spec(source: Source) -> DataSpec:
    """The data's format. Pictures of a source with `normalise` get `CIFAR_MEAN` or `GREY_MEAN`, scaled to
    the source's range; everything else mean 0 and standard deviation 1, which leaves it as it is."""
    if hasattr(source, "format"):
        return cast(DataSpec, source.format)
    plain = DataSpec(shape=source.shape, classes=source.classes, low=source.low, high=source.high)
    if hasattr(source, "vocabulary"):
        return replace(plain, vocabulary=source.vocabulary, padding=getattr(source, "padding", None))
    if not (source.normalise and plain.is_image):
        return plain
    mean, std = (CIFAR_MEAN, CIFAR_STD) if source.shape[0] == 3 else (GREY_MEAN, GREY_STD)
    scaled = tuple(source.low + plain.range * m for m in mean), tuple(plain.range * s for s in std)
    return replace(plain, mean=scaled[0], std=scaled[1])


def client_batches(source: Source, batch: int, batches: int, start: int = 0) -> list[list[int]]:
    """Indices of consecutive, disjoint batches from example `start` on. Raises `InputError`: the source has too few
    examples."""
    for name, value in (("data.batch", batch), ("data.batches", batches)):
        require(value > 0, name, f"is {value}", "give a positive number")
    available = len(source) - start
    require(0 <= start < len(source), "data.start", f"is {start} of {len(source)} examples", "start within the data")
    problem = f"batch larger than the data ({batch} of {available} examples)"
    require(batch <= available, "data.batch", problem, f"set data.batch to {available} or less")
    problem = f"batch larger than the data ({batches} disjoint batches of {batch}, {available} examples)"
    hint = f"set data.batches to {available // batch} or less"
    require(batch * batches <= available, "data.batches", problem, hint)
    return [list(range(first, first + batch)) for first in range(start, start + batch * batches, batch)]


def check(source: Source, indices: Iterable[int], *, blank: bool = False) -> None:
    """Decodes the examples that a plan will use, one at a time, before anything runs. `blank`: whether pictures of one
    colour are let through. Raises `InputError`: one is unreadable, of another shape, not finite, outside the range, or
    blank; names it."""
    for index in indices:
        inputs = source.read([index]).inputs[0]
        name = source.names([index])[0]
        shape = tuple(inputs.shape)
        same = shape == source.shape
        require(same, name, f"has shape {shape}, others have {source.shape}", "set data.size to resize all")
        require(bool(inputs.isfinite().all()), name, "has values that are not finite", "remove or fix the example")
        inside = source.low <= float(inputs.min()) and float(inputs.max()) <= source.high
        leaves = f"leaves the range [{source.low:g}, {source.high:g}]"
        require(inside, name, leaves, "set data.low and data.high, or scale the data")
        flat = inputs.flatten(1) if inputs.ndim == 3 and inputs[0].numel() > 1 else None
        plain = blank or flat is None or bool((flat != flat[:, :1]).any())
        nothing = "nothing in it can come back, and its client would count as protected"
        hint = "leave it out, e.g. the first slices of a scan: data.start"
        require(plain, name, f"is of one colour all over: {nothing}", hint)
        padding = getattr(source, "padding", None)
        said = padding is None or bool((inputs != padding).any())
        require(said, name, f"has no token but padding: {nothing}", "leave it out")


def gallery(source: Source, exclude: Iterable[int], size: int, generator: torch.Generator) -> Float[Tensor, "m *shape"]:
    """Distractors for identification: never an excluded (true) example, nor an exact copy of one.

    Whole other examples where there are enough. Too few pictures are topped up with random crops of other pictures
    (square side ½ to ⅞ of the shorter side, half of them mirrored), resized; `samples` always gives crops. Other data
    are not cut up: the answer may then be shorter than `size`. Raises `InputError`: every example is excluded."""
    return others(source, exclude, Share.GALLERY, size, generator)


def public(source: Source, exclude: Iterable[int], size: int, generator: torch.Generator) -> Float[Tensor, "m *shape"]:
    """The attacker's own examples: from the same source, made as in `gallery`, never an excluded one.

    Disjoint from `gallery` for the same `exclude` as long as two other examples exist: the two take
    alternate ones. For `samples` these are crops of other colour photos."""
    return others(source, exclude, Share.PUBLIC, size, generator)


def whole_gallery(source: Source, exclude: Iterable[int], size: int) -> int:
    """How many of a `gallery` of this size are whole other examples, rather than crops."""
    return 0 if hasattr(source, "others") else min(size, len(share(len(source), frozenset(exclude), Share.GALLERY)))


def others(
    source: Source, exclude: Iterable[int], part: Share, size: int, generator: torch.Generator
) -> Float[Tensor, "m *shape"]:
    """What `gallery` or `public` gives."""
    exclude = frozenset(exclude)
    require(size > 0, "size", f"is {size}", "ask for at least one example")
    if hasattr(source, "others"):
        return cast(Tensor, source.others(exclude, part, size, generator))
    lent = share(len(source), exclude, part)
    problem = f"takes all {len(source)} examples and leaves none to compare with"
    hint = "add examples that are not this client's, such as another client's round in the same folder, or lower it"
    require(bool(lent), "data.batch", problem, hint)
    truth = list(source.read(sorted(exclude)).inputs)
    order = [lent[i] for i in torch.randperm(len(lent), generator=generator).tolist()]
    kept, at_once = list[Tensor](), max(1, AT_ONCE // (4 * math.prod(source.shape)))
    while order and (left := size - len(kept)):
        asked, order = order[: min(left, at_once)], order[min(left, at_once) :]
        kept += [x for x in source.read(asked).inputs if not any(torch.equal(x, t) for t in truth)]
    problem = "leaves only exact copies of its own examples to compare with"
    require(bool(kept), "data.batch", problem, "remove duplicates")
    found = torch.stack(kept).float()
    is_image = len(source.shape) == 3 and source.shape[0] in (1, 3)
    return torch.cat([found, _crops(found, size - len(found), generator)]) if is_image and len(kept) < size else found


def share(n: int, exclude: frozenset[int], part: Share) -> list[int]:
    """Every other example that is not excluded, in a fixed shuffled order (so that no part is one class);
    all of them when there is only one."""
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    others = [i for i in shuffled if i not in exclude]
    return others[part.value :: 2] or others


def _crops(images: Float[Tensor, "k c h w"], size: int, generator: torch.Generator) -> Float[Tensor, "size c h w"]:
    height, width = images.shape[-2:]
    made = []
    for i in range(size):
        u = torch.rand(4, generator=generator).tolist()
        side = max(1, round(min(height, width) * (0.5 + 0.375 * u[0])))
        top, left = int(u[1] * (height - side + 1)), int(u[2] * (width - side + 1))
        cut = images[i % len(images)][:, top : top + side, left : left + side]
        cut = cut.flip(-1) if u[3] < 0.5 else cut
        made.append(F.interpolate(cut[None], (height, width), mode="bilinear", align_corners=False)[0])
    return torch.stack(made)


def open_source(text: str, **options: Any) -> Source:
    """The source that a plan names.

    One of ``samples``, ``folder:PATH``, ``npz:PATH``, ``parquet:PATH``, ``hf:NAME``, ``parts:PATH`` and
    ``your_package.module:function``; `options` become the constructor's keywords, e.g. ``size=32``. Raises
    `InputError`: no such source or option (the hint is the nearest one), or the source's own complaint."""
    require(isinstance(text, str), "data.source", f"is {text!r}", "name a source, e.g. samples or folder:PATH")
    kind, colon, path = text.partition(":")
    entries = {entry.name: entry for entry in DATA}
    if kind in entries:
        entry = entries[kind]
        takes_path = "path" in entry.parameters
        if takes_path and not path:
            raise InputError("data.source", f"'{text}' names no place", f"write {kind}:PATH")
        if colon and not takes_path:
            raise InputError("data.source", f"'{kind}' takes no path", f"write {kind}")
        options |= {"path": path} if takes_path else {}
    elif colon and "." in kind:
        entry = DATA[text]
    else:
        raise InputError("data.source", f"unknown source '{kind}'", did_you_mean(kind, entries))
    for option, value in options.items():
        if option not in entry.parameters:
            raise InputError(f"data.{option}", f"is no option of '{kind}'", did_you_mean(option, entry.parameters))
        options[option] = typed(entry.build, option, value, f"data.{option}")
    return cast(Source, entry.build(**options))
