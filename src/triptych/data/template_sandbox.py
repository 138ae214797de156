"""A Jinja environment for untrusted chat templates: no access to Python objects; memory and time are bounded."""

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
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

LARGEST = 10_000_000
"""Characters of the output, or of any other text or list, that a template may make."""
ITEM = 100
"""Characters that an item of a list counts as."""
MOST_BITS = 10_000
"""Of a whole number."""
WIDTHS = {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "to_bytes", "tojson", "zfill"}
"""Filters and methods that write as many characters, or make as many items, as a number says."""
PRODUCTS = {"expandtabs", "indent", "join", "tojson", "translate", "wordwrap"}
"""Filters and methods whose result may be as long as the product of two arguments."""

_SECONDS: ContextVar[float | None] = ContextVar("seconds", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Sets how long each template may take that this thread renders meanwhile; one that takes longer fails.

    Args:
        seconds: of each template.
    """
    token = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(token)


@contextmanager
def watched() -> Iterator[None]:
    """Looks at the clock with each line that Python runs meanwhile, if ``time_limit`` is set.

    Raises:
        TemplateError: the time is over.
    """
    seconds = _SECONDS.get()
    if seconds is None:
        yield
        return
    end, before = time.monotonic() + seconds, sys.gettrace()

    def look(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > end:
            raise TemplateError(f"it takes longer than {seconds:g} s")
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


class Generation(Extension):
    """``{% generation %}`` marks the model's answers for the masks of transformers; it does not change the text."""

    tags = {"generation"}  # noqa: RUF012 # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Reads up to ``endgeneration``."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with the extensions, filters and functions that transformers gives chat templates. It refuses
    what would become larger than ``LARGEST`` before the memory is allocated."""

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

    def call(*arguments: Any, **options: Any) -> Any:  # options of a template may have any name
        self, context, function, *given = arguments
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        of_owner = [owner] if isinstance(owner, str | bytes | int) else []
        _check_call(getattr(function, "__name__", ""), [*of_owner, *given, *options.values()])
        return ImmutableSandboxedEnvironment.call(self, context, function, *given, **options)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # Jinja joins with it all that it has written
        written, size = list[str](), 0
        for part in parts:
            written.append(part)
            size += len(part)
            _check_size(size)
        return "".join(written)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed: nodes.Template = _WithoutConcat().visit(super()._parse(source, name, filename))
        return parsed


class _WithoutConcat(NodeTransformer):
    """a ~ b as (a | string) + (b | string), which the sandbox intercepts."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 # as Jinja calls it
        """See ``NodeTransformer``."""
        self.generic_visit(node)
        texts: list[nodes.Expr] = [
            nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno) for part in node.nodes
        ]
        return functools.reduce(lambda a, b: nodes.Add(a, b, lineno=node.lineno), texts)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are checked first."""

    @functools.wraps(function)  # keeps what Jinja has noted on it
    def bounded(*given: Any, **options: Any) -> Any:
        _check_call(name, [*given, *options.values()])
        return function(*given, **options)

    return bounded


def _check_call(name: str, given: list[Any]) -> None:
    """Refuses arguments that are too large, and those whose product is."""
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
    """Each mark writes at most the longest argument, or as many columns as the largest number."""
    given = [*given]
    widths = [int(number) for number in re.findall(r"\d{1,20}", form)]
    if re.search(r"%[-+ #0]*\*|\{[^{}]*\{|%\.?\*", form):  # the width is an argument
        widths += [abs(_number(part)) for part in given]
    longest = max([0, *(_total(part) for part in given if part != form)])
    _check_size(len(form) + (form.count("%") + form.count("{")) * (longest + max([0, *widths])))


def _check_written(value: Any) -> Any:
    """What the template writes, which may be a container."""
    _check_size(_total(value))
    return value


def _total(value: Any) -> int:
    """Characters of a text, or of all that is in containers; of more than ``LARGEST``, some of them: containers that
    share others may be exponentially large."""
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
        raise SecurityError(f"a whole number of more than {MOST_BITS:,} bits")


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
    """As it is, where Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
