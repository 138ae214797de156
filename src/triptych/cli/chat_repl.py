"""``triptych chat``: a conversation with a trained model, in the terminal.

Tested by tests/cli/test_runs.py.
"""

import sys
from contextlib import suppress
from pathlib import Path

from triptych.assembly.restore import load
from triptych.config import ConfigError, error_prefix
from triptych.data import Message
from triptych.data.example import ANSWERING
from triptych.models.generation import Sampling
from triptych.tasks import Chat

NEW_CONVERSATION = "/new"
"""The input that starts a new conversation."""


def chat(checkpoint: Path, *, system: str | None, sampling: Sampling, max_new_tokens: int | None) -> None:
    """Reads one message per line and streams the replies, until the input ends.

    Args:
        checkpoint: a checkpoint file, or a run directory (its latest checkpoint).
        system: system message, if any.
        sampling: sampling settings.
        max_new_tokens: maximum number of tokens per reply; None: as in training.
    """
    task = load(checkpoint).task
    if not isinstance(task, Chat):
        raise ConfigError(f"{checkpoint}: trained with task={task.name}; expected a model trained with task=chat")
    task.sampling, task.max_new_tokens = sampling, max_new_tokens or task.max_new_tokens
    opening = [] if system is None else [Message("system", system)]
    messages, is_warned, is_interactive, number = list(opening), False, sys.stdin.isatty(), 0
    if max_new_tokens is not None and max_new_tokens > task.max_length:
        raise ConfigError(
            f"--max-new-tokens {max_new_tokens}: expected at most {task.max_length}, the model's shape.max_length"
        )
    with error_prefix("--system: "):
        task.check_input([*opening, Message("user", "a")])
    if is_interactive:
        with suppress(ImportError):
            import readline  # noqa: F401 - adds history and editing keys to input()
        print(f"{task.architecture} model of {checkpoint}; {NEW_CONVERSATION} starts a new conversation, Ctrl-D exits")
    while True:
        try:
            line = input("> " if is_interactive else "")
        except EOFError:
            return print() if is_interactive else None
        number += 1
        if line.strip() == NEW_CONVERSATION:
            messages, is_warned = list(opening), False
        if not line.strip() or line.strip() == NEW_CONVERSATION:
            continue
        asked = [*messages, Message("user", line)]
        try:
            if task.is_forgetful(asked) and not is_warned:
                print("(the conversation is too long: the model only reads its end)", file=sys.stderr)
                is_warned = True
            answer = task.reply(asked, lambda part: print(part, end="", flush=True))
        except ValueError as error:  # a text that the template cannot format; another may work
            if not is_interactive:
                raise ConfigError(f"standard input, line {number}: {error}") from None
            print(f"error: {error}", file=sys.stderr)
            continue
        print(flush=True)
        messages = [*asked, Message(ANSWERING, answer)]
