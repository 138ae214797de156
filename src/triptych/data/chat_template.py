"""Conversations as texts, by the templates that Hugging Face's tokenizers have."""

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
"""The template of tokenizers that bring none: what a model says ends with eos, all else with sep. (An encoder gets its
begin and its end as with any text.)"""
TURNS_BEHIND_BOS = "{{ bos_token }}" + TURNS
"""The same for a decoder by itself. Of a single turn it makes what that reads of a source and its target."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template in the language of Jinja, with the variables that ``apply_chat_template`` of transformers passes:
    ``messages``, ``add_generation_prompt``, ``tools`` and ``documents`` (None), and the names of special tokens, as
    ``bos_token``. It can reach nothing else (``TemplateSandbox``): it may come from a stranger.

    Attributes:
        source: the template.
        special: by the names of variables, how special tokens are written.
        tokens: how all special tokens are written, which may stand in the template as they are.
    """

    source: str
    special: Mapping[str, str]
    tokens: Collection[str] = ()

    def render(self, messages: Sequence[Message], *, asks: bool = False) -> str:
        """The conversation as one text.

        Args:
            messages: in their order.
            asks: whether the text ends with what stands before an answer of the model.

        Raises:
            ValueError: the template refuses the messages, or is none.
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
        """The conversation as one text, and where in it the model's answers are, from first to last character: what
        follows the rest of the text that asks for it, up to the end of the turn.

        Raises:
            ValueError: the template fails, leaves an answer out, or writes the beginning of a conversation in another
                way than the whole.
        """
        whole, found = self.render(messages), list[tuple[int, int]]()
        for i, message in enumerate(messages):
            if message.role != ANSWERING:
                continue
            before, behind = self.render(messages[:i], asks=True), self.render(messages[: i + 1])
            if not (behind.startswith(before) and whole.startswith(behind)):
                raise ValueError(
                    f"the chat template writes message {i + 1} in another way where others follow it: what of the text "
                    "the model is to write is not known"
                )
            if len(before) == len(behind):
                raise ValueError(f"the chat template does not write message {i + 1}")
            found.append((len(before), self._end_of_turn(whole, len(before), len(behind))))
        return whole, found

    def _end_of_turn(self, text: str, start: int, stop: int) -> int:
        """Behind the last special token of an answer; what stands behind that, nobody has to write."""
        tokens = {*self.special.values(), *self.tokens}
        ends = [text.rfind(token, start, stop) + len(token) for token in tokens if token]
        return max((end for end in ends if end > start), default=stop)

    def __deepcopy__(self, memo: object) -> Self:
        """Itself, which nothing changes: Jinja's templates cannot be copied, as a moving average copies a task."""
        return self

    @cached_property
    def _template(self) -> Template:
        return TemplateSandbox().from_string(self.source)
