"""Errors that are for the user, and the parts of their messages."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from triptych.config.terms import alike, plain


class ConfigError(ValueError):
    """A mistake in the configuration; the message is for the user."""


class ConfigErrors(ConfigError):
    """Several mistakes; ``args`` are their messages."""

    def __str__(self) -> str:
        return "\n".join(self.args)


def messages_of(error: Exception) -> list[str]:
    """The message of each mistake that an error is about."""
    return [*error.args] if isinstance(error, ConfigErrors) else [str(error)]


class Mistakes(list[str]):
    """The messages of several checks, to be raised together."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keeps the message of a ``ConfigError``. What else a check trips over follows from an earlier mistake, if
        there is one."""
        try:
            yield
        except ConfigError as error:
            self += messages_of(error)
        except Exception:
            if not self:
                raise

    def raise_all(self) -> None:
        """Raises what was noted."""
        if messages := dict.fromkeys(self):
            raise (ConfigErrors if len(messages) > 1 else ConfigError)(*messages)


class RunError(RuntimeError):
    """A run that cannot go on, through no mistake of ours: a full disk, a loss that is not finite, a damaged file. The
    message is for the user."""


@contextmanager
def refusing(place: str = "") -> Iterator[None]:
    """What constructors and readers say against what they are given is the answer to a setting.

    Args:
        place: of what is given; it stands before what they say.
    """
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{place}{error}") from None


FEW = 8
"""So many choices are listed even where the nearest one is known."""


MOST = 16
"""So many names are listed where none is like the one that was given."""


def nearest(name: str, valid: Sequence[str]) -> str:
    """The valid names most like this one, as the end of an error message; empty if none is like it."""
    matches = alike(name, valid) or difflib.get_close_matches(name, valid, n=1)
    matches = matches or [choice for choice in valid if len(choice) > 3 and plain(choice) in plain(name)][:1]
    return f"; did you mean {listed(matches, 'or')}?" if matches else ""


def suggestion(name: str, valid: Sequence[str]) -> str:
    """The valid names most like this one, or else all of them, as the end of an error message."""
    if not valid:
        return ", and no other"
    return nearest(name, valid) or f"; expected one of {', '.join(valid[:MOST])}{more(valid, MOST)}"


def one_of(name: str, valid: Sequence[str]) -> str:
    """The valid names and the nearest of them, or the nearest alone of many, after a colon of an error message."""
    near = nearest(name, valid)
    if near and len(valid) > FEW:
        return near.removeprefix("; ")
    return f"expected one of {', '.join(valid)}{near}"


def more(names: Sequence[str], shown: int, word: str = "and") -> str:
    """How many names there are besides those that are shown."""
    return f" {word} {len(names) - shown} more" if len(names) > shown else ""


def listed(names: Sequence[str], word: str = "and") -> str:
    """The first few of some names, and how many more there are."""
    return ", ".join(names[:4]) + more(names, 4, word)
