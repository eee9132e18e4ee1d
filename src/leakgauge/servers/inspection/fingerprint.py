"""One number for a whole model, so that clients can compare what they were sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from leakgauge.errors import InputError

DIGITS = 64


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over all tensors by name: name, dtype, shape and bytes, 64 hexadecimal digits.

    Independent of the order of the names and of the file's format; any changed bit changes it.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        tensor = tensor.dequantize() if tensor.is_quantized else tensor
        header = f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{'x'.join(map(str, tensor.shape))}\0"
        digest.update(header.encode())
        if tensor.numel():
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
