"""An answer in a conversation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from triptych.config import refusing
from triptych.data import IGNORE, ChatTemplate, Encoded, Example, Message
from triptych.data.chat_template import TURNS, TURNS_BEHIND_BOS
from triptych.data.example import ANSWERING, check_turns
from triptych.models.generation import BeamSearch, followed
from triptych.tasks.predictions import Prediction
from triptych.tasks.predictor import Predictor
from triptych.tasks.task import TaskContext
from triptych.tasks.text_to_text import TextToText

Conversation = Sequence[Message]
PROBE = (Message("user", "a"), Message(ANSWERING, "b"))


@dataclass(kw_only=True, eq=False, repr=False)
class Chat(TextToText):
    """Writes the next answer of a conversation, which a template turns into one text (see ``ChatTemplate``).

    A decoder by itself is trained on whole conversations, each read once, and scored on all answers of the model and
    what ends them; the prefix decoder, and the decoder of the full model, on one answer at a time, after all that was
    said before. All are evaluated on one answer at a time: the metrics are those of ``TextToText``.

    What of a conversation is too long is forgotten from its beginning.

    Args:
        template: in the language of Jinja; None: the one that the tokenizer brings, or else a plain one, in which eos
            ends what the model says, and sep all else. An exported folder has it too.

    Raises:
        ValueError: a template that fails, or does not end an answer with a special token.
    """

    name = "chat"
    title = "Chat"
    columns = ("messages",)
    input_title = "Message"

    template: str | None

    def __post_init__(self, context: TaskContext) -> None:
        super().__post_init__(context)
        tokenizer, special = self.tokenizer, self.tokenizer.special
        plain = TURNS if self.architecture == "full" else TURNS_BEHIND_BOS
        source = self.template or special.chat_template or plain
        tokenizer.special = special = replace(special, chat_template=source)
        roles = ("bos", "eos", "sep", "unk", "pad", "mask")
        ids = {f"{role}_token": i for role in roles if (i := getattr(special, role)) is not None}
        self._marks = sorted(tokenizer.special_ids)
        self._names = tokenizer.names(self._marks)
        names = {variable: tokenizer.names([i])[0] for variable, i in ids.items()}
        self.chat_template = ChatTemplate(source, names, self._names)
        with refusing("task.template: "):
            self._end = self._in_pieces([PROBE])[0][1][-1]
            if self._end not in tokenizer.special_ids:
                text = self.chat_template.answers(PROBE)[0]
                raise ValueError(f"no special token of the tokenizer ends an answer, which is {text!r}")

    @property
    def end(self) -> int:
        """What the template puts behind an answer; the full model's decoder reads no template."""
        return self.tokenizer.special.eos if self.architecture == "full" else self._end

    @property
    def has_global_prompt(self) -> bool:
        """See ``GenerativeTask``: what is given and what is written take turns."""
        return False

    @property
    def forgets_beginnings(self) -> bool:
        return True

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """All that was said, and the last answer, laid out for the architecture.

        Raises:
            ValueError: an example without messages, or one that the template cannot write.
        """
        pieces = self._pieces(examples)
        return [
            self._of_answer(parts, len(parts) // 2, example)
            for parts, example in zip(pieces, examples, strict=True)
        ]  # fmt: skip

    def encode_training(self, examples: Sequence[Example]) -> list[Encoded]:
        """Whole conversations, or each answer."""
        pieces = self._pieces(examples)
        if self.architecture == "decoder_only":
            return [self._of_all(parts, example) for parts, example in zip(pieces, examples, strict=True)]
        return [
            self._of_answer(parts, number, example)
            for parts, example in zip(pieces, examples, strict=True)
            for number in range(1, len(parts) // 2 + 1)
        ]

    def _pieces(self, examples: Sequence[Example]) -> list[list[list[int]]]:
        for example in examples:
            if example.messages is None:
                raise ValueError(f"{example.where}: there are no messages")
        talks = [example.messages or () for example in examples]
        return self._in_pieces(talks, [example.where for example in examples])

    def _in_pieces(self, talks: Sequence[Conversation], where: Sequence[str] | None = None) -> list[list[list[int]]]:
        """The tokens of each conversation in pieces: what stands before an answer, the answer with its end, and so on.
        Each piece is cut into tokens by itself, as what is asked will be.

        Args:
            where: each comes from; None: nobody knows.
        """
        texts = list[list[str]]()
        for i, messages in enumerate(talks):
            with refusing("" if where is None else f"{where[i]}: "):
                self._check_names(messages)
                text, places = self.chat_template.answers(messages)
            limits = [0, *chain(*places)]
            texts.append([text[start:stop] for start, stop in pairwise(limits)])
        pieces = iter(self.tokenizer.encode_marked(list(chain(*texts)), self._marks))
        return [[next(pieces) for _ in parts] for parts in texts]

    def _check_names(self, messages: Conversation) -> None:
        """Refuses what would be read as something else."""
        for number, message in enumerate(messages, 1):
            if named := [name for name in self._names if name in message.content]:
                raise ValueError(f"message {number} has {named[0]!r} in it, which is the name of a special token")

    def _of_answer(self, pieces: Sequence[Sequence[int]], number: int, example: Example) -> Encoded:
        """The answer of this number, after all that was said before."""
        before = [*chain(*pieces[: 2 * number - 1])]
        return self.lay_out(self.asking(before), pieces[2 * number - 1][:-1], example)

    def _of_all(self, pieces: Sequence[Sequence[int]], example: Example) -> Encoded:
        """One text, scored on the answers."""
        ids = np.array([*chain(*pieces)])
        is_answer = np.repeat([i % 2 == 1 for i in range(len(pieces))], [len(piece) for piece in pieces])
        labels = np.where(is_answer, ids, IGNORE)[1:]
        return Encoded(ids[:-1], labels, prefix=len(pieces[0]) - 1, example=example)

    def asking(self, ids: Sequence[int]) -> list[int]:
        """All that was said as the network reads it: a decoder by itself, as the template has it; an encoder, with what
        surrounds any text."""
        return self.tokenizer.special.single(ids) if self.architecture == "full" else [*ids]

    def truncate(self, item: Encoded) -> Encoded:
        """See ``Task``; the beginning of a conversation is forgotten."""
        if self.architecture != "decoder_only":
            return self.truncate_pair(item)
        tokens, labels = item.tokens[-self.max_length :], item.labels[-self.max_length :]
        return replace(item, tokens=tokens, labels=labels, prefix=max(0, item.prefix - len(item.tokens) + len(tokens)))

    def truncate_source(self, source: Sequence[int]) -> list[int]:
        """The end of what was said; what begins an encoder's text stays its beginning."""
        if len(source) <= self.prompt_length:
            return [*source]
        begin = self.tokenizer.special.begin if self.architecture == "full" else ()
        return [*begin, *source[len(source) - self.prompt_length + len(begin) :]]

    def is_forgetful(self, messages: Conversation) -> bool:
        """Whether the conversation is too long for all of it to be read."""
        return len(self.asking(self._asked([messages])[0])) > self.prompt_length

    def _fitting(self, source: list[int]) -> list[int]:
        return self.truncate_source(source)

    def asked(self, example: Example) -> Conversation:  # type: ignore[override]
        """All that was said before the answer."""
        return (example.messages or ())[:-1]

    def size_of(self, given: str | Conversation) -> int:
        """The characters of all messages."""
        return sum(len(message.content) for message in _messages(given))

    def predict_batch(self, texts: Sequence[str | Conversation]) -> Sequence[Prediction]:
        """The next answer of each conversation.

        Args:
            texts: what a user says first, or all messages so far, of which the user's is the last.

        Raises:
            ValueError: no such conversation, or one that the template cannot write.
        """
        return self.answer([self._fitting(self.asking(ids)) for ids in self._asked(texts)])

    def _asked(self, texts: Sequence[str | Conversation]) -> list[list[int]]:
        talks = [_messages(given) for given in texts]
        for messages in talks:
            self.check_asked(messages)
        pieces = self._in_pieces([(*messages, Message(ANSWERING, "b")) for messages in talks])
        return [[*chain(*parts[:-1])] for parts in pieces]

    def check_asked(self, given: str | Conversation) -> None:
        """See ``Task``.

        Raises:
            ValueError: no conversation, an answer at its end, or the name of a special token in it.
        """
        messages = _messages(given)
        check_turns(messages)
        if messages[-1].role == ANSWERING:
            raise ValueError("the last message is of 'assistant'; expected one of 'user'")
        self._check_names(messages)

    def reply(self, messages: Conversation, say: Callable[[str], None]) -> str:
        """The next answer, told as it is written: greedily, or as ``sampling`` says.

        Args:
            messages: so far, of which the user's is the last.
            say: is given each new part of the answer.

        Returns:
            the whole answer.
        """
        ids, said = list[int](), ""

        def follow(tokens: list[int]) -> None:
            nonlocal said
            ids.extend(tokens)
            # a character may be written in parts, the last of which are not there yet
            text = self.tokenizer.decode(ids).rstrip("\ufffd")
            if text.startswith(said) and text != said:
                say(text[len(said) :])
                said = text

        before = self.sampling, self.search, self.ranks
        self.sampling, self.search, self.ranks = followed(self.sampling, follow), BeamSearch(), False
        try:
            answer: Any = Predictor(self).predict([messages])[0]
        finally:
            self.sampling, self.search, self.ranks = before
        text = str(answer)
        if text != said and text.startswith(said):
            say(text[len(said) :])
        return text


def _messages(given: str | Conversation) -> Conversation:
    return (Message("user", given),) if isinstance(given, str) else given
