"""The one way to see what parts of a module are given and put out while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

See = Callable[[str, tuple[Any, ...], Any], Any]
"""Called with a part's name, what it was given by position and what it put out."""


@contextmanager
def watched(module: nn.Module, names: Iterable[str], see: See) -> Iterator[None]:
    """Calls `see` after every call of the named parts; what it returns, if anything, takes the output's place.

    The module is afterwards as it was. The empty name is the module itself.
    """

    def watching(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
        return lambda _module, given, out: see(name, given, out)

    handles = [module.get_submodule(name).register_forward_hook(watching(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def outputs_of(module: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """What parts of a module put out at their last call while it runs, by name."""
    seen: dict[str, Tensor] = {}
    with watched(module, names, lambda name, _given, out: seen.update({name: out})):
        yield seen


@contextmanager
def inputs_of(module: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """What parts of a module are given first at their last call while it runs, by name, in the order of the calls."""
    seen: dict[str, Tensor] = {}
    with watched(module, names, lambda name, given, _out: seen.update({name: given[0]})):
        yield seen
