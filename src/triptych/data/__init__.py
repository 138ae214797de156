"""Corpora, tokenizers, samplers and batches."""

from triptych.data.batch import IGNORE, Batch, Encoded, EncodedList, EncodedSet, collate, pad
from triptych.data.corpus import Corpus, CorpusFacts, sha256
from triptych.data.dates import Dates
from triptych.data.digits import Digits
from triptych.data.example import Example, Splits
from triptych.data.images import Image, as_image
from triptych.data.labelled_text import LabelledText
from triptych.data.loading import DataModule
from triptych.data.parallel_text import ParallelText
from triptych.data.plain_text import PlainText
from triptych.data.pretrained_tokenizer import Pretrained
from triptych.data.tokenizers import BytePairs, Bytes, Characters, SpecialTokens, Tokenizer, TrainableTokenizer
from triptych.data.windows import Windows

__all__ = [
    "IGNORE",
    "Batch",
    "BytePairs",
    "Bytes",
    "Characters",
    "Corpus",
    "CorpusFacts",
    "DataModule",
    "Dates",
    "Digits",
    "Encoded",
    "EncodedList",
    "EncodedSet",
    "Example",
    "Image",
    "LabelledText",
    "ParallelText",
    "PlainText",
    "Pretrained",
    "SpecialTokens",
    "Splits",
    "Tokenizer",
    "TrainableTokenizer",
    "Windows",
    "as_image",
    "collate",
    "pad",
    "sha256",
]
