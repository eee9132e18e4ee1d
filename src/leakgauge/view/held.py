"""Modules and tensors held in a tree of modules at dotted names."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["hold", "place"]


def _owner(root: nn.Module, path: list[str]) -> nn.Module:
    for part in path:
        inside = dict(root.named_children())
        if part not in inside:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def hold(root: nn.Module, name: str, value: Tensor, trained: bool) -> None:
    *path, last = name.split(".")
    owner = _owner(root, path)
    if last in owner._parameters or last in owner._buffers:
        return
    if trained:
        owner.register_parameter(last, nn.Parameter(value.detach().clone()))
    else:
        owner.register_buffer(last, value.detach().clone())


def place(root: nn.Module, name: str, module: nn.Module) -> None:
    *path, last = name.split(".")
    _owner(root, path).add_module(last, module)
