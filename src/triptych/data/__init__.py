"""Corpora, tokenizers, samplers and batches."""

from triptych.data.batch import IGNORE, Batch, Encoded, EncodedList, EncodedSet, collate, pad
from triptych.data.corpus import Corpus, CorpusFacts, sha256
from triptych.data.date_pairs import DatePairs, DateQuestions
from triptych.data.dates import Dates
from triptych.data.digits import Digits
from triptych.data.example import Answer, Example, Splits
from triptych.data.hub import Hub
from triptych.data.images import Image, as_image
from triptych.data.labelled_text import LabelledText
from triptych.data.loading import DataModule
from triptych.data.long_text import LongText
from triptych.data.parallel_text import ParallelText
from triptych.data.plain_text import PlainText
from triptych.data.pretrained_tokenizer import Pretrained
from triptych.data.question_answering import QuestionAnswering
from triptych.data.shards import Shard, shard_of
from triptych.data.tagged_text import TaggedText
from triptych.data.tokenizer_cache import learned
from triptych.data.tokenizers import SpecialTokens, Tokenizer
from triptych.data.trainable import (
    BytePairs,
    Bytes,
    Characters,
    Learned,
    TrainableTokenizer,
    Unigram,
    WordPiece,
    Words,
)
from triptych.data.windows import TrainingWindows, Windows

__all__ = [
    "IGNORE",
    "Answer",
    "Batch",
    "BytePairs",
    "Bytes",
    "Characters",
    "Corpus",
    "CorpusFacts",
    "DataModule",
    "DatePairs",
    "DateQuestions",
    "Dates",
    "Digits",
    "Encoded",
    "EncodedList",
    "EncodedSet",
    "Example",
    "Hub",
    "Image",
    "LabelledText",
    "Learned",
    "LongText",
    "ParallelText",
    "PlainText",
    "Pretrained",
    "QuestionAnswering",
    "Shard",
    "SpecialTokens",
    "Splits",
    "TaggedText",
    "Tokenizer",
    "TrainableTokenizer",
    "TrainingWindows",
    "Unigram",
    "Windows",
    "WordPiece",
    "Words",
    "as_image",
    "collate",
    "learned",
    "pad",
    "sha256",
    "shard_of",
]
