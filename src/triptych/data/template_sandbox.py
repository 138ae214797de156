"""A Jinja sandbox for untrusted chat templates: no access to Python objects, and limits on memory and time.

Tested by tests/data/test_chat_template.py.
"""

import datetime
import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

LARGEST = 10_000_000
"""The maximum number of characters in the output, or in any other text or list that a template makes."""
ITEM = 100
"""Number of characters that a list item counts as."""
MOST_BITS = 10_000
"""The maximum size of an integer."""
WIDTHS = {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "to_bytes", "tojson", "zfill"}
"""Filters and methods with a number as argument that sets the number of characters or items of the result."""
PRODUCTS = {"expandtabs", "indent", "join", "tojson", "translate", "wordwrap"}
"""Filters and methods whose result may be as long as the product of two arguments."""

_SECONDS: ContextVar[float | None] = ContextVar("seconds", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Sets a time limit for each template that this thread renders in the context; a template that exceeds it fails.

    Args:
        seconds: limit per template.
    """
    token = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(token)


@contextmanager
def watched() -> Iterator[None]:
    """Checks the time at each line of a template that is executed in the context, if ``time_limit`` is set.

    In other code the error may be lost, as in a finalizer, and Python then stops calling ``look``.

    Raises:
        TemplateError: the time limit is exceeded.
    """
    seconds = _SECONDS.get()
    if seconds is None:
        yield
        return
    end, before = time.monotonic() + seconds, sys.gettrace()

    def look(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > end and frame.f_code.co_filename == "<template>":
            raise TemplateError(f"it takes longer than {seconds:g} s")
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


class Generation(Extension):
    """``{% generation %}`` marks the model's messages for the masks of transformers; it does not change the text."""

    tags = {"generation"}  # noqa: RUF012 # Jinja's declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """Parses up to ``endgeneration``."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the extensions, filters and functions that transformers provides for chat templates.
    Anything that would exceed ``LARGEST`` is an error before memory is allocated."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], finalize=_check_written
        )
        self.filters["tojson"] = _as_json
        self.filters = {name: _bounded(name, function) for name, function in self.filters.items()}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        del self.globals["lipsum"]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _check_size(_length(left) + _length(right))
        elif operator == "*":
            _check_size(max(_length(left) * _number(right), _length(right) * _number(left)))
            _check_bits(_bits(left) + _bits(right))
        elif operator == "**":
            _check_bits(_bits(left) * abs(_number(right)))
        elif isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else [right])
        return super().call_binop(context, operator, left, right)

    def call(*arguments: Any, **options: Any) -> Any:  # a template may name its keyword arguments freely
        self, context, function, *given = arguments
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        of_owner = [owner] if isinstance(owner, str | bytes | int) else []
        _check_call(getattr(function, "__name__", ""), [*of_owner, *given, *options.values()])
        return ImmutableSandboxedEnvironment.call(self, context, function, *given, **options)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # Jinja joins all output with this function
        written, size = list[str](), 0
        for part in parts:
            written.append(part)
            size += len(part)
            _check_size(size)
        return "".join(written)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return cast(nodes.Template, _WithoutConcat().visit(super()._parse(source, name, filename)))


class _WithoutConcat(NodeTransformer):
    """Rewrites a ~ b to (a | string) + (b | string), which the sandbox intercepts."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 # Jinja's name
        self.generic_visit(node)
        texts: list[nodes.Expr] = [
            nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno) for part in node.nodes
        ]
        return functools.reduce(lambda a, b: nodes.Add(a, b, lineno=node.lineno), texts)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter with a check of its arguments."""

    @functools.wraps(function)  # keeps Jinja's attributes
    def bounded(*given: Any, **options: Any) -> Any:
        _check_call(name, [*given, *options.values()])
        return function(*given, **options)

    return bounded


def _check_call(name: str, given: list[Any]) -> None:
    """Raises SecurityError if an argument, or the product of two, is too large."""
    sizes = [_total(part) for part in given]
    _check_size(sum(sizes))
    texts = [part for part in given if isinstance(part, str | bytes | list | tuple | dict)]
    numbers = [_number(part) for part in given if not isinstance(part, bool)]
    if name in WIDTHS:
        _check_size(max(map(abs, numbers), default=0) * (ITEM if name in ("batch", "slice") else 1))
    if name == "round":
        _check_bits(max(map(abs, numbers), default=0))
    if name in ("format", "format_map") and texts:
        _check_format(str(texts[0]), given)
    elif name == "replace" and len(texts) > 2:
        _check_size(str(texts[0]).count(str(texts[1])) * len(texts[2]))
    elif name in PRODUCTS and texts:
        factors = sorted([*map(_total, texts), *map(abs, numbers)])[-2:]
        _check_size(factors[0] * factors[-1] if len(factors) > 1 else 0)


def _check_format(form: str, given: Iterable[Any]) -> None:
    """Limits formatted text: each placeholder expands to at most the longest argument or the largest width."""
    given = [*given]
    widths = [int(number) for number in re.findall(r"\d{1,20}", form)]
    if re.search(r"%[-+ #0]*\*|\{[^{}]*\{|%\.?\*", form):  # a width may be an argument
        widths += [abs(_number(part)) for part in given]
    longest = max([0, *(_total(part) for part in given if part != form)])
    _check_size(len(form) + (form.count("%") + form.count("{")) * (longest + max([0, *widths])))


def _check_written(value: Any) -> Any:
    """Checks each value that the template outputs, which may be a container."""
    _check_size(_total(value))
    return value


def _total(value: Any) -> int:
    """Counts the characters of a text, or in nested containers. Stops above ``LARGEST``, since containers that share
    items may be exponentially large."""
    total, rest = 0, [value]
    while rest and total <= LARGEST:
        part = rest.pop()
        total += len(part) if isinstance(part, str | bytes) else ITEM
        if isinstance(part, dict):
            rest += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            rest += part
    return total


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else ITEM * len(value) if isinstance(value, list | tuple) else 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _bits(value: Any) -> int:
    return _number(value).bit_length()


def _check_bits(bits: int) -> None:
    if bits > MOST_BITS:
        raise SecurityError(f"an integer of more than {MOST_BITS:,} bits")


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise SecurityError(f"more than {LARGEST:,} characters")


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Like Jinja's own filter, but without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
