"""Converts SentencePiece models to the ``tokenizers`` library. Kudo and Richardson 2018."""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from triptych.config import error_prefix

BLANK = "\u2581"  # a space within a piece


class Kind(IntEnum):
    """SentencePiece's type of a piece."""

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
        text: the text, with ``BLANK`` for spaces.
        score: log-probability in a unigram model.
        kind: type of the piece.
    """

    text: str
    score: float = 0.0
    kind: Kind = Kind.NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model that determine encoding and decoding.

    Attributes:
        pieces: pieces in the order of their ids.
        is_unigram: whether it is a unigram model (Kudo 2018); else byte pairs.
        byte_fallback: whether unknown characters become bytes.
        charsmap: compiled rules that normalize characters; empty: none.
        add_dummy_prefix: whether a space is prepended to each text.
        remove_extra_whitespaces: whether leading, trailing and repeated spaces are removed.
    """

    pieces: list[Piece]
    is_unigram: bool = True
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True

    @classmethod
    def read(cls, path: Path) -> "SentencePieceModel":
        """Reads a model file.

        Raises:
            ValueError: not a SentencePiece model, or not a supported type.
        """
        with error_prefix(f"{path}: "):
            return cls.parse(path.read_bytes())

    @classmethod
    def parse(cls, content: bytes) -> "SentencePieceModel":
        """Parses the content of a model file."""
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # slow import (0.1 s)
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # slow too

        try:
            model = ModelProto.FromString(content)
            pieces = [
                Piece(piece.piece, float(f"{piece.score:.9g}"), Kind(_type(piece, piece.type)))  # the precision of JSON
                for piece in model.pieces
            ]
        except (DecodeError, ValueError) as error:
            raise ValueError(f"not a SentencePiece model ({error})") from None
        trainer, normalizer = model.trainer_spec, model.normalizer_spec
        model_type = _type(trainer, trainer.model_type)
        if model_type not in (1, 2):
            raise ValueError(f"SentencePiece model type {model_type} is not supported; expected 1 (unigram) or 2 (BPE)")
        if not all(isinstance(piece.text, str) for piece in pieces):
            raise ValueError("not a SentencePiece model (a piece is not UTF-8)")
        if [piece.kind for piece in pieces].count(Kind.UNKNOWN) != 1:
            raise ValueError("not a SentencePiece model (expected one unknown piece)")
        return cls(
            pieces=pieces,
            is_unigram=model_type == 1,
            byte_fallback=trainer.byte_fallback,
            charsmap=normalizer.precompiled_charsmap,
            add_dummy_prefix=normalizer.add_dummy_prefix,
            remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
        )

    def backend(self) -> tokenizers.Tokenizer:
        """Converts the model to a tokenizer of the ``tokenizers`` library."""
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
        if self.is_unigram and self.byte_fallback:  # text such as <0x41> is not a byte
            backend.pre_tokenizer = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
        for piece in self.pieces:
            token = AddedToken(piece.text, normalized=False)
            if piece.kind in (Kind.UNKNOWN, Kind.CONTROL):
                backend.add_special_tokens([token])
            elif piece.kind == Kind.USER_DEFINED:
                backend.add_tokens([token])
        return backend

    def _merges(self) -> list[tuple[str, str]]:
        """Returns all pairs of pieces whose concatenation is a piece. Pieces are listed in merge order."""
        texts = dict.fromkeys(piece.text for piece in self.pieces)
        cuts = ((text[:i], text[i:]) for text in texts for i in range(1, len(text)))
        return [(left, right) for left, right in cuts if left in texts and right in texts]


def decoder(add_dummy_prefix: bool = True) -> decoders.Decoder:
    """Makes the decoder from pieces to text."""
    blank = decoders.Strip(" ", left=int(add_dummy_prefix))
    return decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), blank])


def _type(message: Any, known: int) -> int:
    """Reads field 3, the type of a piece or a model. Protocol Buffers keeps a value without a known name among the
    unknown fields and returns the default.

    Args:
        message: the piece or the training settings.
        known: the value that Protocol Buffers returns.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

    return next((field.data for field in UnknownFieldSet(message) if field.field_number == 3), known)
