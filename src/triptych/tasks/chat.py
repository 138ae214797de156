"""The task of generating the next assistant message of a conversation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from triptych.config import error_prefix
from triptych.data import IGNORE_INDEX, ChatTemplate, EncodedExample, Example, Message
from triptych.data.chat_template import TURNS, TURNS_BEHIND_BOS
from triptych.data.example import ANSWERING, check_turns
from triptych.models.generation import BeamSearch, with_streamer
from triptych.tasks.predictions import Prediction
from triptych.tasks.predictor import Predictor
from triptych.tasks.task import TaskContext
from triptych.tasks.text_to_text import TextToText

Conversation = Sequence[Message]
PROBE = (Message("user", "a"), Message(ANSWERING, "b"))


@dataclass(kw_only=True, eq=False, repr=False)
class Chat(TextToText):
    """Generates the next assistant message of a conversation, which a template turns into text (see ``ChatTemplate``).

    A decoder-only model is trained on whole conversations, each read once. Its targets are all assistant messages and
    the tokens that end them. The prefix decoder and the encoder-decoder model are trained on one assistant message at a
    time, given all messages before it. Every architecture is evaluated on one message at a time, with the metrics of
    ``TextToText``.

    If a conversation is too long, its beginning is dropped.

    Args:
        chat_template: Jinja template; None: that of the tokenizer, or else a plain one, in which eos ends the assistant
            messages and sep the others. It is part of an exported folder.

    Raises:
        ValueError: if the template fails, or does not end an assistant message with a special token.
    """

    name = "chat"
    title = "Chat"
    columns = ("messages",)
    input_title = "Message"
    truncates_left = True
    has_global_prompt = False
    """False, since given and generated messages alternate; see ``GenerativeTask``."""

    chat_template: str | None

    def __post_init__(self, context: TaskContext) -> None:
        super().__post_init__(context)
        tokenizer, special = self.tokenizer, self.tokenizer.special
        plain = TURNS if self.architecture == "full" else TURNS_BEHIND_BOS
        source = self.chat_template or special.chat_template or plain
        tokenizer.special = special = replace(special, chat_template=source)
        roles = ("bos", "eos", "sep", "unk", "pad", "mask")
        ids = {f"{role}_token": i for role in roles if (i := getattr(special, role)) is not None}
        self._marks = sorted(tokenizer.special_ids)
        self._names = tokenizer.ids_to_tokens(self._marks)
        names = {variable: tokenizer.ids_to_tokens([i])[0] for variable, i in ids.items()}
        self.compiled_template = ChatTemplate(source, names, self._names)
        with error_prefix("task.chat_template: "):
            self._end = self._in_pieces([PROBE])[0][1][-1]
            if self._end not in tokenizer.special_ids:
                text = self.compiled_template.answers(PROBE)[0]
                raise ValueError(f"no special token of the tokenizer ends an answer, which is {text!r}")

    @property
    def end(self) -> int:
        """The token that ends an answer: that of the template, or eos for the encoder-decoder."""
        return self.tokenizer.special.eos if self.architecture == "full" else self._end

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes the last answer of each conversation, given all messages before it.

        Raises:
            ValueError: if an example has no messages, or the template cannot format it.
        """
        pairs = zip(self._pieces(examples), examples, strict=True)
        return [self._of_answer(parts, len(parts) // 2, example) for parts, example in pairs]

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes whole conversations for a decoder-only model, and each answer separately for the others."""
        pairs = zip(self._pieces(examples), examples, strict=True)
        if self.architecture == "decoder_only":
            return [self._of_all(parts, example) for parts, example in pairs]
        return [
            self._of_answer(parts, number, example)
            for parts, example in pairs
            for number in range(1, len(parts) // 2 + 1)
        ]

    def _pieces(self, examples: Sequence[Example]) -> list[list[list[int]]]:
        for example in examples:
            if example.messages is None:
                raise ValueError(f"{example.where}: there are no messages")
        talks = [example.messages or () for example in examples]
        return self._in_pieces(talks, [example.where for example in examples])

    def _in_pieces(self, talks: Sequence[Conversation], where: Sequence[str] | None = None) -> list[list[list[int]]]:
        """Returns the tokens of each conversation in alternating pieces: prompt, answer with its end token, and so on.

        Each piece is tokenized separately, like a prompt at inference.

        Args:
            where: origin of each conversation, for messages; None: unknown.
        """
        texts = list[list[str]]()
        for i, messages in enumerate(talks):
            with error_prefix("" if where is None else f"{where[i]}: "):
                self._check_names(messages)
                text, places = self.compiled_template.answers(messages)
            limits = [0, *chain(*places)]
            texts.append([text[start:stop] for start, stop in pairwise(limits)])
        pieces = iter(self.tokenizer.encode_marked(list(chain(*texts)), self._marks))
        return [[next(pieces) for _ in parts] for parts in texts]

    def _check_names(self, messages: Conversation) -> None:
        """Raises an error if a message contains the name of a special token."""
        for number, message in enumerate(messages, 1):
            if named := [name for name in self._names if name in message.content]:
                raise ValueError(f"message {number} has {named[0]!r} in it, which is the name of a special token")

    def _of_answer(self, pieces: Sequence[Sequence[int]], number: int, example: Example) -> EncodedExample:
        """Encodes the answer of this number, given all messages before it."""
        before = [*chain(*pieces[: 2 * number - 1])]
        return self.lay_out(self.build_prompt(before), pieces[2 * number - 1][:-1], example)

    def _of_all(self, pieces: Sequence[Sequence[int]], example: Example) -> EncodedExample:
        """Encodes a conversation as one text whose targets are the answers."""
        ids = np.array([*chain(*pieces)])
        is_answer = np.repeat([i % 2 == 1 for i in range(len(pieces))], [len(piece) for piece in pieces])
        labels = np.where(is_answer, ids, IGNORE_INDEX)[1:]
        return EncodedExample(ids[:-1], labels, prefix=len(pieces[0]) - 1, example=example)

    def build_prompt(self, ids: Sequence[int]) -> list[int]:
        """Returns the prompt as formatted by the template; for an encoder also with its begin and end tokens."""
        return self.tokenizer.special.single(ids) if self.architecture == "full" else [*ids]

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Drops the beginning of a conversation that is too long; see ``Task``."""
        if self.architecture != "decoder_only":
            return self.truncate_pair(item)
        tokens, labels = item.inputs[-self.max_length :], item.labels[-self.max_length :]
        return replace(item, inputs=tokens, labels=labels, prefix=max(0, item.prefix - len(item.inputs) + len(tokens)))

    def truncate_source(self, source: Sequence[int]) -> list[int]:
        """Returns the end of the prompt that fits; the begin tokens of an encoder's text are kept."""
        if len(source) <= self.prompt_length:
            return [*source]
        begin = self.tokenizer.special.begin if self.architecture == "full" else ()
        return [*begin, *source[len(source) - self.prompt_length + len(begin) :]]

    def is_forgetful(self, messages: Conversation) -> bool:
        """Returns whether the conversation is too long to be read as a whole."""
        return len(self.build_prompt(self._asked([messages])[0])) > self.prompt_length

    def _fitting(self, source: list[int]) -> list[int]:
        return self.truncate_source(source)

    def model_input(self, example: Example) -> Conversation:  # type: ignore[override]
        """Returns all messages before the last answer."""
        return (example.messages or ())[:-1]

    def size_of(self, given: str | Conversation) -> int:
        """Returns the number of characters of all messages."""
        return sum(len(message.content) for message in _messages(given))

    def predict_batch(self, texts: Sequence[str | Conversation]) -> Sequence[Prediction]:
        """Returns the next answer of each conversation.

        Args:
            texts: a first user message, or all messages so far, the last of which is the user's.

        Raises:
            ValueError: if a conversation is invalid, or the template cannot format it.
        """
        return self.answer([self._fitting(self.build_prompt(ids)) for ids in self._asked(texts)])

    def _asked(self, texts: Sequence[str | Conversation]) -> list[list[int]]:
        talks = [_messages(given) for given in texts]
        for messages in talks:
            self.check_input(messages)
        pieces = self._in_pieces([(*messages, Message(ANSWERING, "b")) for messages in talks])
        return [[*chain(*parts[:-1])] for parts in pieces]

    def check_input(self, given: str | Conversation) -> None:
        """Checks a conversation; see ``Task``.

        Raises:
            ValueError: if it is no conversation, ends with an answer, or contains the name of a special token.
        """
        messages = _messages(given)
        check_turns(messages)
        if messages[-1].role == ANSWERING:
            raise ValueError("the last message is of 'assistant'; expected one of 'user'")
        self._check_names(messages)

    def reply(self, messages: Conversation, say: Callable[[str], None]) -> str:
        """Streams the next answer, decoded greedily or according to ``sampling``.

        Args:
            messages: all messages so far, the last of which is the user's.
            say: called with each new part of the answer.

        Returns:
            The whole answer.
        """
        ids, said = list[int](), ""

        def say_rest(text: str) -> None:
            nonlocal said
            if text.startswith(said) and text != said:
                say(text[len(said) :])
                said = text

        def follow(tokens: list[int]) -> None:
            ids.extend(tokens)
            # the last tokens may be an incomplete character
            say_rest(self.tokenizer.decode(ids).rstrip("\ufffd"))

        before = self.sampling, self.search, self.ranks
        self.sampling, self.search, self.ranks = with_streamer(self.sampling, follow), BeamSearch(), False
        try:
            text = str(Predictor(self).predict([messages])[0])
        finally:
            self.sampling, self.search, self.ranks = before
        say_rest(text)
        return text


def _messages(given: str | Conversation) -> Conversation:
    return (Message("user", given),) if isinstance(given, str) else given
