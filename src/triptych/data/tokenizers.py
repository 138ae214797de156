"""Text to token ids and back: bytes, characters and byte-pair encoding, all by the ``tokenizers`` library."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import tokenizers
from jaxtyping import Bool, Int
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from triptych.data.plain import Plain
from triptych.data.sentencepiece import SentencePieceModel

PAD, BOS, EOS, SEP, UNK, MASK = range(6)
SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<sep>", "<unk>", "<mask>"]

# Byte-level tokenizers write each byte as one character: those that are visible in Latin-1 as these, the others, in
# their order, as the characters from 256 on.
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_VISIBLE = [ord(character) for character in ALPHABET if ord(character) < 256]
BYTE_OF = dict(zip(ALPHABET, _VISIBLE + sorted(set(range(256)) - set(_VISIBLE)), strict=True))


@dataclass(frozen=True, slots=True)
class SpecialTokens(Plain):
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
        target_begin: the first tokens that the decoder of the full model is to write.
        sentinels: hide a span each, in this order (Raffel et al. 2020, section 3.1.4).
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
    target_begin: tuple[int, ...] = ()
    sentinels: tuple[int, ...] = ()

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        values = [value if isinstance(value, tuple) else (value,) for value in asdict(self).values()]
        return frozenset(i for ids in values for i in ids if i is not None)

    def whole(self, ids: Sequence[int]) -> list[int]:
        """A text that is read as a whole: begin, ids, end. It has a token even if there is none of these."""
        return [*self.begin, *ids, *self.end] or [self.bos]

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
        special: the ids of the special tokens.
        sentencepiece: the SentencePiece models that cut sources and targets into tokens, which ``backend`` then only
            numbers (MarianMT's way: one vocabulary, two models); None: it does both.

    Raises:
        ValueError: ids that are not those from 0 up to the number of tokens, or a special token beyond them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: SpecialTokens | None = None,
        sentencepiece: tuple[bytes, bytes] | None = None,
    ) -> None:
        backend.encode_special_tokens = True  # "<eos>" in a text is five characters, not the end
        self._backend, self.special, self.sentencepiece = backend, special or SpecialTokens(), sentencepiece
        largest = max(*backend.get_vocab().values(), *self.special.ids)
        if largest >= self.vocab_size:
            raise ValueError(f"tokenizer: token id {largest}, but the vocabulary has {self.vocab_size} tokens")

    @classmethod
    def from_json(cls, text: str, special: SpecialTokens | None = None) -> "Tokenizer":
        """The tokenizer that ``to_json`` wrote."""
        if not text.startswith('{"sentencepiece"'):
            return cls(tokenizers.Tokenizer.from_str(text), special)
        state = json.loads(text)
        source, target = (base64.b64decode(model) for model in state["sentencepiece"])
        return cls(tokenizers.Tokenizer.from_str(state["backend"]), special, (source, target))

    def to_json(self) -> str:
        """Everything that it is, in the format of the ``tokenizers`` library; there, SentencePiece models have no place
        and stand beside it."""
        text: str = self._backend.to_str()
        if self.sentencepiece is None:
            return text
        encoded = [base64.b64encode(model).decode() for model in self.sentencepiece]
        return json.dumps({"sentencepiece": encoded, "backend": text})

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
            texts: to encode.
            as_target: whether they are targets of a translation, which two SentencePiece models cut in another way.
        """
        if self.sentencepiece is None:
            return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        unk = self.special.unk
        assert unk is not None
        # encode_batch_fast does not say what the unknown was, which the vocabulary may have from the other model.
        encodings = self._cutters[as_target].encode_batch(texts, add_special_tokens=False)
        return [[self._ids.get(token, unk) for token in encoding.tokens] for encoding in encodings]

    @cached_property
    def _cutters(self) -> list[tokenizers.Tokenizer]:
        """What cuts sources and targets; ">>fr<<" asks for a language and stays in one piece."""
        cutters = [SentencePieceModel.parse(model).backend() for model in self.sentencepiece or ()]
        for cutter in cutters:
            cutter.encode_special_tokens = True
            cutter.add_tokens([AddedToken(name, normalized=False) for name in self._ids if re.match(">>.*<<$", name)])
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
        tokens = {added[i].content: i for i in marks}
        pattern = "|".join(
            (r"\s*" if added[i].lstrip else "") + f"({re.escape(name)})" + (r"\s*" if added[i].rstrip else "")
            for name, i in tokens.items()
        )
        encoded = []
        for text in texts:
            parts = [part for part in re.split(pattern, text) if part is not None]
            pieces = iter(self.encode([part for part in parts if part not in tokens]))
            encoded.append([i for part in parts for i in ([tokens[part]] if part in tokens else next(pieces))])
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; special tokens are left out."""
        text: str = self._backend.decode([i for i in ids if i not in self.special_ids], skip_special_tokens=False)
        return text

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
        vocabulary = self._backend.get_vocab()
        for part in self._decoders():
            if part["type"] == "WordPiece":
                starts = np.ones(self.vocab_size, dtype=bool)
                starts[[i for token, i in vocabulary.items() if token.startswith(part["prefix"])]] = False
                return np.stack([starts, np.zeros_like(starts), np.zeros_like(starts)])
        return np.array([(t[:1].isspace(), t[-1:].isspace(), t.isspace()) for t in self._texts()]).T

    def num_bytes(self) -> Int[np.ndarray, " vocab"]:
        """How many UTF-8 bytes of text each token stands for; special tokens stand for none. (SentencePiece puts a
        blank before a text, and that counts.)"""
        return np.array([len(content) for content in self._contents()])

    def num_characters(self) -> Int[np.ndarray, " vocab"]:
        """How many characters (code points) of text begin in each token: one that is cut into several tokens counts
        where its first byte is. unk stands for one character, other special tokens stand for none."""
        counts = np.array([sum(byte & 0xC0 != 0x80 for byte in content) for content in self._contents()])
        if self.special.unk is not None:
            counts[self.special.unk] = 1
        return counts

    def num_words(self) -> Int[np.ndarray, "2 vocab"]:
        """How many words begin in each token.

        Words are separated by white space (``str.split``), and each end of a line is a word too, "\\n" in a text and
        eos after one: ``len(text.split()) + text.count("\\n")``. unk is part of a word, and so is a blank of
        several bytes, such as U+00A0, where a byte-level tokenizer cuts it apart.

        Returns:
            row 0: after a token that does not end in white space, so that what this one begins with goes on with a
            word; row 1: after one that does, or at the start of a text (see ``ends_in_space``).
        """
        texts = self._texts()
        after_space = np.array([len(text.split()) + text.count("\n") for text in texts])
        goes_on = np.array([text[:1].strip() != "" for text in texts])
        return np.stack([after_space - goes_on, after_space])

    def ends_in_space(self) -> Bool[np.ndarray, " vocab"]:
        """Whether what follows each token begins a word: it ends in white space, or is bos or eos."""
        return np.array([text[-1:].isspace() for text in self._texts()])

    def _contents(self) -> list[bytes]:
        """The bytes of text that each token stands for, by what the decoder makes of it."""
        added, parts = self._backend.get_added_tokens_decoder(), self._decoders()
        contents = [b""] * self.vocab_size
        for token, i in self._backend.get_vocab().items():
            if i not in self.special_ids:
                contents[i] = token.encode() if i in added else _content(token, parts)
        return contents

    def _decoders(self) -> list[dict[str, Any]]:
        """The steps from tokens to text, as the library writes them."""
        decoder = json.loads(self._backend.to_str())["decoder"] or {"type": None}
        return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]

    def _texts(self) -> list[str]:
        """What each token is where words are counted: bos white space, eos the end of a line, unk and parts of
        characters something else than white space."""
        texts = [content.decode(errors="replace") for content in self._contents()]
        for i in (self.special.bos, self.special.start, *self.special.begin):
            texts[i] = " "
        texts[self.special.eos] = "\n"
        if self.special.unk is not None:
            texts[self.special.unk] = "\ufffd"
        return texts


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


class TrainableTokenizer(Protocol):
    """A kind of tokenizer, before it has seen text."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of these texts (those of the training split)."""
        ...


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentinel_names(num_sentinels: int) -> list[str]:
    if num_sentinels < 0:
        raise ValueError(f"tokenizer.num_sentinels={num_sentinels}: expected 0 or more")
    return [f"<extra_id_{i}>" for i in range(num_sentinels)]


def _with_sentinels(backend: tokenizers.Tokenizer, names: Sequence[str]) -> Tokenizer:
    backend.add_special_tokens(list(names))
    vocabulary = backend.get_vocab()
    return Tokenizer(backend, SpecialTokens(sentinels=tuple(vocabulary[name] for name in names)))


class Bytes:
    """One token for each UTF-8 byte: 256 tokens and the special ones, whatever the text.

    Args:
        num_sentinels: the vocabulary ends with so many of them, <extra_id_0> and so on.

    Raises:
        ValueError: fewer than 0.
    """

    def __init__(self, *, num_sentinels: int = 0) -> None:
        self.sentinels = _sentinel_names(num_sentinels)

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer; it does not depend on the texts."""
        alphabet = [*SPECIAL_TOKENS, *ALPHABET]
        backend = _byte_level(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
        backend.add_special_tokens(SPECIAL_TOKENS)
        return _with_sentinels(backend, self.sentinels)


class Characters:
    """One token for each character of the training text; others become unk.

    Args:
        num_sentinels: the vocabulary ends with so many of them, <extra_id_0> and so on.

    Raises:
        ValueError: fewer than 0.
    """

    def __init__(self, *, num_sentinels: int = 0) -> None:
        self.sentinels = _sentinel_names(num_sentinels)

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of the characters in these texts."""
        alphabet = [*SPECIAL_TOKENS, *sorted(set().union(*texts))]
        vocabulary = {token: i for i, token in enumerate(alphabet)}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(SPECIAL_TOKENS)
        return _with_sentinels(backend, self.sentinels)


class BytePairs:
    """Byte-pair encoding over bytes: starts from the 256 bytes, merges frequent pairs. Sennrich et al. 2016.

    Args:
        vocab_size: number of tokens, bytes and special ones included (at least 262 and the sentinels).
        lowercase: whether texts are read, and hence written, in lower case.
        num_sentinels: the vocabulary ends with so many of them, <extra_id_0> and so on.

    Raises:
        ValueError: a vocabulary smaller than the bytes and the special tokens, or fewer than 0 sentinels.
    """

    def __init__(self, *, vocab_size: int, lowercase: bool = False, num_sentinels: int = 0) -> None:
        self.sentinels = _sentinel_names(num_sentinels)
        smallest = 256 + len(SPECIAL_TOKENS) + num_sentinels
        if vocab_size < smallest:
            raise ValueError(f"tokenizer.vocab_size={vocab_size}: expected at least {smallest} (bytes, special tokens)")
        self.vocab_size, self.lowercase = vocab_size, lowercase

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer with the merges learned from these texts."""
        backend = _byte_level(models.BPE())
        if self.lowercase:
            backend.normalizer = normalizers.Lowercase()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size - len(self.sentinels),
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        return _with_sentinels(backend, self.sentinels)
