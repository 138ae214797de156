"""Text to token ids and back, based on the ``tokenizers`` library."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, compress
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from triptych.data.plain_dataclass import PlainDataclass
from triptych.data.tokenizers.sentencepiece import SentencePieceModel

PAD, BOS, EOS, SEP, UNK, MASK = range(6)
SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<sep>", "<unk>", "<mask>"]

# Byte-level tokenizers represent each byte by a character: printable Latin-1 bytes by themselves, and the others, in
# order, by the characters from 256 on.
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_VISIBLE = [ord(character) for character in ALPHABET if ord(character) < 256]
BYTE_OF = dict(zip(ALPHABET, _VISIBLE + sorted(set(range(256)) - set(_VISIBLE)), strict=True))


AT_ONCE = 1000
"""Number of texts that are encoded together."""
EACH_BYTE = pre_tokenizers.ByteLevel(add_prefix_space=False)
"""Represents each byte of a text by a character, in words as GPT-2 splits them."""
EACH_CHARACTER = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
"""Splits a text into characters."""
SPACE = r"\s\x1c-\x1f"
"""Python's ``\\s``, in the regular expressions of the library."""
EACH_WORD = pre_tokenizers.Split(Regex(rf"\n|[^{SPACE}]+"), behavior="removed", invert=True)
"""Splits a text into words and line ends, and omits other whitespace."""


@dataclass(frozen=True, slots=True)
class SpecialTokens(PlainDataclass):
    """The ids of special tokens and how they surround texts. The defaults are those of Triptych's tokenizers;
    pretrained families have others.

    Attributes:
        bos: starts a text that is read from left to right.
        eos: ends a generated text.
        sep: separates source and target in decoder-only models.
        start: first input token of the decoder of the full model.
        pad: padding. Since a mask hides padding, any id works.
        unk: unknown text; None: every text can be encoded.
        mask: mask token; None: no mask token.
        begin: tokens before a text that is encoded as a whole.
        end: tokens after such a text.
        between: tokens between the two texts of a pair (RoBERTa has two); (): only sep.
        target_begin: first output tokens of the decoder of the full model.
        sentinels: tokens that each replace a span, in this order (Raffel et al. 2020, section 3.1.4).
        chat_template: format of conversations (see ``ChatTemplate``); empty: not defined.
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
        """All ids of special tokens."""
        values = [value if isinstance(value, tuple) else (value,) for value in asdict(self).values()]
        return frozenset(i for ids in values for i in ids if isinstance(i, int))

    def single(self, ids: Sequence[int]) -> list[int]:
        """Adds begin and end to a text that is encoded as a whole. The result is never empty: it has at least bos."""
        return [*self.begin, *ids, *self.end] or [self.bos]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], int]:
        """Joins two texts as begin, first, between, second, end; also returns the start of the second. BERT's format is
        "[CLS] first [SEP] second [SEP]", and RoBERTa's is "<s> first </s></s> second </s>"."""
        before = [*self.begin, *first, *self.separator]
        return [*before, *second, *self.end], len(before)

    @property
    def separator(self) -> tuple[int, ...]:
        """Tokens between the two texts of a pair."""
        return self.between or (self.sep,)

    def opening(self, ids: Sequence[int]) -> list[int]:
        """Adds begin to a text that a decoder-only model continues. The result is never empty: it has at least bos."""
        return [*self.begin, *ids] or [self.bos]

    def written(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the inputs and labels of a text for the decoder of the full model: start, target_begin, ids; and
        target_begin, ids, eos."""
        text = [*self.target_begin, *ids]
        return [self.start, *text], [*text, self.eos]


@dataclass(frozen=True, slots=True)
class TokenizedWords:
    """A text as tokens and as words.

    Attributes:
        ids: the tokens.
        word_of: index of the word of each token.
        words: the words, without whitespace around them.
    """

    ids: list[int]
    word_of: list[int]
    words: list[str]


class Tokenizer:
    """A trained tokenizer. It never encodes text as special tokens, except unk.

    Args:
        backend: tokenizer of the ``tokenizers`` library, with the special tokens.
        special: special tokens; None: those of Triptych.
        sides: separate models for sources and targets, whose tokens ``backend`` only maps to ids. Both are JSON texts
            of the library, or the bytes of SentencePiece models (MarianMT). None: ``backend`` tokenizes both.

    Raises:
        ValueError: an id is not below the number of tokens.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: SpecialTokens | None = None,
        sides: tuple[str, str] | tuple[bytes, bytes] | None = None,
    ) -> None:
        backend.encode_special_tokens = True  # "<eos>" in a text is five characters, not eos
        self._backend, self.special, self.sides = backend, special or SpecialTokens(), sides
        largest = max(*backend.get_vocab().values(), *self.special.ids)
        if largest >= self.vocab_size:
            raise ValueError(f"tokenizer: token id {largest}, but the vocabulary has {self.vocab_size} tokens")

    @classmethod
    def from_json(cls, text: str, special: SpecialTokens | None = None) -> "Tokenizer":
        """Inverse of ``to_json``."""
        if text.startswith('{"version"'):
            return cls(tokenizers.Tokenizer.from_str(text), special)
        state = json.loads(text)
        sides = state["sides"] if "sides" in state else [base64.b64decode(model) for model in state["sentencepiece"]]
        return cls(tokenizers.Tokenizer.from_str(state["backend"]), special, (sides[0], sides[1]))

    def to_json(self) -> str:
        """Serializes the tokenizer in the format of the ``tokenizers`` library, or as an object that also contains the
        two models."""
        text: str = self._backend.to_str()
        if self.sides is None:
            return text
        if (models := self.sentencepiece) is not None:
            return json.dumps({"sentencepiece": [base64.b64encode(m).decode() for m in models], "backend": text})
        return json.dumps({"sides": self.sides, "backend": text})

    def with_bpe_dropout(self, share: float, seed: Sequence[int]) -> "Tokenizer":
        """Returns the tokenizer with the same vocabulary but fewer merges, so that it produces shorter tokens
        (BPE-dropout).

        Args:
            share: probability that a merge is dropped.
            seed: seed of the draws.

        Raises:
            ValueError: the tokenizer has no merges.
        """
        generator = np.random.default_rng(seed)

        def thin(text: str) -> str:
            state = json.loads(text)
            merges = state["model"].get("merges")
            if not merges:
                raise ValueError(f"batch.bpe_dropout={share}: this tokenizer has no merges; expected tokenizer=bpe")
            kept = generator.random(len(merges)) >= share
            state["model"]["merges"] = list(compress(merges, kept))
            return json.dumps(state)

        match self.sides:
            case None:
                return Tokenizer(tokenizers.Tokenizer.from_str(thin(self._backend.to_str())), self.special)
            case str() as source, str() as target:
                return Tokenizer(self._backend, self.special, (thin(source), thin(target)))
        raise ValueError(f"batch.bpe_dropout={share}: SentencePiece models have no merges; expected tokenizer=bpe")

    @property
    def last_of_model(self) -> int:
        """Largest id of the model's vocabulary; the ids of added tokens follow it."""
        return int(self._backend.get_vocab_size(with_added_tokens=False)) - 1

    def with_swapped_ids(self, one: int, other: int) -> "Tokenizer":
        """Returns the tokenizer with the ids of two tokens swapped; texts are split in the same way.

        Args:
            one: at most ``last_of_model``.
            other: at most ``last_of_model``.
        """
        ids = {one: other, other: one}
        state = json.loads(self._backend.to_str())
        model = state["model"]
        if isinstance(model["vocab"], list):  # Unigram: a piece and its score per id
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
            for name, value in self.special.to_dict().items()
        }
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)), SpecialTokens.from_dict(special))

    @property
    def sentencepiece(self) -> tuple[bytes, bytes] | None:
        """The SentencePiece models of sources and targets, if ``sides`` are such models."""
        match self.sides:
            case bytes() as source, bytes() as target:
                return source, target
        return None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including special ones."""
        return int(self._backend.get_vocab_size())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of tokens that represent no text."""
        added = self._backend.get_added_tokens_decoder()
        return self.special.ids | {i for i, token in added.items() if token.special}

    @cached_property
    def text_ids(self) -> Int[np.ndarray, " text_tokens"]:
        """Sorted ids of tokens that represent text."""
        return np.setdiff1d(np.arange(self.vocab_size), list(self.special_ids))

    def encode(self, texts: Sequence[str], as_target: bool = False) -> list[list[int]]:
        """Returns the token ids of each text, without special tokens around them.

        Args:
            texts: the texts.
            as_target: whether to encode with the target model of ``sides``.
        """
        if self.sides is not None:
            return [ids for ids, _ in self.encode_with_places(texts, as_target)]
        if (ids_of_bytes := self._ids_of_bytes) is not None:  # the library needs ten times as long
            return [[*map(ids_of_bytes.__getitem__, text.encode())] for text in texts]
        if (cut := self._cut) is not None:  # the library needs five times as long for texts as for different parts
            parts = [cut(text) for text in texts]
            different = list(dict.fromkeys(chain.from_iterable(parts)))
            ids_of = dict(zip(different, self._encode(different), strict=True)).__getitem__
            return [[*chain.from_iterable(map(ids_of, of_text))] for of_text in parts]
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        # encode_batch_fast, which computes no offsets, took 1.2 to 2 times as long (tokenizers 0.23). The results of
        # the library take ten times the memory of the ids, hence the blocks.
        blocks = (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE))
        found = (self._backend.encode_batch(block, add_special_tokens=False) for block in blocks)
        return [encoding.ids for encodings in found for encoding in encodings]

    @cached_property
    def _ids_of_bytes(self) -> list[int] | None:
        """The id of each byte, if there are no other tokens of text; None: there are others, or texts are changed."""
        backend, model = self._backend, self._backend.model
        is_plain = (
            len(self.text_ids) == len(BYTE_OF)
            and isinstance(model, models.BPE)
            and not model.continuing_subword_prefix
            and not model.end_of_word_suffix
        )
        if not is_plain or _steps_of(backend.normalizer) or _steps_of(backend.pre_tokenizer) != _steps_of(EACH_BYTE):
            return None
        id_of = {BYTE_OF[token]: i for token, i in backend.get_vocab().items() if token in BYTE_OF}
        return [id_of[byte] for byte in range(256)] if {*id_of.values()} == {*self.text_ids.tolist()} else None

    @cached_property
    def _cut(self) -> Callable[[str], list[str]] | None:
        """Cuts a text into characters or words, which Triptych's tokenizers encode independently; None: the tokenizer
        splits texts differently."""
        backend = self._backend
        if not all(token.special for token in backend.get_added_tokens_decoder().values()):
            return None
        changes, splits = (_steps_of(step) for step in (backend.normalizer, backend.pre_tokenizer))
        if not changes and splits == _steps_of(EACH_CHARACTER):
            return list
        is_of_words = all(
            change["type"] == "Lowercase" or change.get("content") == SPECIAL_TOKENS[UNK] for change in changes
        )
        return split_words if is_of_words and splits[:1] == _steps_of(EACH_WORD) else None

    def encode_with_places(
        self, texts: Sequence[str], as_target: bool = False
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Like ``encode``, with the character offsets (start, end) of each token: it encodes ``text[start:end]``.
        Tokens that are parts of one character all have its offsets. Whitespace in no token is in no span.

        Returns:
            For each text, its ids and their offsets in characters (code points).
        """
        if self.sides is None:
            encodings = self._backend.encode_batch(texts, add_special_tokens=False)
            return [(encoding.ids, encoding.offsets) for encoding in encodings]
        unk = self.special.unk
        assert unk is not None
        # encode_batch_fast hides the text of unknown tokens, which the vocabulary may contain for the other model.
        encodings = self._cutters[as_target].encode_batch(texts, add_special_tokens=False)
        return [([self._ids.get(token, unk) for token in encoding.tokens], encoding.offsets) for encoding in encodings]

    def encode_words(self, texts: Sequence[str]) -> list[TokenizedWords]:
        """Encodes each text, with its words: the parts of which the tokenizer forms tokens independently, such as
        "dogs" and "." in "dogs.". If these are single characters or the whole text, whitespace separates the words, see
        ``begins_word``."""
        splits = _steps_of(self._backend.pre_tokenizer)
        is_whole = self.sides is not None or not splits or splits == _steps_of(EACH_CHARACTER)
        found = list[TokenizedWords]()
        for start in range(0, len(texts), AT_ONCE):
            block = texts[start : start + AT_ONCE]
            parts: list[tuple[list[int], list[tuple[int, int]], Sequence[int | None]]]
            if is_whole:
                parts = [
                    (ids, spans, self.begins_word(ids).cumsum().tolist())
                    for ids, spans in self.encode_with_places(block)
                ]
            else:
                encodings = self._backend.encode_batch(block, add_special_tokens=False)
                parts = [(encoding.ids, encoding.offsets, encoding.word_ids) for encoding in encodings]
            for text, (ids, spans, numbers) in zip(block, parts, strict=True):
                word_of = np.unique(np.array(numbers, int), return_inverse=True)[1]
                first = np.flatnonzero(np.diff(word_of, prepend=-1))
                last = np.append(first[1:], len(ids)) - 1
                words = [text[spans[a][0] : spans[b][1]].strip() for a, b in zip(first, last, strict=False)]
                is_word = np.array([word != "" for word in words], int)  # whitespace alone belongs to the next word
                number = np.minimum(is_word.cumsum() - is_word, max(is_word.sum() - 1, 0))
                found.append(TokenizedWords(ids, number[word_of].tolist(), [x for x in words if x] or words[:1]))
        return found

    @cached_property
    def _cutters(self) -> list[tokenizers.Tokenizer]:
        """The models of sources and targets. MarianMT's language tags such as ">>fr<<" stay whole."""
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
        """Ids of the tokens that may occur in text."""
        return {token: i for token, i in self._backend.get_vocab().items() if i not in self.special_ids}

    def encode_marked(self, texts: Sequence[str], marks: Sequence[int]) -> list[list[int]]:
        """Like ``encode``, but encodes the names of some special tokens as these tokens: "a <mask> c".

        Args:
            texts: texts that contain such names.
            marks: ids of these special tokens.
        """
        added = self._backend.get_added_tokens_decoder()
        tokens = {added[i].content: i for i in marks}  # if one name is a prefix of another, the longer one matches
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
        """Returns the text of the ids, without special tokens."""
        return str(self._backend.decode([i for i in ids if i not in self.special_ids], skip_special_tokens=False))

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Returns a readable name of each token: its text, or the name of a special token. Bytes of incomplete
        characters become <0xE6>."""
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
        """Returns whether each token begins a word. Whitespace before a word belongs to it. A token therefore begins a
        word if it is the first, starts with whitespace, or follows a token that ends in whitespace; but not after a
        token of whitespace only. WordPiece marks continuations; all other tokens begin a word.

        Args:
            ids: ids of a text, without special tokens around it.
        """
        starts, ends, is_blank = self._word_limits[:, list(ids)]
        return np.append(True, (starts[1:] | ends[:-1]) & ~is_blank[:-1])[: len(ids)]

    @cached_property
    def _word_limits(self) -> Bool[np.ndarray, "3 vocab"]:
        """Whether each token starts with whitespace, ends in whitespace, and is only whitespace."""
        if self.reads_words:
            return np.array([(i not in self._continuations, False, False) for i in range(self.vocab_size)]).T
        return np.array([(t[:1].isspace(), t[-1:].isspace(), t.isspace()) for t in self._texts[1]]).T

    @cached_property
    def reads_words(self) -> bool:
        """Whether whitespace only separates words and is in no token (``WordLevel``, ``WordPiece``)."""
        return any(part["type"] == "WordPiece" for part in self._decoders)

    @cached_property
    def _continuations(self) -> frozenset[int]:
        """Ids of the tokens that continue a word; empty unless the tokenizer reads words."""
        prefixes = tuple(part["prefix"] for part in self._decoders if part["type"] == "WordPiece")
        return frozenset(i for token, i in self._backend.get_vocab().items() if token.startswith(prefixes))

    def num_bytes(self) -> Int[np.ndarray, "2 vocab"]:
        """Returns the number of UTF-8 bytes of text per token; special tokens have none. SentencePiece's space before a
        text counts.

        If no token contains whitespace (``reads_words``), a word counts as ``decode`` writes it: with one space before
        it, except at the start of a text or line.

        Returns:
            Row 0: after a token that does not end in whitespace. Row 1: after one that does, or at the start of a text
            (see ``ends_in_space``).
        """
        return np.array([[len(content) for content in row] for row in self._contents])

    def num_characters(self) -> Int[np.ndarray, "2 vocab"]:
        """Returns the number of characters (code points) that begin in each token: a character of several tokens counts
        where its first byte is. unk counts as one character, other special tokens as none. For the rows see
        ``num_bytes``."""
        counts = np.array([[sum(byte & 0xC0 != 0x80 for byte in text) for text in row] for row in self._contents])
        if self.special.unk is not None:
            counts[:, self.special.unk] = 1
        return counts

    def num_words(self) -> Int[np.ndarray, "2 vocab"]:
        """Returns the number of words that begin in each token. For the rows see ``num_bytes``; in row 0 the start of a
        token continues a word.

        Whitespace separates words (``str.split``), and each line end is a word: "\\n" within a text, and eos after it.
        A text has ``len(text.split()) + text.count("\\n")`` words. unk is part of a word, or a word if tokens are
        words. A multi-byte space such as U+00A0 is part of a word if a byte-level tokenizer splits it.
        """
        counts = np.array([[len(text.split()) + text.count("\n") for text in row] for row in self._texts])
        counts[0] -= [text[:1].strip() != "" for text in self._texts[0]]
        return counts

    def ends_in_space(self) -> Bool[np.ndarray, " vocab"]:
        """Returns, for each token, whether the next one begins a word: after whitespace, bos or eos."""
        return np.array([text[-1:].isspace() for text in self._texts[1]])

    @cached_property
    def _contents(self) -> tuple[list[bytes], list[bytes]]:
        """The bytes of text of each token, as the decoder writes it: after a token that does not end in whitespace, and
        after one that does."""
        added, parts = self._backend.get_added_tokens_decoder(), self._decoders
        contents = [b""] * self.vocab_size
        for token, i in self._backend.get_vocab().items():
            if i not in self.special_ids:
                contents[i] = token.encode() if i in added else _content(token, parts)
        mid_text = [self._blank(i) + content if content.strip() else content for i, content in enumerate(contents)]
        return mid_text, contents

    def _blank(self, i: int) -> bytes:
        """Returns the text that ``decode`` inserts between a word and this token."""
        return b" " if self.reads_words and i not in self._continuations else b""

    @cached_property
    def _decoders(self) -> list[dict[str, Any]]:
        """The steps of the decoder, in the format of the library."""
        decoder = json.loads(self._backend.to_str())["decoder"] or {"type": None}
        return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]

    @cached_property
    def _texts(self) -> tuple[list[str], list[str]]:
        """The text of each token for counting words (see ``_contents``). bos counts as whitespace, eos as a line end,
        and unk and parts of characters as non-whitespace."""
        mid_text, after_space = ([content.decode(errors="replace") for content in row] for row in self._contents)
        for texts in (mid_text, after_space):
            for i in (self.special.bos, self.special.start, *self.special.begin):
                texts[i] = " "
            texts[self.special.eos] = "\n"
        if (unk := self.special.unk) is not None:
            mid_text[unk], after_space[unk] = self._blank(unk).decode() + "\ufffd", "\ufffd"
        return mid_text, after_space


def _content(token: str, parts: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the bytes of text of a token of the model.

    Args:
        token: name in the vocabulary.
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


def split_words(text: str) -> list[str]:
    """The words and line ends of a text, as ``EACH_WORD`` splits it."""
    return re.findall(r"\n|\S+", text) if "\n" in text else text.split()


def _steps_of(step: normalizers.Normalizer | pre_tokenizers.PreTokenizer | None) -> list[dict[str, Any]]:
    """The settings of each step of a sequence, or of a single step."""
    if step is None:
        return []
    state: dict[str, Any] = json.loads(step.__getstate__())
    steps: list[dict[str, Any]] = state.get("normalizers", state.get("pretokenizers", [state]))
    return steps
