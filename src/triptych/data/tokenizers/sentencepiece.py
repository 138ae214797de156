"""SentencePiece models as tokenizers of the ``tokenizers`` library. Kudo and Richardson 2018.

A model is a Protocol Buffers message; the numbers of its fields stand in ``sentencepiece_model.proto`` of the
SentencePiece project.
"""

import struct
from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from triptych.config import refusing

BLANK = "\u2581"  # how pieces write a blank


class Kind(IntEnum):
    """What a piece is."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """A token.

    Attributes:
        text: with blanks as ``BLANK``.
        score: its log probability, in a unigram model.
        kind: what it is.
    """

    text: str
    score: float = 0.0
    kind: Kind = Kind.NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """What a model says of encoding and decoding.

    Attributes:
        pieces: in the order of their ids.
        is_unigram: whether it is Kudo 2018's unigram model, or else of byte pairs.
        byte_fallback: whether unknown characters become bytes.
        charsmap: compiled rules that normalise characters; empty: there are none.
        add_dummy_prefix: whether a blank is put before a text.
        remove_extra_whitespaces: whether blanks are removed at the ends of a text, and all but one between words.
    """

    pieces: list[Piece]
    is_unigram: bool = True
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True

    @classmethod
    def read(cls, path: Path) -> "SentencePieceModel":
        """The model in a file.

        Raises:
            ValueError: not such a file, or a model of another kind.
        """
        with refusing(f"{path}: "):
            return cls.parse(path.read_bytes())

    @classmethod
    def parse(cls, content: bytes) -> "SentencePieceModel":
        """The model in these bytes of a file.

        Raises:
            ValueError: see ``read``.
        """
        try:
            model = _fields(content)
            trainer, normalizer = (_fields(b"".join(model[number])) for number in (2, 3))
            model_type = [1, *trainer[3]][-1]  # the value before is the default
            read = cls(
                pieces=[_piece(content) for content in model[1]],
                is_unigram=model_type == 1,
                byte_fallback=bool([0, *trainer[35]][-1]),
                charsmap=[b"", *normalizer[2]][-1],
                add_dummy_prefix=bool([1, *normalizer[3]][-1]),
                remove_extra_whitespaces=bool([1, *normalizer[4]][-1]),
            )
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
            raise ValueError(f"not a SentencePiece model ({error})") from None
        if model_type not in (1, 2):
            raise ValueError(f"a SentencePiece model of type {model_type}; expected 1, unigram, or 2, BPE")
        if [piece.kind for piece in read.pieces].count(Kind.UNKNOWN) != 1:
            raise ValueError("not a SentencePiece model (expected one piece for what is unknown)")
        return read

    def backend(self) -> tokenizers.Tokenizer:
        """The same tokenizer, by the ``tokenizers`` library."""
        (unknown,) = (i for i, piece in enumerate(self.pieces) if piece.kind == Kind.UNKNOWN)
        model: models.Model
        if self.is_unigram:
            scores = [(piece.text, piece.score) for piece in self.pieces]
            model = models.Unigram(scores, unk_id=unknown, byte_fallback=self.byte_fallback)
        else:
            ids = {piece.text: i for i, piece in enumerate(self.pieces)}
            unk = self.pieces[unknown].text
            model = models.BPE(ids, self._merges(), unk_token=unk, fuse_unk=True, byte_fallback=self.byte_fallback)
        backend = tokenizers.Tokenizer(model)
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            steps.append(normalizers.Precompiled(self.charsmap))
        if self.remove_extra_whitespaces:
            steps.append(normalizers.Replace(Regex(r"\A +| +\z| +(?= )"), ""))
        if self.add_dummy_prefix:
            steps.append(normalizers.Prepend(BLANK))
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", BLANK)])
        backend.decoder = decoder(self.add_dummy_prefix)
        if self.is_unigram and self.byte_fallback:  # text that looks like the name of a byte is none
            backend.pre_tokenizer = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
        for piece in self.pieces:
            token = AddedToken(piece.text, normalized=False)
            if piece.kind in (Kind.UNKNOWN, Kind.CONTROL):
                backend.add_special_tokens([token])
            elif piece.kind == Kind.USER_DEFINED:
                backend.add_tokens([token])
        return backend

    def _merges(self) -> list[tuple[str, str]]:
        """The pairs of pieces that make a third; the pieces stand in the order in which they are merged."""
        texts = dict.fromkeys(piece.text for piece in self.pieces)
        cuts = ((text[:i], text[i:]) for text in texts for i in range(1, len(text)))
        return [(left, right) for left, right in cuts if left in texts and right in texts]


def decoder(add_dummy_prefix: bool = True) -> decoders.Decoder:
    """From pieces to text."""
    blank = decoders.Strip(" ", left=int(add_dummy_prefix))
    return decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), blank])


def _piece(message: bytes) -> Piece:
    fields = _fields(message)
    (score,) = struct.unpack("<f", [bytes(4), *fields[2]][-1])
    score = float(f"{score:.9g}")  # the same number, which JSON keeps too
    return Piece(fields[1][-1].decode(), score, Kind([1, *fields[3]][-1]))


def _fields(message: bytes) -> defaultdict[int, list[Any]]:
    """The values of each field of a Protocol Buffers message: integers as such, all others as their bytes."""
    fields: defaultdict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value: int | bytes
            value, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], at)
            value, at = message[at : at + size], at + size
        if at > len(message):
            raise ValueError("it ends too early")
        fields[number].append(value)
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The integer at a place, seven bits a byte, the lowest first; and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ValueError("an integer of more than ten bytes")
