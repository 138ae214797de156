"""``triptych chat``: a conversation with a trained model, in the terminal."""

import sys
from contextlib import suppress
from pathlib import Path

from triptych.assembly.restore import load
from triptych.config import ConfigError, refusing
from triptych.data import Message
from triptych.data.example import ANSWERING
from triptych.models.generation import Sampling
from triptych.tasks import Chat

ANEW = "/new"
"""What begins a new conversation."""


def chat(checkpoint: Path, *, system: str | None, sampling: Sampling, max_new_tokens: int | None) -> None:
    """Answers line by line, each answer as it is written, until the input ends.

    Args:
        checkpoint: a file, or a run directory (its newest checkpoint).
        system: what the model is told beforehand; None: nothing.
        sampling: how tokens are chosen.
        max_new_tokens: of an answer; None: the task's.
    """
    task = load(checkpoint).task
    if not isinstance(task, Chat):
        raise ConfigError(f"{checkpoint}: trained for task={task.name}; expected one of task=chat")
    task.sampling, task.max_new_tokens = sampling, max_new_tokens or task.max_new_tokens
    opening = [] if system is None else [Message("system", system)]
    said, is_told, asks, number = list(opening), False, sys.stdin.isatty(), 0
    if max_new_tokens is not None and max_new_tokens > task.max_length:
        raise ConfigError(
            f"--max-new-tokens {max_new_tokens}: the model reads {task.max_length} tokens; expected fewer"
        )
    with refusing("--system: "):
        task.check_asked([*opening, Message("user", "a")])
    if asks:
        with suppress(ImportError):
            import readline  # noqa: F401 - gives the line its history and its keys
        print(f"{task.architecture} model of {checkpoint}; {ANEW} begins anew, Ctrl-D ends")
    while True:
        try:
            line = input("> " if asks else "")
        except EOFError:
            return print() if asks else None
        number += 1
        if line.strip() == ANEW:
            said, is_told = list(opening), False
        if not line.strip() or line.strip() == ANEW:
            continue
        asked = [*said, Message("user", line)]
        try:
            if task.is_forgetful(asked) and not is_told:
                print("(too long: the model reads the end of the conversation alone)", file=sys.stderr)
                is_told = True
            answer = task.reply(asked, lambda part: print(part, end="", flush=True))
        except ValueError as error:  # a text that no template can write; the next one may do
            if not asks:
                raise ConfigError(f"standard input, line {number}: {error}") from None
            print(f"error: {error}", file=sys.stderr)
            continue
        print(flush=True)
        said = [*asked, Message(ANSWERING, answer)]
