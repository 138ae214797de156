"""Detects secrets and redacts them in all files and logs of a run. Imports no other Triptych module."""

import logging
import os
import re
from collections.abc import Iterator
from typing import Any

REDACTED = "[redacted]"
SHORTEST = 6
"""Minimum length of a secret to replace everywhere; shorter ones are only replaced under their own key."""

SURE = re.compile(r"(?i)secret|passw|passphrase|credential|_pwd|(?:api|access|account|private|signing)[_-]?key")
"""Matches a name whose value is always a secret."""
LIKELY = re.compile(r"(?i)(?:^|[^a-z])(?:apikey|auth|key|pass|token)(?:$|[^a-z])|[a-z](?-i:Key|Token)$")
"""Matches a name whose value is a secret if it looks like one; "text_key=review" and "pad_token=[PAD]" are not."""
OPAQUE = re.compile(r"(?![a-z_]+$)[\w.+/=:~-]{8,}")
"""Matches a value that looks like a secret: no spaces, no brackets, not a lower-case identifier."""

IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
SIGNED = re.compile(r"(?i)([?&](?:[a-z]+[-_.])*(?:sig|signature)=)[^&\s\"'<>#]+")
"""Matches the signature in a link to a file on Azure, S3 or Google Cloud Storage."""
KNOWN = re.compile(
    r"\b(?:sk-|gh[opsur]_|github_pat_|glpat-|xox[a-z]-|AKIA|wandb_v1_|eyJ)[\w.-]{16,}|\bhf_[A-Za-z0-9]{20,}"
    r"|(?<=[Bb]earer )[\w.+/=~-]{8,}"
)
"""Matches tokens of well-known services by their prefix."""
ASSIGNED = re.compile(r"""([A-Za-z_][\w.-]*)(["']?=["']?|["']:\s*["']?|:(?=\S))(?!\$\{|\.\.\.)([^\s"',;&{}\[\]()]+)""")


def is_secret(name: str, value: object) -> bool:
    """Whether a value is a secret, according to its name.

    Args:
        name: name of an environment variable, or dotted key of the configuration.
        value: its value.
    """
    if value is None or isinstance(value, bool) or value == "":
        return False
    if SURE.search(name):
        return True
    return isinstance(value, str) and bool(LIKELY.search(name)) and (name.isupper() or bool(OPAQUE.fullmatch(value)))


class Redactor:
    """Replaces secrets by ``[redacted]``: values of keys and environment variables with the name of a secret (wherever
    they occur), the login and the signature in URLs, and tokens of well-known services.

    Args:
        config: resolved configuration in plain containers, if there is one.
    """

    def __init__(self, config: object = None) -> None:
        named = [*os.environ.items(), *leaves(config)]
        found = {str(value).strip() for name, value in named if is_secret(name, value)}
        self._secrets = sorted((secret for secret in found if len(secret) >= SHORTEST), key=len, reverse=True)

    def __call__(self, value: Any, name: str = "") -> Any:
        """A copy of a value without secrets.

        Args:
            value: string, number or None, or lists and dictionaries of these.
            name: key of the value.
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
        """Redacts all further log messages of this process, including tracebacks."""
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_Formatter(handler.formatter or logging.Formatter(), self))


class _Formatter(logging.Formatter):
    def __init__(self, inner: logging.Formatter, redact: Redactor) -> None:
        super().__init__()
        self._inner, self._redact = inner, redact

    def format(self, record: logging.LogRecord) -> str:
        return str(self._redact(self._inner.format(record)))


def leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The values in nested containers, with their dotted keys."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part, name)
    else:
        yield name, value
