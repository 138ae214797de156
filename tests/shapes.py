"""Shapes and types of the blocks and models are checked while testing, in each test in the first calls of each
function: checking all calls took half of the time of the tests of models. Functions within functions are not checked:
each call of the outer one makes a new one, and to prepare its check takes far longer than what it computes."""

from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any

import jaxtyping

CALLS = 3
calls: Counter[FunctionType] = Counter()
"""Of each function in this test."""
check = jaxtyping.jaxtyped


def check_first_calls(function: Any = None, *, typechecker: Any) -> Any:
    """``jaxtyping.jaxtyped`` for the first calls."""
    if function is None:
        return partial(check_first_calls, typechecker=typechecker)
    if "<locals>" in function.__qualname__:
        return function
    checked: Callable[..., Any] = check(function, typechecker=typechecker)
    if not isinstance(function, FunctionType):
        return checked

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[function] += 1
        return (checked if calls[function] <= CALLS else function)(*args, **kwargs)

    return call


def install(packages: list[str]) -> None:
    """To be called before anything of the packages is imported."""
    jaxtyping.jaxtyped = check_first_calls  # which the hook puts before each function
    jaxtyping.install_import_hook(packages, "beartype.beartype")
