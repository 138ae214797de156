"""Conversations rendered as text by Jinja chat templates, as in Hugging Face tokenizers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from jinja2 import Template, TemplateError

from triptych.data.example import ANSWERING, Message
from triptych.data.template_sandbox import TemplateSandbox, watched

TURNS = """\
{% for message in messages %}{{ message.content }}\
{{ eos_token if message.role == "assistant" else sep_token }}{% endfor %}"""
"""The default chat template. The model's messages end with eos, all others with sep. Encoders add their own begin and
end tokens, as for any text."""
TURNS_BEHIND_BOS = "{{ bos_token }}" + TURNS
"""The default for decoder-only models. For a single turn it equals the usual format of a source and its target."""


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template with the variables that ``apply_chat_template`` of transformers passes: ``messages``,
    ``add_generation_prompt``, ``tools`` and ``documents`` (None), and the special tokens by name, such as
    ``bos_token``. Templates may be untrusted: they have access to nothing else (see ``TemplateSandbox``).

    Attributes:
        source: the template.
        special: special tokens by variable name, as strings.
        tokens: all special tokens as strings. The template may contain them literally.
    """

    source: str
    special: Mapping[str, str]
    tokens: Collection[str] = ()

    def render(self, messages: Sequence[Message], *, asks: bool = False) -> str:
        """Renders the conversation as text.

        Args:
            messages: the conversation.
            asks: whether to append the generation prompt.

        Raises:
            ValueError: the template is invalid or fails on these messages.
        """
        try:
            plain = [{"role": message.role, "content": message.content} for message in messages]
            with watched():
                return self._template.render(
                    messages=plain, tools=None, documents=None, add_generation_prompt=asks, **self.special
                )
        except RecursionError:
            raise ValueError("the chat template fails: it is nested too deeply, or calls itself") from None
        except MemoryError:
            raise ValueError("the chat template fails: it needs too much memory") from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ValueError(f"the chat template fails: {str(error).partition(chr(10))[0]}") from None

    def answers(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """Renders the conversation and locates the model's messages.

        Returns:
            The text, and the (start, end) characters of each model message, from the end of the generation prompt to
            the end of the turn.

        Raises:
            ValueError: the template fails, skips a model message, or renders the start of a conversation differently
                from the whole.
        """
        whole, found = self.render(messages), list[tuple[int, int]]()
        for i, message in enumerate(messages):
            if message.role != ANSWERING:
                continue
            before, behind = self.render(messages[:i], asks=True), self.render(messages[: i + 1])
            if not (behind.startswith(before) and whole.startswith(behind)):
                raise ValueError(
                    f"the chat template renders message {i + 1} differently if others follow it, so the text that the "
                    "model must generate is unknown"
                )
            if len(before) == len(behind):
                raise ValueError(f"the chat template does not render message {i + 1}")
            found.append((len(before), self._end_of_turn(whole, len(before), len(behind))))
        return whole, found

    def _end_of_turn(self, text: str, start: int, stop: int) -> int:
        """Returns the position after the last special token of a model message. The model does not generate the text
        after it."""
        tokens = {*self.special.values(), *self.tokens}
        ends = [text.rfind(token, start, stop) + len(token) for token in tokens if token]
        return max((end for end in ends if end > start), default=stop)

    def __deepcopy__(self, memo: object) -> Self:
        """Returns the object itself. It is immutable, and a moving average copies tasks, but Jinja templates cannot be
        copied."""
        return self

    @cached_property
    def _template(self) -> Template:
        return TemplateSandbox().from_string(self.source)
