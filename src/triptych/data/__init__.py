"""Corpora, tokenizers, samplers and batches."""

from triptych.data.audio import Audio, log_mel_spectrogram, read_audio
from triptych.data.batches.batch import (
    IGNORE_INDEX,
    Batch,
    EncodedDataset,
    EncodedExample,
    EncodedListDataset,
    collate,
    pad,
    pad_and_stack,
)
from triptych.data.batches.datamodule import DataModule
from triptych.data.batches.sampler import StepSize
from triptych.data.batches.shards import Shard, shard_of
from triptych.data.batches.windows import TrainingWindows, Windows
from triptych.data.chat_template import ChatTemplate
from triptych.data.corpora.audio_files import AudioFiles
from triptych.data.corpora.conversations import Conversations
from triptych.data.corpora.corpus import Corpus, CorpusInfo, sha256
from triptych.data.corpora.date_instructions import DateInstructions
from triptych.data.corpora.date_pairs import DatePairs, DateQuestions
from triptych.data.corpora.dates import Dates
from triptych.data.corpora.digits import Digits
from triptych.data.corpora.drawn_digits import DrawnDigits
from triptych.data.corpora.example_cache import read_optimum, read_splits
from triptych.data.corpora.hub import Hub, HubAudio, HubImages
from triptych.data.corpora.image_files import ImageFiles
from triptych.data.corpora.labelled_text import LabelledText
from triptych.data.corpora.parallel_text import ParallelText
from triptych.data.corpora.plain_text import PlainText
from triptych.data.corpora.question_answering_corpus import QuestionAnsweringCorpus
from triptych.data.corpora.source_files import SourceFiles
from triptych.data.corpora.tagged_text import TaggedText
from triptych.data.corpora.text_lines import TextLines
from triptych.data.corpora.tone_digits import ToneDigits
from triptych.data.example import AnswerSpan, Example, Message
from triptych.data.images import Image, as_image, read_image
from triptych.data.minimal_pairs import MinimalPair, MinimalPairs
from triptych.data.readers.file_changes import FileChanges
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits
from triptych.data.tokenizers.pretrained import PretrainedTokenizer
from triptych.data.tokenizers.tokenizer import SpecialTokens, TokenizedWords, Tokenizer
from triptych.data.tokenizers.tokenizer_cache import train_or_load
from triptych.data.tokenizers.trainable import (
    BPE,
    Bytes,
    Characters,
    TrainableTokenizer,
    TrainedTokenizer,
    Unigram,
    WordLevel,
    WordPiece,
)

__all__ = [
    "BPE",
    "IGNORE_INDEX",
    "AnswerSpan",
    "Audio",
    "AudioFiles",
    "Batch",
    "Bytes",
    "Characters",
    "ChatTemplate",
    "Conversations",
    "Corpus",
    "CorpusInfo",
    "DataModule",
    "DateInstructions",
    "DatePairs",
    "DateQuestions",
    "Dates",
    "Digits",
    "DrawnDigits",
    "EncodedDataset",
    "EncodedExample",
    "EncodedListDataset",
    "Example",
    "FileChanges",
    "Hub",
    "HubAudio",
    "HubImages",
    "Image",
    "ImageFiles",
    "LabelledText",
    "LongText",
    "Message",
    "MinimalPair",
    "MinimalPairs",
    "ParallelText",
    "PlainText",
    "PretrainedTokenizer",
    "QuestionAnsweringCorpus",
    "Shard",
    "SourceFiles",
    "SpecialTokens",
    "Splits",
    "StepSize",
    "TaggedText",
    "TextLines",
    "TokenizedWords",
    "Tokenizer",
    "ToneDigits",
    "TrainableTokenizer",
    "TrainedTokenizer",
    "TrainingWindows",
    "Unigram",
    "Windows",
    "WordLevel",
    "WordPiece",
    "as_image",
    "collate",
    "log_mel_spectrogram",
    "pad",
    "pad_and_stack",
    "read_audio",
    "read_image",
    "read_optimum",
    "read_splits",
    "sha256",
    "shard_of",
    "train_or_load",
]
