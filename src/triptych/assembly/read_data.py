"""Reads the corpus of a configuration and trains its tokenizer."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import logging
from dataclasses import replace
from itertools import chain, islice
from typing import get_args

from omegaconf import DictConfig

from triptych.config import ConfigError, as_dict, build, counted, hints_of, target_of
from triptych.data import (
    Characters,
    Corpus,
    CorpusInfo,
    LongText,
    Splits,
    Tokenizer,
    TrainableTokenizer,
    TrainedTokenizer,
    read_splits,
    train_or_load,
)
from triptych.data.example_columns import texts_of
from triptych.data.file_examples import outlines_of
from triptych.data.readers.columns import MissingColumnError

log = logging.getLogger("triptych")


def read_corpus(config: DictConfig, name: str) -> tuple[Corpus, Splits, CorpusInfo]:
    """Reads a corpus; returns it with its examples and metadata.

    Args:
        name: displayed name.

    Raises:
        ValueError: the data cannot be read.
        ConfigError: a column is missing that the task does not need.
    """
    corpus: Corpus = build(config, "data")
    log.info("reading %s", name)
    try:
        splits, info = read_splits(corpus, as_dict(config.data))
    except MissingColumnError as error:
        key, may_be_null = error.field, type(None) in get_args(hints_of(type(corpus)).get(error.field))
        if key == "text" or key in target_of(config, "task").columns or not may_be_null:
            raise
        raise ConfigError(f"{error}; set data.{key}=null to ignore it") from None
    parts = (splits.train, splits.validation, splits.test)
    sizes = (str(part) if isinstance(part, LongText) else counted(len(part), "example") for part in parts)
    log.info("%s to train, %s to validate, %s to test", *sizes)
    first = next(iter(outlines_of(splits.train)), None)
    has_pairs = first is not None and first.text_pair is not None
    has_speakers = first is not None and first.audio is not None and bool(first.audio.speaker)
    return corpus, splits, replace(info, has_pairs=has_pairs, has_speakers=has_speakers)


def train_tokenizer(config: DictConfig, splits: Splits) -> Tokenizer:
    """Trains the tokenizer on the texts, pairs and targets of the training split. (With images, it only has special
    tokens and is not used.)"""
    kind: TrainableTokenizer = build(config, "tokenizer")
    train = splits.train
    has_texts = not any(x.image is not None or x.audio is not None for x in islice(outlines_of(train), 1))
    # in a conversation, the text is all messages before the last reply, and the target is that reply
    read = chain.from_iterable(texts_of(train, "text", "text_pair")) if has_texts else ()
    sources = (text for text in read if text is not None)
    rows = () if isinstance(train, LongText) else texts_of(train, "target")
    targets = (target for (target,) in rows if target is not None)
    key = train.sha256 if isinstance(train, LongText) else getattr(train, "key", None)
    if not key or not has_texts or not isinstance(kind, TrainedTokenizer | Characters):
        return kind.train(sources, targets)
    return train_or_load(kind, sources, targets, key)
