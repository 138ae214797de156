"""Whole folders: what ``transformers`` says of a text and what we say of it are the same."""

from pathlib import Path

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

import oracle
import triptych
from triptych.interop import import_folder, load_pretrained

TEXTS = ["a good film", "Bad, bad film!", "the film of the year is a good year of film", "?"]


def word_pieces(folder: Path) -> None:
    """A small tokenizer of BERT's kind, saved by ``transformers``."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=80, special_tokens=special))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    hf.BertTokenizerFast(tokenizer_object=backend).save_pretrained(folder)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A folder with a classifier of three classes."""
    config = hf.BertConfig(
        vocab_size=101,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=40,
        id2label={0: "bad", 1: "good", 2: "neither"},
    )
    oracle.randomized(hf.BertForSequenceClassification(config)).save_pretrained(tmp_path / "theirs")
    word_pieces(tmp_path / "theirs")
    return tmp_path / "theirs"


def test_a_classifier_says_the_same(classifier: Path, tmp_path: Path) -> None:
    model = hf.AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(classifier)
    with torch.no_grad():
        logits = model(**tokenizer(TEXTS, return_tensors="pt", padding=True)).logits
    import_folder(classifier, tmp_path / "imported.ckpt")
    for task in (load_pretrained(classifier), triptych.load(tmp_path / "imported.ckpt")):
        for found, expected in zip(task.predict(TEXTS), logits.softmax(-1), strict=True):
            assert list(found.probabilities) == ["bad", "good", "neither"]
            assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)
