"""Tokenizers that Triptych trains: bytes, characters, words, WordPiece, byte pairs and unigram.

Tested by tests/data/tokenizers/test_tokenizer.py.
"""

import io
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Protocol

import tokenizers
from sentencepiece import SentencePieceTrainer
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from triptych.data.tokenizers.pretrained import keep_out_of_text
from triptych.data.tokenizers.sentencepiece import BLANK, Kind, Piece, SentencePieceModel
from triptych.data.tokenizers.tokenizer import (
    ALPHABET,
    EACH_BYTE,
    EACH_CHARACTER,
    EACH_WORD,
    SPACE,
    SPECIAL_TOKENS,
    UNK,
    SpecialTokens,
    Tokenizer,
    split_words,
)

PREFIX = "##"  # of pieces that continue a word


class TrainableTokenizer(Protocol):
    """A kind of tokenizer before training."""

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """Trains on the texts and targets of the training split."""


class _FixedVocabulary:
    """A tokenizer without a trained model.

    Args:
        num_sentinels: number of sentinels <extra_id_0>, <extra_id_1>, ... at the end of the vocabulary.
    """

    def __init__(self, *, num_sentinels: int = 0) -> None:
        self.sentinels = _sentinel_names(num_sentinels)


class Bytes(_FixedVocabulary):
    """One token per UTF-8 byte: 256 tokens and the special ones, for any text."""

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """Returns the tokenizer; the texts are not used."""
        vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *ALPHABET])}
        backend = _byte_level(models.BPE(vocab=vocabulary, merges=[]), lowercase=False)
        backend.add_special_tokens(SPECIAL_TOKENS)
        return _finish(backend, self.sentinels)


class Characters(_FixedVocabulary):
    """One token per character of the training text; other characters become unk."""

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        backend = _of_vocabulary(sorted({*chain.from_iterable(chain(texts, targets))}))
        backend.pre_tokenizer = EACH_CHARACTER
        backend.decoder = decoders.Fuse()
        return _finish(backend, self.sentinels)


@dataclass(frozen=True, kw_only=True)
class TrainedTokenizer(ABC):
    """A tokenizer whose vocabulary is trained on text.

    By default one model is trained on sources and targets. With ``joint=False`` each side has its own model, trained on
    that side only. The vocabulary is still shared: it is the union of both and has up to twice ``vocab_size`` tokens. A
    token of both sides has one id and one embedding. If the output layer is tied to the embedding, the decoder may
    generate tokens of either side.

    Args:
        lowercase: whether to lowercase all texts, so that output is in lower case too.
        joint: whether sources and targets share one model.
        num_sentinels: number of sentinels <extra_id_0>, <extra_id_1>, ... at the end of the vocabulary.

    Raises:
        ValueError: a vocabulary that is too small, or a negative number of sentinels.
    """

    lowercase: bool = False
    joint: bool = True
    num_sentinels: int = 0

    @property
    def sentinels(self) -> list[str]:
        return _sentinel_names(self.num_sentinels)

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """Trains the tokenizer. The same texts in the same order give the same tokenizer.

        Args:
            texts: texts of the training split, without targets.
            targets: targets of the training split.

        Raises:
            ValueError: the tokenizer cannot be trained on these texts.
        """
        if self.joint:
            return self.learn(chain(texts, targets))
        targets = list(targets)
        if not targets:
            raise ValueError("tokenizer.joint=False: there are no targets; expected tokenizer.joint=true")
        sides = [self.learn(side) for side in (texts, targets)]
        names = {*SPECIAL_TOKENS, *self.sentinels}
        tokens = chain.from_iterable(_tokens(side._backend) for side in sides)
        backend = _of_vocabulary(token for token in dict.fromkeys(tokens) if token not in names)
        backend.decoder = sides[0]._backend.decoder
        source, target = (side.to_json() for side in sides)
        return _finish(backend, self.sentinels, (source, target))

    @abstractmethod
    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """Trains one model on all texts."""


@dataclass(frozen=True, kw_only=True)
class BPE(TrainedTokenizer):
    """Byte-pair encoding over bytes: starts from the 256 bytes and merges frequent pairs. Sennrich et al. 2016.

    Args:
        vocab_size: number of tokens, including bytes and special ones (at least 262 plus the sentinels).
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 256, "bytes, special tokens")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        backend = _byte_level(models.BPE(), self.lowercase)
        size = self.vocab_size - self.num_sentinels
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=SPECIAL_TOKENS, initial_alphabet=ALPHABET, show_progress=False
        )
        backend.train_from_iterator(texts, trainer)
        return _finish(backend, self.sentinels)


@dataclass(frozen=True, kw_only=True)
class WordLevel(TrainedTokenizer):
    """One token per word, and one per line end, "\\n", as is common for Penn Treebank and WikiText: a text has
    ``len(text.split()) + text.count("\\n")`` tokens. Words outside the vocabulary become unk, as does a word spelled
    like a special token.

    ``decode`` writes one space between two words of a line and no other whitespace.

    Args:
        vocab_size: maximum number of tokens, including special ones; the most frequent words are kept; null: all words.
        min_frequency: minimum number of occurrences of a word in the training text.
        split_punctuation: whether each punctuation mark is a word; else only whitespace separates words.

    Raises:
        ValueError: a vocabulary that is too small, or a min_frequency below 1.
    """

    vocab_size: int | None = None
    min_frequency: int = 1
    split_punctuation: bool = False

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 1, "special tokens and a word")
        if self.min_frequency < 1:
            raise ValueError(f"tokenizer.min_frequency={self.min_frequency}: expected 1 or more")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """Trains on these texts. The vocabulary is sorted by frequency, then by characters."""
        reader = _word_level(" ", self.lowercase, self.split_punctuation, self.sentinels)
        words = (word for word in _count_words(reader, texts, self.min_frequency) if word not in SPECIAL_TOKENS)
        room = None if self.vocab_size is None else self.vocab_size - self.num_sentinels - len(SPECIAL_TOKENS)
        backend = _of_vocabulary(islice(words, room))
        backend.normalizer, backend.pre_tokenizer = reader.normalizer, reader.pre_tokenizer
        backend.decoder = reader.decoder
        return _finish(backend, self.sentinels)


@dataclass(frozen=True, kw_only=True)
class WordPiece(TrainedTokenizer):
    """Word pieces; each word is split into the longest pieces first, and all pieces but its first start with "##".
    Whitespace and punctuation separate words, and a line end is a word. Schuster and Nakajima 2012; Devlin et al. 2019.

    A word with an unseen character, or of more than 100 characters, becomes unk. ``decode`` writes one space between
    two words of a line, including punctuation, and no other whitespace.

    Args:
        vocab_size: number of tokens, including special ones and the characters of the training text (twice: at the
            start of a word, and within). Pieces are merged by frequency, like byte pairs.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 1, "special tokens and a character")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        texts = list(texts)
        backend = _word_level(PREFIX, self.lowercase, split_punctuation=True)
        # The trainer's order of these is random, and it breaks ties between pieces of equal frequency.
        rests = sorted({PREFIX + character for word in _count_words(backend, texts) for character in word[1:]})
        backend.model = models.WordPiece(unk_token=SPECIAL_TOKENS[UNK])
        size = self.vocab_size - self.num_sentinels
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=[*SPECIAL_TOKENS, *rests], show_progress=False
        )
        backend.train_from_iterator(texts, trainer)
        vocabulary = {token: i for i, token in enumerate(_tokens(backend))}
        if len(vocabulary) > size:
            least = len(vocabulary) + self.num_sentinels
            raise ValueError(f"tokenizer.vocab_size={self.vocab_size}: expected at least {least} (characters)")
        trained, backend = backend, tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
        backend.normalizer, backend.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
        backend.decoder = trained.decoder
        backend.add_special_tokens(SPECIAL_TOKENS)
        return _finish(backend, self.sentinels)


@dataclass(frozen=True, kw_only=True)
class Unigram(TrainedTokenizer):
    """The unigram model (Kudo 2018): independent pieces that maximize the probability of the training text. A text is
    split in the most probable way. SentencePiece trains it (Kudo and Richardson 2018), because the trainer of the
    ``tokenizers`` library is not deterministic.

    A space can only be the first character of a piece. Characters too rare for a piece become bytes. Unlike
    SentencePiece's default, no space is added before a text and none is removed. ``decode`` therefore restores the
    text, except that U+2581 becomes a space.

    Args:
        vocab_size: maximum number of tokens, including bytes and special ones; a short text yields fewer.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 257, "bytes, special tokens and a character")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        read = normalizers.Lowercase().normalize_str if self.lowercase else str
        content = io.BytesIO()
        others = len(SPECIAL_TOKENS) - 1 + self.num_sentinels  # unk is part of SentencePiece's vocabulary
        try:
            SentencePieceTrainer.train(
                sentence_iterator=(line for text in texts for line in read(text).split("\n") if line),
                model_writer=content,
                model_type="unigram",
                vocab_size=self.vocab_size - others,
                hard_vocab_limit=False,
                max_sentence_length=2**30,  # longer lines would be skipped
                normalization_rule_name="identity",
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                byte_fallback=True,
                bos_id=-1,
                eos_id=-1,
                unk_id=0,
                minloglevel=2,
            )
        except RuntimeError as error:
            message = str(error)
            if sizes := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
                message = f"expected at least {int(sizes[1]) + others} (bytes, special tokens, characters)"
            raise ValueError(f"tokenizer.vocab_size={self.vocab_size}: {message}") from None
        model = SentencePieceModel.parse(content.getvalue())
        specials = [Piece(name, kind=Kind.CONTROL) for name in SPECIAL_TOKENS]
        specials[UNK] = Piece(SPECIAL_TOKENS[UNK], kind=Kind.UNKNOWN)
        known = {*SPECIAL_TOKENS, *self.sentinels}  # pieces learned from a text that contains them
        pieces = [piece for piece in model.pieces[1:] if piece.text not in known]
        backend = replace(model, pieces=[*specials, *pieces]).backend()
        at_blanks = pre_tokenizers.Split(BLANK, behavior="merged_with_next")
        backend.pre_tokenizer = pre_tokenizers.Sequence([at_blanks, backend.pre_tokenizer])
        if self.lowercase:
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), backend.normalizer])
        keep_out_of_text(backend)
        return _finish(backend, self.sentinels)


def _sentinel_names(num_sentinels: int) -> list[str]:
    if num_sentinels < 0:
        raise ValueError(f"tokenizer.num_sentinels={num_sentinels}: expected 0 or more")
    return [f"<extra_id_{i}>" for i in range(num_sentinels)]


def _check_size(vocab_size: int | None, others: int, what: str) -> None:
    """Checks that a vocabulary has space for the special tokens and ``others`` more."""
    smallest = len(SPECIAL_TOKENS) + others
    if vocab_size is not None and vocab_size < smallest:
        raise ValueError(f"tokenizer.vocab_size={vocab_size}: expected at least {smallest} ({what})")


def _of_vocabulary(tokens: Iterable[str]) -> tokenizers.Tokenizer:
    """Makes a tokenizer of the special tokens and these, in order, which are looked up as whole words."""
    vocabulary = {token: i for i, token in enumerate(chain(SPECIAL_TOKENS, tokens))}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
    backend.add_special_tokens(SPECIAL_TOKENS)
    return backend


def _byte_level(model: models.Model, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = EACH_BYTE
    backend.decoder = decoders.ByteLevel()
    return backend


def _word_level(
    prefix: str, lowercase: bool, split_punctuation: bool, sentinels: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """Splits texts into words and line ends, and decodes words with spaces between them.

    Args:
        prefix: prefix of pieces that continue a word; a space: no such pieces.
        lowercase: whether to lowercase texts.
        split_punctuation: whether each punctuation mark is a word.
        sentinels: names of additional special tokens.
    """
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS[UNK]))
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    words: list[pre_tokenizers.PreTokenizer] = [EACH_WORD]
    if split_punctuation:
        words.append(pre_tokenizers.Punctuation())
    else:  # the model would encode the name of a special token as this token
        names = "|".join(re.escape(name) for name in (*SPECIAL_TOKENS, *sentinels))
        steps.append(normalizers.Replace(Regex(rf"(?<![^{SPACE}])({names})(?![^{SPACE}])"), SPECIAL_TOKENS[UNK]))
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Sequence(words)
    end_of_line = decoders.Replace(Regex(" ?\n ?"), "\n")
    backend.decoder = decoders.Sequence([decoders.WordPiece(prefix, cleanup=False), decoders.Fuse(), end_of_line])
    return backend


def _count_words(backend: tokenizers.Tokenizer, texts: Iterable[str], min_frequency: int = 1) -> list[str]:
    """Returns the words with at least this frequency, most frequent first, then sorted by characters."""
    counts = Counter[str]()  # what the backend calls words may be parts of these
    for word, count in Counter(chain.from_iterable(map(split_words, texts))).items():
        for part, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(word)):
            counts[part] += count
    return sorted((word for word in counts if counts[word] >= min_frequency), key=lambda word: (-counts[word], word))


def _tokens(backend: tokenizers.Tokenizer) -> list[str]:
    """Returns the tokens in the order of their ids."""
    return [token for token, _ in sorted(backend.get_vocab().items(), key=itemgetter(1))]


def _finish(backend: tokenizers.Tokenizer, sentinels: Sequence[str], sides: tuple[str, str] | None = None) -> Tokenizer:
    """Appends the sentinels."""
    backend.add_special_tokens(list(sentinels))
    vocabulary = backend.get_vocab()
    return Tokenizer(backend, SpecialTokens(sentinels=tuple(vocabulary[name] for name in sentinels)), sides)
