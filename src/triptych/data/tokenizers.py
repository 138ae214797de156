"""Text to token ids and back: bytes, characters and byte-pair encoding, all by the ``tokenizers`` library."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import tokenizers
from jaxtyping import Int
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

PAD, BOS, EOS, SEP, UNK, MASK = range(6)
SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<sep>", "<unk>", "<mask>"]


class Tokenizer:
    """A trained tokenizer. The ids 0 to 5 are pad, bos, eos, sep, unk and mask; text never turns into them, but
    for unk.

    Args:
        backend: a tokenizer of the ``tokenizers`` library that knows the special tokens.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.encode_special_tokens = True  # "<eos>" in a text is five characters, not the end
        self._backend = backend

    @classmethod
    def from_json(cls, json: str) -> "Tokenizer":
        """The tokenizer that ``to_json`` wrote."""
        return cls(tokenizers.Tokenizer.from_str(json))

    def to_json(self) -> str:
        """Everything that it is, in the format of the ``tokenizers`` library."""
        json: str = self._backend.to_str()
        return json

    @property
    def sha256(self) -> str:
        """Equal for equal tokenizers."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        size: int = self._backend.get_vocab_size()
        return size

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, without special tokens around them."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; special tokens are left out."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def num_bytes(self) -> Int[np.ndarray, " vocab"]:
        """How many UTF-8 bytes of text each token stands for; special tokens stand for none."""
        byte_level = isinstance(self._backend.decoder, decoders.ByteLevel)  # there, one character stands for one byte
        sizes = np.zeros(self.vocab_size, dtype=np.int64)
        for token, i in self._backend.get_vocab().items():
            if i >= len(SPECIAL_TOKENS):
                sizes[i] = len(token) if byte_level else len(token.encode())
        return sizes


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


class Bytes:
    """One token for each UTF-8 byte: 256 tokens and the special ones, whatever the text."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer; it does not depend on the texts."""
        alphabet = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        backend = _byte_level(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
        backend.add_special_tokens(SPECIAL_TOKENS)
        return Tokenizer(backend)


class Characters:
    """One token for each character of the training text; others become unk."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of the characters in these texts."""
        alphabet = [*SPECIAL_TOKENS, *sorted(set().union(*texts))]
        vocabulary = {token: i for i, token in enumerate(alphabet)}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(SPECIAL_TOKENS)
        return Tokenizer(backend)


class BytePairs:
    """Byte-pair encoding over bytes: starts from the 256 bytes, merges frequent pairs. Sennrich et al. 2016.

    Args:
        vocab_size: number of tokens, bytes and special ones included (at least 262).

    Raises:
        ValueError: a vocabulary smaller than the bytes and the special tokens.
    """

    def __init__(self, *, vocab_size: int) -> None:
        smallest = 256 + len(SPECIAL_TOKENS)
        if vocab_size < smallest:
            raise ValueError(f"tokenizer.vocab_size={vocab_size}: expected at least {smallest} (bytes, special tokens)")
        self.vocab_size = vocab_size

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer with the merges learned from these texts."""
        backend = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        return Tokenizer(backend)
