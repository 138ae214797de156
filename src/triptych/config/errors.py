"""Errors caused by the user's input, and helpers for their messages.

Tested by tests/config/test_build.py and tests/assembly/test_early_checks.py.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from triptych.config.terms import alike, plain


class ConfigError(ValueError):
    """An error in the configuration, with a message for the user."""


class ConfigErrors(ConfigError):
    """Several errors; ``args`` are their messages."""

    def __str__(self) -> str:
        return "\n".join(self.args)


def messages_of(error: Exception) -> list[str]:
    """The message of each error in an exception."""
    return [*error.args] if isinstance(error, ConfigErrors) else [str(error)]


class CollectedErrors(list[str]):
    """Collects the messages of several checks, to raise them together."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collects the message of a ``ConfigError``. Any other exception is ignored after an earlier error, which is
        its likely cause."""
        try:
            yield
        except ConfigError as error:
            self += messages_of(error)
        except Exception:
            if not self:
                raise

    def raise_all(self) -> None:
        """Raises the collected errors, if any."""
        if messages := dict.fromkeys(self):
            raise (ConfigErrors if len(messages) > 1 else ConfigError)(*messages)


class RunError(RuntimeError):
    """A run failed for a reason outside of the code, such as a full disk, a NaN loss or a damaged file. The message is
    for the user."""


@contextmanager
def error_prefix(place: str = "") -> Iterator[None]:
    """Turns a ``ValueError`` of a constructor or reader into a ``ConfigError``.

    Args:
        place: prefix of the message.
    """
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{place}{error}") from None


FEW = 8
"""Maximum number of choices to list along with the nearest one."""


MOST = 16
"""Maximum number of names to list if none is similar."""


def nearest(name: str, valid: Sequence[str]) -> str:
    """The most similar valid names, as the end of an error message; empty if none is similar."""
    matches = alike(name, valid) or difflib.get_close_matches(name, valid, n=1)
    matches = matches or [choice for choice in valid if len(choice) > 3 and plain(choice) in plain(name)][:1]
    return f"; did you mean {join_names(matches, 'or')}?" if matches else ""


def suggestion(name: str, valid: Sequence[str]) -> str:
    """The most similar valid names, or all of them, as the end of an error message."""
    if not valid:
        return ", and no other"
    return nearest(name, valid) or f"; expected one of {', '.join(valid[:MOST])}{and_others(valid, MOST)}"


def one_of(name: str, valid: Sequence[str]) -> str:
    """The valid names and the nearest of them, or only the nearest of many, as the end of an error message."""
    near = nearest(name, valid)
    if near and len(valid) > FEW:
        return near.removeprefix("; ")
    return f"expected one of {', '.join(valid)}{near}"


def and_others(names: Sequence[str], shown: int, word: str = "and") -> str:
    """The number of names that are not shown."""
    return f" {word} {len(names) - shown} more" if len(names) > shown else ""


def join_names(names: Sequence[str], word: str = "and") -> str:
    """The first names, and the number of others."""
    return ", ".join(names[:4]) + and_others(names, 4, word)
