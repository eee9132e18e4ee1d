"""Values from a plan or a command line, checked against the types of the constructor that takes them."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable
from typing import Any

from leakgauge.errors import InputError


def hints(build: Callable[..., Any]) -> dict[str, Any]:
    """Types of a constructor's parameters, as far as they are stated where they can be read."""
    own = isinstance(build, type) and not dataclasses.is_dataclass(build)
    stated = build.__init__ if own else build
    module = None if own else inspect.getmodule(build)
    try:
        return typing.get_type_hints(stated, vars(module) if module else None)
    except (NameError, TypeError, AttributeError):
        return {}  # names imported for type checkers alone; no function


def typed(build: Callable[..., Any], key: str, value: Any, field: str) -> Any:
    """`value` as the type that the parameter `key` of `build` asks for.

    Raises:
        InputError: another type, not finite, or a parameter that only code can give.
    """
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError  # slow to import

    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(field, f"is {value}", "give a finite number")
    try:
        return TypeAdapter(hints(build).get(key, Any)).validate_python(value)
    except PydanticSchemaGenerationError as error:
        raise InputError(
            field, f"cannot be given in a plan ({key} is code)", "name your_package.module:function that sets it"
        ) from error
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise InputError(field, f"is {value!r}", problem[0].lower() + problem[1:]) from error
