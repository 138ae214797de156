"""What is a secret, and how it stays out of everything that a run leaves behind. Imports nothing of ours."""

import logging
import os
import re
from collections.abc import Iterator
from typing import Any

REDACTED = "[redacted]"
SHORTEST = 6
"""Characters of the shortest secret that is replaced wherever it occurs; shorter ones only under their own name."""

SURE = re.compile(r"(?i)secret|passw|passphrase|credential|_pwd|(?:api|access|account|private|signing)[_-]?key")
"""In a name: the value is a secret whatever it looks like."""
LIKELY = re.compile(r"(?i)(?:^|[^a-z])(?:apikey|auth|key|pass|token)(?:$|[^a-z])|[a-z](?-i:Key|Token)$")
"""In a name: the value is a secret if it looks like one, for "text_key=review" and "pad_token=[PAD]" are none."""
OPAQUE = re.compile(r"(?![a-z_]+$)[\w.+/=:~-]{8,}")
"""What looks like one: no blanks, no brackets, not an identifier in lower case."""

IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
SIGNED = re.compile(r"(?i)([?&](?:[a-z]+[-_.])*(?:sig|signature)=)[^&\s\"'<>#]+")
"""What makes a link to a file of Azure, S3 or Google Cloud Storage valid for any holder."""
KNOWN = re.compile(
    r"\b(?:sk-|gh[opsur]_|github_pat_|glpat-|xox[a-z]-|AKIA|wandb_v1_|eyJ)[\w.-]{16,}|\bhf_[A-Za-z0-9]{20,}"
    r"|(?<=[Bb]earer )[\w.+/=~-]{8,}"
)
"""Tokens of well-known services, which tell themselves by their beginning."""
ASSIGNED = re.compile(r"""([A-Za-z_][\w.-]*)(["']?=["']?|["']:\s*["']?|:(?=\S))(?!\$\{|\.\.\.)([^\s"',;&{}\[\]()]+)""")


def is_secret(name: str, value: object) -> bool:
    """Whether the name of a value says that it is a secret.

    Args:
        name: of an environment variable, or a key of the configuration with its parents, joined by dots.
        value: what stands under it.
    """
    if value is None or isinstance(value, bool) or value == "":
        return False
    if SURE.search(name):
        return True
    return isinstance(value, str) and bool(LIKELY.search(name)) and (name.isupper() or bool(OPAQUE.fullmatch(value)))


class Redactor:
    """Replaces secrets by ``[redacted]``: the value of a key or an environment variable whose name says that it is one
    (wherever it occurs), what stands before the @ of a URL, its signature, and the tokens of well-known services.

    Args:
        config: the resolved configuration, as plain containers; None: only what can be known without.
    """

    def __init__(self, config: object = None) -> None:
        named = [*os.environ.items(), *leaves(config)]
        found = {str(value).strip() for name, value in named if is_secret(name, value)}
        self._secrets = sorted((secret for secret in found if len(secret) >= SHORTEST), key=len, reverse=True)

    def __call__(self, value: Any, name: str = "") -> Any:
        """A copy without secrets.

        Args:
            value: a string, number or None, or lists and dictionaries of such.
            name: the key that it stands under.
        """
        if isinstance(value, dict):
            return {key: self(part, f"{name}.{key}") for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self(part, name) for part in value]
        if is_secret(name, value):
            return REDACTED
        return self._text(value) if isinstance(value, str) and not name.endswith("_target_") else value

    def _text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return self._assigned(KNOWN.sub(REDACTED, SIGNED.sub(rf"\1{REDACTED}", IN_URL.sub(REDACTED, text))))

    def _assigned(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            name, sign, value = match.groups()
            return name + sign + (REDACTED if is_secret(name, value) else self._assigned(value))

        return ASSIGNED.sub(replace, text)

    def guard_logging(self) -> None:
        """From now on the log messages of this process have no secrets, their tracebacks included."""
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_Formatter(handler.formatter or logging.Formatter(), self))


class _Formatter(logging.Formatter):
    def __init__(self, inner: logging.Formatter, redact: Redactor) -> None:
        super().__init__()
        self._inner, self._redact = inner, redact

    def format(self, record: logging.LogRecord) -> str:
        return str(self._redact(self._inner.format(record)))


def leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The values within containers, each with its key and the parents of that."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part, name)
    else:
        yield name, value
