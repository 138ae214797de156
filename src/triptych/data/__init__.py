"""Corpora, tokenizers, samplers and batches."""

from triptych.data.batches.batch import IGNORE, Batch, Encoded, EncodedList, EncodedSet, collate, pad, side_by_side
from triptych.data.batches.datamodule import DataModule
from triptych.data.batches.sampler import StepSize
from triptych.data.batches.shards import Shard, shard_of
from triptych.data.batches.windows import TrainingWindows, Windows
from triptych.data.chat_template import ChatTemplate
from triptych.data.corpora.audio_files import AudioFiles
from triptych.data.corpora.conversations import Conversations
from triptych.data.corpora.corpus import Corpus, CorpusFacts, sha256
from triptych.data.corpora.date_instructions import DateInstructions
from triptych.data.corpora.date_pairs import DatePairs, DateQuestions
from triptych.data.corpora.dates import Dates
from triptych.data.corpora.digits import Digits
from triptych.data.corpora.drawn_digits import DrawnDigits
from triptych.data.corpora.hub import Hub, HubAudio, HubImages
from triptych.data.corpora.image_files import ImageFiles
from triptych.data.corpora.kept import read_optimum, read_splits
from triptych.data.corpora.labelled_text import LabelledText
from triptych.data.corpora.parallel_text import ParallelText
from triptych.data.corpora.plain_text import PlainText
from triptych.data.corpora.question_answering import QuestionAnswering
from triptych.data.corpora.source_files import SourceFiles
from triptych.data.corpora.tagged_text import TaggedText
from triptych.data.corpora.text_lines import TextLines
from triptych.data.corpora.tone_digits import ToneDigits
from triptych.data.example import Answer, Example, Message
from triptych.data.images import Image, as_image, read_image
from triptych.data.readers.audio import AudioReader
from triptych.data.readers.long_text import LongText
from triptych.data.sound import Sound, log_mel, read_sound
from triptych.data.splits import Splits
from triptych.data.tokenizers.cache import learned
from triptych.data.tokenizers.pretrained import Pretrained
from triptych.data.tokenizers.tokenizer import SpecialTokens, Tokenizer
from triptych.data.tokenizers.trainable import (
    BytePairs,
    Bytes,
    Characters,
    Learned,
    TrainableTokenizer,
    Unigram,
    WordPiece,
    Words,
)

__all__ = [
    "IGNORE",
    "Answer",
    "AudioFiles",
    "AudioReader",
    "Batch",
    "BytePairs",
    "Bytes",
    "Characters",
    "ChatTemplate",
    "Conversations",
    "Corpus",
    "CorpusFacts",
    "DataModule",
    "DateInstructions",
    "DatePairs",
    "DateQuestions",
    "Dates",
    "Digits",
    "DrawnDigits",
    "Encoded",
    "EncodedList",
    "EncodedSet",
    "Example",
    "Hub",
    "HubAudio",
    "HubImages",
    "Image",
    "ImageFiles",
    "LabelledText",
    "Learned",
    "LongText",
    "Message",
    "ParallelText",
    "PlainText",
    "Pretrained",
    "QuestionAnswering",
    "Shard",
    "Sound",
    "SourceFiles",
    "SpecialTokens",
    "Splits",
    "StepSize",
    "TaggedText",
    "TextLines",
    "Tokenizer",
    "ToneDigits",
    "TrainableTokenizer",
    "TrainingWindows",
    "Unigram",
    "Windows",
    "WordPiece",
    "Words",
    "as_image",
    "collate",
    "learned",
    "log_mel",
    "pad",
    "read_image",
    "read_optimum",
    "read_sound",
    "read_splits",
    "sha256",
    "shard_of",
    "side_by_side",
]
