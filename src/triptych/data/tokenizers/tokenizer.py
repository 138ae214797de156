"""Text to token ids and back, by the ``tokenizers`` library."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from triptych.data.facts import Facts
from triptych.data.tokenizers.sentencepiece import SentencePieceModel

PAD, BOS, EOS, SEP, UNK, MASK = range(6)
SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<sep>", "<unk>", "<mask>"]

# Byte-level tokenizers write each byte as one character: those that are visible in Latin-1 as these, the others, in
# their order, as the characters from 256 on.
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_VISIBLE = [ord(character) for character in ALPHABET if ord(character) < 256]
BYTE_OF = dict(zip(ALPHABET, _VISIBLE + sorted(set(range(256)) - set(_VISIBLE)), strict=True))


AT_ONCE = 1000
"""Texts that are encoded together."""
EACH_CHARACTER = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
"""Makes a word of each character."""


@dataclass(frozen=True, slots=True)
class SpecialTokens(Facts):
    """The ids of the tokens that are no text, and how they surround texts. The defaults are those of Triptych's own
    tokenizers; each published family has others.

    Attributes:
        bos: begins a text that is read from left to right.
        eos: ends a text that is written.
        sep: between source and target, where a decoder by itself reads both.
        start: what the decoder of the full model reads first.
        pad: fills up; in Triptych a mask hides padding, so any id serves.
        unk: stands for what the tokenizer does not know; None: it knows everything.
        mask: hides a token; None: there is none.
        begin: stand before a text that is read as a whole.
        end: stand after such a text.
        between: stand between two texts that are read as one (RoBERTa has two of them there); (): sep alone.
        target_begin: the first tokens that the decoder of the full model is to write.
        sentinels: hide a span each, in this order (Raffel et al. 2020, section 3.1.4).
        chat_template: how they surround conversations (see ``ChatTemplate``); empty: nobody says.
    """

    bos: int = BOS
    eos: int = EOS
    sep: int = SEP
    start: int = BOS
    pad: int = PAD
    unk: int | None = UNK
    mask: int | None = MASK
    begin: tuple[int, ...] = (BOS,)
    end: tuple[int, ...] = (EOS,)
    between: tuple[int, ...] = ()
    target_begin: tuple[int, ...] = ()
    sentinels: tuple[int, ...] = ()
    chat_template: str = ""

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        values = [value if isinstance(value, tuple) else (value,) for value in asdict(self).values()]
        return frozenset(i for ids in values for i in ids if isinstance(i, int))

    def single(self, ids: Sequence[int]) -> list[int]:
        """A text that is read as a whole: begin, ids, end. It has a token even if there is none of these."""
        return [*self.begin, *ids, *self.end] or [self.bos]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], int]:
        """Two texts that are read as one: begin, first, between, second, end; and the place where the second begins.
        (BERT's "[CLS] first [SEP] second [SEP]", RoBERTa's "<s> first </s></s> second </s>".)"""
        before = [*self.begin, *first, *self.separator]
        return [*before, *second, *self.end], len(before)

    @property
    def separator(self) -> tuple[int, ...]:
        """What stands between the two texts of a pair."""
        return self.between or (self.sep,)

    def opening(self, ids: Sequence[int]) -> list[int]:
        """A text that a decoder by itself goes on with: begin, ids. It has a token even if there is none of these."""
        return [*self.begin, *ids] or [self.bos]

    def written(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """What the decoder of the full model reads while it writes a text, and its answer at each place: start,
        target_begin, ids; and target_begin, ids, eos."""
        text = [*self.target_begin, *ids]
        return [self.start, *text], [*text, self.eos]


class Tokenizer:
    """A trained tokenizer. Text never turns into special tokens, but for unk.

    Args:
        backend: a tokenizer of the ``tokenizers`` library that knows the special tokens.
        sides: what cuts sources and what cuts targets into tokens, which ``backend`` then only numbers: one table, two
            models. Each is a tokenizer of the library as JSON text, or the bytes of a SentencePiece model (MarianMT's).
            None: ``backend`` does both.

    Raises:
        ValueError: ids that are not those from 0 up to the number of tokens, or a special token beyond them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: SpecialTokens | None = None,
        sides: tuple[str, str] | tuple[bytes, bytes] | None = None,
    ) -> None:
        backend.encode_special_tokens = True  # "<eos>" in a text is five characters, not the end
        self._backend, self.special, self.sides = backend, special or SpecialTokens(), sides
        largest = max(*backend.get_vocab().values(), *self.special.ids)
        if largest >= self.vocab_size:
            raise ValueError(f"tokenizer: token id {largest}, but the vocabulary has {self.vocab_size} tokens")

    @classmethod
    def from_json(cls, text: str, special: SpecialTokens | None = None) -> "Tokenizer":
        """The tokenizer that ``to_json`` wrote."""
        if text.startswith('{"version"'):
            return cls(tokenizers.Tokenizer.from_str(text), special)
        state = json.loads(text)
        sides = state["sides"] if "sides" in state else [base64.b64decode(model) for model in state["sentencepiece"]]
        return cls(tokenizers.Tokenizer.from_str(state["backend"]), special, (sides[0], sides[1]))

    def to_json(self) -> str:
        """Everything that it is, in the format of the ``tokenizers`` library; there, two models have no place and stand
        beside it."""
        text: str = self._backend.to_str()
        if self.sides is None:
            return text
        if (models := self.sentencepiece) is not None:
            return json.dumps({"sentencepiece": [base64.b64encode(m).decode() for m in models], "backend": text})
        return json.dumps({"sides": self.sides, "backend": text})

    def without_merges(self, share: float, seed: Sequence[int]) -> "Tokenizer":
        """The tokenizer that has the same tokens, but cuts texts into smaller ones.

        Args:
            share: each merge of two tokens is left out with this probability.
            seed: of the choice.

        Raises:
            ValueError: a tokenizer that merges no pairs.
        """
        generator = np.random.default_rng(seed)

        def thin(text: str) -> str:
            state = json.loads(text)
            merges = state["model"].get("merges")
            if not merges:
                raise ValueError(f"batch.merge_dropout={share}: this tokenizer has no merges; expected tokenizer=bpe")
            kept = generator.random(len(merges)) >= share
            state["model"]["merges"] = list(compress(merges, kept))
            return json.dumps(state)

        match self.sides:
            case None:
                return Tokenizer(tokenizers.Tokenizer.from_str(thin(self._backend.to_str())), self.special)
            case str() as source, str() as target:
                return Tokenizer(self._backend, self.special, (thin(source), thin(target)))
        raise ValueError(f"batch.merge_dropout={share}: SentencePiece models have no merges; expected tokenizer=bpe")

    @property
    def last_of_model(self) -> int:
        """The largest id of the model's own vocabulary, behind which are those of the tokens that were added to it."""
        return int(self._backend.get_vocab_size(with_added_tokens=False)) - 1

    def exchanged(self, one: int, other: int) -> "Tokenizer":
        """The tokenizer that cuts texts alike, with the ids of two tokens exchanged.

        Args:
            one: at most ``last_of_model``.
            other: the same.
        """
        ids = {one: other, other: one}
        state = json.loads(self._backend.to_str())
        model = state["model"]
        if isinstance(model["vocab"], list):  # Unigram's: a piece and its score at each id
            pieces = model["vocab"]
            pieces[one], pieces[other] = pieces[other], pieces[one]
            model["unk_id"] = ids.get(model["unk_id"], model["unk_id"])
        else:
            model["vocab"] = {token: ids.get(i, i) for token, i in model["vocab"].items()}
        for token in state["added_tokens"]:
            token["id"] = ids.get(token["id"], token["id"])
        state["added_tokens"].sort(key=lambda token: token["id"])
        special = {
            name: [ids.get(i, i) for i in value] if isinstance(value, list) else ids.get(value, value)
            for name, value in self.special.as_plain().items()
        }
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)), SpecialTokens.from_plain(special))

    @property
    def sentencepiece(self) -> tuple[bytes, bytes] | None:
        """The SentencePiece models of sources and targets, where that is what ``sides`` are."""
        match self.sides:
            case bytes() as source, bytes() as target:
                return source, target
        return None

    @property
    def sha256(self) -> str:
        """Equal for equal tokenizers."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        size: int = self._backend.get_vocab_size()
        return size

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that stand for no text."""
        added = self._backend.get_added_tokens_decoder()
        return self.special.ids | {i for i, token in added.items() if token.special}

    @cached_property
    def text_ids(self) -> Int[np.ndarray, " text_tokens"]:
        """The tokens that stand for text, in their order."""
        return np.setdiff1d(np.arange(self.vocab_size), list(self.special_ids))

    def encode(self, texts: Sequence[str], as_target: bool = False) -> list[list[int]]:
        """The token ids of each text, without special tokens around them.

        Args:
            as_target: whether they are targets of a translation, which ``sides`` cut in another way.
        """
        unk = self.special.unk
        if unk is not None and (table := self._characters) is not None:
            id_of = table.get
            return [[id_of(character, unk) for character in text] for text in texts]
        if self.sides is None:
            # encode_batch_fast, which finds no places, took 1.2 to 2 times as long (tokenizers 0.23). The library's
            # results take ten times the memory of the ids.
            parts = (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE))
            found = (
                encoding for part in parts for encoding in self._backend.encode_batch(part, add_special_tokens=False)
            )
            return [encoding.ids for encoding in found]
        return [ids for ids, _ in self.encode_with_places(texts, as_target)]

    @cached_property
    def _characters(self) -> dict[str, int] | None:
        """The ids of the characters, if each character of a text is a token: to look them up takes a fifth of the
        library's time. None: texts are cut in another way."""
        backend = self._backend
        is_table = (
            self.sides is None
            and isinstance(backend.model, models.WordLevel)
            and self.special.unk == backend.token_to_id(backend.model.unk_token)
            and backend.normalizer is None
            and isinstance(backend.pre_tokenizer, pre_tokenizers.Split)
            and backend.pre_tokenizer.__getstate__() == EACH_CHARACTER.__getstate__()
            and all(token.special for token in backend.get_added_tokens_decoder().values())
        )
        return {token: i for token, i in backend.get_vocab().items() if len(token) == 1} if is_table else None

    def encode_with_places(
        self, texts: Sequence[str], as_target: bool = False
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Like ``encode``, with the place of each token in its text, as (start, end): ``text[start:end]`` is what the
        token was made of. Tokens that are parts of one character all have its place; white space that is in no token
        is in no place.

        Args:
            as_target: see ``encode``.

        Returns:
            of each text, its ids and their places, in characters (code points).
        """
        if self.sides is None:
            encodings = self._backend.encode_batch(texts, add_special_tokens=False)
            return [(encoding.ids, encoding.offsets) for encoding in encodings]
        unk = self.special.unk
        assert unk is not None
        # encode_batch_fast does not say what the unknown was, which the vocabulary may have from the other model.
        encodings = self._cutters[as_target].encode_batch(texts, add_special_tokens=False)
        return [([self._ids.get(token, unk) for token in encoding.tokens], encoding.offsets) for encoding in encodings]

    @cached_property
    def _cutters(self) -> list[tokenizers.Tokenizer]:
        """What cuts sources and targets; MarianMT's ">>fr<<" asks for a language and stays in one piece."""
        cutters = []
        for side in self.sides or ():
            if isinstance(side, str):
                cutter = tokenizers.Tokenizer.from_str(side)
            else:
                cutter = SentencePieceModel.parse(side).backend()
                languages = [name for name in self._ids if re.match(">>.*<<$", name)]
                cutter.add_tokens([AddedToken(name, normalized=False) for name in languages])
            cutter.encode_special_tokens = True
            cutters.append(cutter)
        return cutters

    @cached_property
    def _ids(self) -> dict[str, int]:
        """The numbers of what may stand in a text."""
        return {token: i for token, i in self._backend.get_vocab().items() if i not in self.special_ids}

    def encode_marked(self, texts: Sequence[str], marks: Sequence[int]) -> list[list[int]]:
        """Like ``encode``, but these special tokens are understood where a text names them: "a <mask> c".

        Args:
            texts: with names of tokens in them.
            marks: the ids of the tokens whose names are understood.
        """
        added = self._backend.get_added_tokens_decoder()
        tokens = {added[i].content: i for i in marks}  # of two that begin alike, the longer one is meant
        pattern = "|".join(
            (r"\s*" if added[i].lstrip else "") + f"({re.escape(name)})" + (r"\s*" if added[i].rstrip else "")
            for name, i in sorted(tokens.items(), key=lambda item: -len(item[0]))
        )
        parts = [[part for part in re.split(pattern, text) if part is not None] for text in texts]
        pieces = iter(self.encode([part for of_text in parts for part in of_text if part not in tokens]))
        return [
            [i for part in of_text for i in ([tokens[part]] if part in tokens else next(pieces))] for of_text in parts
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; special tokens are left out."""
        text: str = self._backend.decode([i for i in ids if i not in self.special_ids], skip_special_tokens=False)
        return text

    def names(self, ids: Sequence[int]) -> list[str]:
        """Each token by itself, for people to read: its text, or the name of a special token. The bytes of a part of a
        character are written as <0xE6>."""
        return [self._name(i) for i in ids]

    def _name(self, i: int) -> str:
        if i in self.special_ids:
            return str(self._backend.id_to_token(i))
        content = self._contents[1][i]
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in content)

    def begins_word(self, ids: Sequence[int]) -> Bool[np.ndarray, " length"]:
        """Whether each token of a text begins a word. The white space before a word is a part of it; so the first token
        does, and one that begins with white space, or follows one that ends in it, unless that is nothing else.
        WordPiece marks what goes on with a word: the others begin one.

        Args:
            ids: the text, without special tokens around it.
        """
        starts, ends, is_blank = self._word_limits[:, list(ids)]
        return np.append(True, (starts[1:] | ends[:-1]) & ~is_blank[:-1])[: len(ids)]

    @cached_property
    def _word_limits(self) -> Bool[np.ndarray, "3 vocab"]:
        """Of each token: whether white space comes first, comes last, and is all that there is."""
        if self.reads_words:
            starts = np.ones(self.vocab_size, dtype=bool)
            starts[list(self._continuations)] = False
            return np.stack([starts, np.zeros_like(starts), np.zeros_like(starts)])
        return np.array([(t[:1].isspace(), t[-1:].isspace(), t.isspace()) for t in self._texts[1]]).T

    @cached_property
    def reads_words(self) -> bool:
        """Whether white space only separates words and is in no token (``Words``, ``WordPiece``)."""
        return any(part["type"] == "WordPiece" for part in self._decoders)

    @cached_property
    def _continuations(self) -> frozenset[int]:
        """The tokens that go on with a word; only tokenizers that read words have some."""
        prefixes = tuple(part["prefix"] for part in self._decoders if part["type"] == "WordPiece")
        return frozenset(i for token, i in self._backend.get_vocab().items() if token.startswith(prefixes))

    def num_bytes(self) -> Int[np.ndarray, "2 vocab"]:
        """How many UTF-8 bytes of text each token stands for; special tokens stand for none. (SentencePiece puts a
        blank before a text, and that counts.)

        Where white space is in no token (``reads_words``), a word is counted as ``decode`` writes it: with one blank
        before it, unless it begins a text or a line.

        Returns:
            row 0: after a token that does not end in white space; row 1: after one that does, or at the start of a text
            (see ``ends_in_space``).
        """
        return np.array([[len(content) for content in row] for row in self._contents])

    def num_characters(self) -> Int[np.ndarray, "2 vocab"]:
        """How many characters (code points) of text begin in each token: one that is cut into several tokens counts
        where its first byte is. unk stands for one character, other special tokens stand for none.

        Returns:
            see ``num_bytes``.
        """
        counts = np.array([[sum(byte & 0xC0 != 0x80 for byte in text) for text in row] for row in self._contents])
        if self.special.unk is not None:
            counts[:, self.special.unk] = 1
        return counts

    def num_words(self) -> Int[np.ndarray, "2 vocab"]:
        """How many words begin in each token.

        Words are separated by white space (``str.split``), and each end of a line is a word too, "\\n" in a text and
        eos after one: ``len(text.split()) + text.count("\\n")``. unk is part of a word, or one where words are tokens,
        and so is a blank of several bytes, such as U+00A0, where a byte-level tokenizer cuts it apart.

        Returns:
            see ``num_bytes``. In row 0, what a token begins with goes on with a word.
        """
        goes_on, after_space = self._texts
        return np.array(
            [
                [len(text.split()) + text.count("\n") - (text[:1].strip() != "") for text in goes_on],
                [len(text.split()) + text.count("\n") for text in after_space],
            ]
        )

    def ends_in_space(self) -> Bool[np.ndarray, " vocab"]:
        """Whether what follows each token begins a word: it ends in white space, or is bos or eos."""
        return np.array([text[-1:].isspace() for text in self._texts[1]])

    @cached_property
    def _contents(self) -> tuple[list[bytes], list[bytes]]:
        """The bytes of text that each token stands for, by what the decoder makes of it, after a token that does not
        end in white space and after one that does."""
        added, parts = self._backend.get_added_tokens_decoder(), self._decoders
        contents = [b""] * self.vocab_size
        for token, i in self._backend.get_vocab().items():
            if i not in self.special_ids:
                contents[i] = token.encode() if i in added else _content(token, parts)
        return [
            self._blank(i) + content if content.strip() else content for i, content in enumerate(contents)
        ], contents

    def _blank(self, i: int) -> bytes:
        """What ``decode`` puts between a word and this token."""
        return b" " if self.reads_words and i not in self._continuations else b""

    @cached_property
    def _decoders(self) -> list[dict[str, Any]]:
        """The steps from tokens to text, as the library writes them."""
        decoder = json.loads(self._backend.to_str())["decoder"] or {"type": None}
        return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]

    @cached_property
    def _texts(self) -> tuple[list[str], list[str]]:
        """What each token is where words are counted (see ``_contents``): bos white space, eos the end of a line, unk
        and parts of characters something else than white space."""
        goes_on, after_space = ([content.decode(errors="replace") for content in row] for row in self._contents)
        for texts in (goes_on, after_space):
            for i in (self.special.bos, self.special.start, *self.special.begin):
                texts[i] = " "
            texts[self.special.eos] = "\n"
        if (unk := self.special.unk) is not None:
            goes_on[unk], after_space[unk] = self._blank(unk).decode() + "\ufffd", "\ufffd"
        return goes_on, after_space


def _content(token: str, parts: Sequence[Mapping[str, Any]]) -> bytes:
    """The bytes of text that a token of the model stands for.

    Args:
        token: as the vocabulary has it.
        parts: steps of the decoder.
    """
    for part in parts:
        match part:
            case {"type": "ByteLevel"}:
                return bytes(BYTE_OF[character] for character in token)
            case {"type": "ByteFallback"} if byte := re.fullmatch("<0x([0-9A-F]{2})>", token):
                return bytes.fromhex(byte[1])
            case {"type": "Metaspace", "replacement": blank}:
                token = token.replace(blank, " ")
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                token = token.replace(old, new)
            case {"type": "WordPiece", "prefix": continues}:
                token = token.removeprefix(continues)
    return token.encode()
