"""The kinds of tokenizers that are trained here: bytes, characters, words, word pieces, byte pairs and unigrams."""

import io
import re
import sys
from abc import ABC, abstractmethod
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
from triptych.data.tokenizers.tokenizer import ALPHABET, EACH_CHARACTER, SPECIAL_TOKENS, UNK, SpecialTokens, Tokenizer

SPACE = r"\s\x1c-\x1f"  # what str.split takes for white space, for the library's regular expressions
PREFIX = "##"  # of pieces that go on with a word


class TrainableTokenizer(Protocol):
    """A kind of tokenizer, before it has seen text."""

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """The tokenizer of these texts and targets (those of the training split)."""


class _Unlearned:
    """A kind of tokenizer that learns no model.

    Args:
        num_sentinels: the vocabulary ends with so many of them, <extra_id_0> and so on.
    """

    def __init__(self, *, num_sentinels: int = 0) -> None:
        self.sentinels = _sentinel_names(num_sentinels)


class Bytes(_Unlearned):
    """One token for each UTF-8 byte: 256 tokens and the special ones, whatever the text."""

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """The tokenizer; it does not depend on the texts."""
        vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *ALPHABET])}
        backend = _byte_level(models.BPE(vocab=vocabulary, merges=[]), lowercase=False)
        backend.add_special_tokens(SPECIAL_TOKENS)
        return _finish(backend, self.sentinels)


class Characters(_Unlearned):
    """One token for each character of the training text; others become unk."""

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """The tokenizer of the characters in these texts."""
        backend = _of_vocabulary(sorted({*chain.from_iterable(chain(texts, targets))}))
        backend.pre_tokenizer = EACH_CHARACTER
        backend.decoder = decoders.Fuse()
        return _finish(backend, self.sentinels)


@dataclass(frozen=True, kw_only=True)
class Learned(ABC):
    """A kind of tokenizer whose vocabulary is learned from text.

    By default one model is learned from sources and targets together. With ``joint=False`` each side has a model of its
    own, learned from that side only, which cuts texts as if the other were not there. The table is shared even then: a
    token of both sides has one id, hence one embedding, in a vocabulary that is the union of the two (so it has up to
    twice ``vocab_size`` tokens), and where the output is tied to it, the decoder may write tokens of either side.

    Args:
        lowercase: whether texts are read, and hence written, in lower case.
        joint: whether sources and targets are cut by one model.
        num_sentinels: the vocabulary ends with so many of them, <extra_id_0> and so on.

    Raises:
        ValueError: a vocabulary that has no room for what it has to hold, or fewer than 0 sentinels.
    """

    lowercase: bool = False
    joint: bool = True
    num_sentinels: int = 0

    @property
    def sentinels(self) -> list[str]:
        """Their names."""
        return _sentinel_names(self.num_sentinels)

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """The tokenizer of these texts: the same texts in the same order give the same tokenizer.

        Args:
            texts: of the training split, targets excepted.
            targets: of the training split.

        Raises:
            ValueError: texts that no such tokenizer can be learned from.
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
        """One model of all these texts."""


@dataclass(frozen=True, kw_only=True)
class BytePairs(Learned):
    """Byte-pair encoding over bytes: starts from the 256 bytes, merges frequent pairs. Sennrich et al. 2016.

    Args:
        vocab_size: number of tokens, bytes and special ones included (at least 262 and the sentinels).
        lowercase: see ``Learned``, also for the others.
        joint: see there.
        num_sentinels: see there.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 256, "bytes, special tokens")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer with the merges learned from these texts."""
        backend = _byte_level(models.BPE(), self.lowercase)
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size - self.num_sentinels,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        return _finish(backend, self.sentinels)


@dataclass(frozen=True, kw_only=True)
class Words(Learned):
    """One token for each word, and one for each end of a line, "\\n", as is the custom with Penn Treebank and WikiText:
    a text has ``len(text.split()) + text.count("\\n")`` tokens. Words that are not in the vocabulary become unk, and so
    does one that is spelled like a special token.

    What ``decode`` writes has one blank between two words of a line, and no other white space.

    Args:
        vocab_size: the most tokens, special ones included: the most frequent words of the training text; null: all.
        min_frequency: how often a word of the vocabulary occurs there at least.
        split_punctuation: whether each punctuation mark is a word of its own; else white space alone separates words.
        lowercase: see ``Learned``, also for the others.
        joint: see there.
        num_sentinels: see there.

    Raises:
        ValueError: see there; or a min_frequency below 1.
    """

    vocab_size: int | None = None
    min_frequency: int = 1
    split_punctuation: bool = False

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 1, "special tokens and a word")
        if self.min_frequency < 1:
            raise ValueError(f"tokenizer.min_frequency={self.min_frequency}: expected 1 or more")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of the words in these texts; the most frequent come first, equally frequent ones in the order
        of their characters."""
        reader = _word_level(" ", self.lowercase, self.split_punctuation, self.sentinels)
        words = (word for word in _count_words(reader, texts, self.min_frequency) if word not in SPECIAL_TOKENS)
        room = None if self.vocab_size is None else self.vocab_size - self.num_sentinels - len(SPECIAL_TOKENS)
        backend = _of_vocabulary(islice(words, room))
        backend.normalizer, backend.pre_tokenizer = reader.normalizer, reader.pre_tokenizer
        backend.decoder = reader.decoder
        return _finish(backend, self.sentinels)


@dataclass(frozen=True, kw_only=True)
class WordPiece(Learned):
    """Pieces of words, the longest first that the vocabulary has; all but a word's first begin with "##". White space
    and punctuation separate words, and the end of a line is a word. Schuster and Nakajima 2012; Devlin et al. 2019.

    A word with a character that was never seen becomes unk, and so does one of more than 100 characters. What
    ``decode`` writes has one blank between two words of a line, punctuation marks included, and no other white space.

    Args:
        vocab_size: number of tokens, the characters of the training text (twice: first in a word, and not) and special
            ones included. Pieces are learned as byte pairs are, by frequency.
        lowercase: see ``Learned``, also for the others.
        joint: see there.
        num_sentinels: see there.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 1, "special tokens and a character")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of the pieces in these texts."""
        texts = list(texts)
        backend = _word_level(PREFIX, self.lowercase, split_punctuation=True)
        # The trainer numbers these in a random order, which decides between pieces that are equally frequent.
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
class Unigram(Learned):
    """Pieces that make the training text most probable, each independent of the others; of the ways to cut a text, the
    most probable one. Kudo 2018, trained by SentencePiece (Kudo and Richardson 2018; the trainer of the ``tokenizers``
    library learns other pieces from the same text each time).

    A piece may begin with a blank and has no other. Characters that are too rare for a piece are read as bytes. Unlike
    SentencePiece's default, no blank is put before a text and none is removed, so that ``decode`` writes what was read,
    but for U+2581, which becomes a blank.

    Args:
        vocab_size: number of tokens, bytes and special ones included, at most: of a short text there are not so many.
        lowercase: see ``Learned``, also for the others.
        joint: see there.
        num_sentinels: see there.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, len(self.sentinels) + 257, "bytes, special tokens and a character")

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of the pieces in these texts."""
        read = normalizers.Lowercase().normalize_str if self.lowercase else str
        content = io.BytesIO()
        others = len(SPECIAL_TOKENS) - 1 + self.num_sentinels  # unk is SentencePiece's
        try:
            SentencePieceTrainer.train(
                sentence_iterator=(line for text in texts for line in read(text).split("\n") if line),
                model_writer=content,
                model_type="unigram",
                vocab_size=self.vocab_size - others,
                hard_vocab_limit=False,
                max_sentence_length=2**30,  # else longer ones are left out
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
        known = {*SPECIAL_TOKENS, *self.sentinels}  # a text that is full of them
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
    """Refuses a vocabulary that is too small for what it has to hold beside the special tokens."""
    smallest = len(SPECIAL_TOKENS) + others
    if vocab_size is not None and vocab_size < smallest:
        raise ValueError(f"tokenizer.vocab_size={vocab_size}: expected at least {smallest} ({what})")


def _of_vocabulary(tokens: Iterable[str]) -> tokenizers.Tokenizer:
    """The special tokens and these, in their order; each is looked up as a whole."""
    vocabulary = {token: i for i, token in enumerate(chain(SPECIAL_TOKENS, tokens))}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
    backend.add_special_tokens(SPECIAL_TOKENS)
    return backend


def _byte_level(model: models.Model, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _word_level(
    prefix: str, lowercase: bool, split_punctuation: bool, sentinels: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """What cuts texts into words and ends of lines, and writes words with blanks between them.

    Args:
        prefix: of pieces that go on with a word; a blank: there are none.
        lowercase: whether texts are read in lower case.
        split_punctuation: whether each punctuation mark is a word of its own.
        sentinels: names of special tokens, beside the usual ones.
    """
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS[UNK]))
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    words: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(rf"\n|[^{SPACE}]+"), behavior="removed", invert=True)
    ]
    if split_punctuation:
        words.append(pre_tokenizers.Punctuation())
    else:  # the model would look up the name of a special token
        names = "|".join(re.escape(name) for name in (*SPECIAL_TOKENS, *sentinels))
        steps.append(normalizers.Replace(Regex(rf"(?<![^{SPACE}])({names})(?![^{SPACE}])"), SPECIAL_TOKENS[UNK]))
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Sequence(words)
    end_of_line = decoders.Replace(Regex(" ?\n ?"), "\n")
    backend.decoder = decoders.Sequence([decoders.WordPiece(prefix, cleanup=False), decoders.Fuse(), end_of_line])
    return backend


def _count_words(backend: tokenizers.Tokenizer, texts: Iterable[str], min_frequency: int = 1) -> list[str]:
    """The words that occur so often, the most frequent first; the backend's model knows them then."""
    trainer = trainers.WordLevelTrainer(
        vocab_size=sys.maxsize, min_frequency=min_frequency, special_tokens=[], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return _tokens(backend)


def _tokens(backend: tokenizers.Tokenizer) -> list[str]:
    """The tokens in the order of their ids."""
    return [token for token, _ in sorted(backend.get_vocab().items(), key=itemgetter(1))]


def _finish(backend: tokenizers.Tokenizer, sentinels: Sequence[str], sides: tuple[str, str] | None = None) -> Tokenizer:
    """Sentinels come last."""
    backend.add_special_tokens(list(sentinels))
    vocabulary = backend.get_vocab()
    return Tokenizer(backend, SpecialTokens(sentinels=tuple(vocabulary[name] for name in sentinels)), sides)
