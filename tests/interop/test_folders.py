"""Whole folders: what ``transformers`` says of a text and what we say of it are the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

import oracle
import triptych
from cases import every_third_by_day, values_by_day
from command_line import composed
from predicting import in_double, predict
from triptych.assembly.read_data import train_tokenizer
from triptych.config import ConfigError, build
from triptych.data import Message
from triptych.interop import import_folder, load_pretrained, save_pretrained

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


def test_questions_are_answered_alike(tmp_path: Path) -> None:
    """The best span of the text, or none where the first token is as good; there and back."""
    config = hf.BertConfig(
        vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=40,
    )  # fmt: skip
    oracle.randomized(hf.BertForQuestionAnswering(config), 5).save_pretrained(tmp_path / "theirs")
    word_pieces(tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "imported.ckpt")
    assert save_pretrained(tmp_path / "imported.ckpt", tmp_path / "ours") == "BertForQuestionAnswering"
    pairs = [(question, text) for question in TEXTS for text in TEXTS]
    answers = []
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        model = hf.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        predictor = load_pretrained(folder)
        expected = []
        for question, text in pairs:
            given = tokenizer(question, text, return_tensors="pt", return_offsets_mapping=True)
            places, sides = given.pop("offset_mapping")[0].tolist(), given.sequence_ids()
            with torch.no_grad():
                found = model(**given)
            start, end = found.start_logits[0].tolist(), found.end_logits[0].tolist()
            inside = [i for i, side in enumerate(sides) if side == 1]
            spans = [
                (start[i] + end[j], i, j)
                for i in inside
                for j in inside
                if i <= j < i + predictor.task.max_answer_tokens
            ]
            score, i, j = max(spans)
            expected.append("" if score <= start[0] + end[0] else text[places[i][0] : places[j][1]].strip())
        assert predictor.predict(pairs) == expected
        answers.append(expected)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 3


def test_the_import_of_the_module_is_light() -> None:
    """Neither torch nor transformers, which Lightning's metrics import where it is installed."""
    heavy = "{'torch', 'lightning', 'transformers'} & {*sys.modules}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = f"import sys, triptych.interop; print({heavy})"
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


DATES = ["data.num_train=200", "data.num_validation=20", "data.num_test=20", "data.languages=[de,en]"]
SENTENCES = ["5 mars 1998", "Donnerstag, 5. Maerz 1998", "4/7/71", "x"]


def checkpoint_of(folder: Path, *overrides: str, of_dates: bool = True) -> Path:
    """A checkpoint of a network with random weights, as a training run would write it."""
    small = ["shape=tiny", "shape.max_length=64", "logger=csv", *(DATES if of_dates else [])]
    config = composed(*small, *overrides)
    corpus = build(config, "data")
    splits = corpus.splits()
    tokenizer = train_tokenizer(config, splits)
    return oracle.random_checkpoint(folder, config, tokenizer, corpus.info)


class TestExport:
    @pytest.mark.parametrize(
        ("task", "tokenizer"),
        values_by_day(
            ["translation", "language_modeling", "translation task.num_beams=3", "text_to_text"],
            ["characters", "bytes", "bpe tokenizer.vocab_size=300"],
        ),
    )
    def test_a_decoder_writes_the_same(self, tmp_path: Path, task: str, tokenizer: str) -> None:
        path = checkpoint_of(tmp_path, "model=decoder_only", *f"task={task} tokenizer={tokenizer}".split())
        assert save_pretrained(path, tmp_path / "out") == "GPT2LMHeadModel"
        self.check_writing(path, tmp_path / "out", hf.AutoModelForCausalLM)

    def test_a_model_of_long_texts_begins_anywhere(self, tmp_path: Path) -> None:
        """The tokenizer of an export adds what ``predict`` adds: nothing here."""
        (tmp_path / "book.txt").write_text("\n".join(TEXTS) * 20)
        book = f"task=language_modeling data=plain_text data.dir={tmp_path} data.train=book.txt"
        path = checkpoint_of(tmp_path, "model=gpt2/style", *book.split(), of_dates=False)
        save_pretrained(path, tmp_path / "out")
        self.check_writing(path, tmp_path / "out", hf.AutoModelForCausalLM)
        again = load_pretrained(tmp_path / "out")
        again.task.max_new_tokens = 12
        predictor = triptych.load(path)
        predictor.task.max_new_tokens = 12
        assert again.predict(SENTENCES[:1]) == predictor.predict(SENTENCES[:1])

    @pytest.mark.parametrize("model", ["decoder_only", "full"])
    def test_it_ends_where_the_positions_end(self, tmp_path: Path, model: str) -> None:
        path = checkpoint_of(tmp_path, f"model={model}", "task=translation", "shape.max_length=30")
        save_pretrained(path, tmp_path / "out")
        texts = AutoTokenizer.from_pretrained(tmp_path / "out")
        auto = hf.AutoModelForCausalLM if model == "decoder_only" else hf.AutoModelForSeq2SeqLM
        theirs = auto.from_pretrained(tmp_path / "out")
        theirs.generation_config.eos_token_id = None  # so that nothing else ends it
        outputs = theirs.generate(**texts(["5 mars 1998"], return_tensors="pt"))
        assert outputs.shape[1] == 30

    @pytest.mark.parametrize("model", ["decoder_only", "full"])
    def test_a_conversation_continues_alike(self, tmp_path: Path, model: str) -> None:
        path = checkpoint_of(tmp_path, f"model={model}", "task=chat", "data=date_instructions")
        save_pretrained(path, tmp_path / "out")
        texts = AutoTokenizer.from_pretrained(tmp_path / "out")
        auto: Any = hf.AutoModelForCausalLM if model == "decoder_only" else hf.AutoModelForSeq2SeqLM
        theirs, task = auto.from_pretrained(tmp_path / "out").double(), in_double(triptych.load(path).task)
        task.max_new_tokens = 12
        for talk in ([Message("user", "19")], [Message("user", "3."), Message("assistant", "M"), Message("user", "8")]):
            assert predict(task, [talk]) == [oracle.reply(theirs, texts, talk, max_new_tokens=12)]

    def check_writing(self, path: Path, folder: Path, auto: type) -> None:
        texts = AutoTokenizer.from_pretrained(folder)
        model = auto.from_pretrained(folder).double()
        inputs = texts(SENTENCES, return_tensors="pt", padding=True)
        outputs = model.generate(**inputs, max_new_tokens=12)
        if not model.config.is_encoder_decoder:
            outputs = outputs[:, inputs.input_ids.shape[1] :]
        task = in_double(triptych.load(path).task)
        task.max_new_tokens = 12
        assert predict(task, SENTENCES) == texts.batch_decode(outputs, skip_special_tokens=True)

    @pytest.mark.parametrize("model", every_third_by_day(["decoder_only", "gpt2/style", "llama/style", "bert/style"]))
    def test_a_classifier_answers_the_same(self, tmp_path: Path, model: str) -> None:
        path = checkpoint_of(tmp_path, f"model={model}", "task=classification")
        save_pretrained(path, tmp_path / "out")
        texts = AutoTokenizer.from_pretrained(tmp_path / "out")
        theirs, ours = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out"), triptych.load(path)
        assert tuple(theirs.config.id2label.values()) == ours.task.labels == ("de", "en")
        with torch.no_grad():
            logits = theirs.eval()(**texts(SENTENCES, return_tensors="pt", padding=True)).logits
        for found, expected in zip(ours.predict(SENTENCES), logits.softmax(-1), strict=True):
            assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)

    @pytest.mark.parametrize("model", ["decoder_only", "gpt2/style", "llama/style", "bert/style"])
    def test_a_tagger_answers_the_same(self, tmp_path: Path, model: str) -> None:
        path = checkpoint_of(tmp_path, f"model={model}", "task=tagging")
        save_pretrained(path, tmp_path / "out")
        texts = AutoTokenizer.from_pretrained(tmp_path / "out")
        theirs, ours = hf.AutoModelForTokenClassification.from_pretrained(tmp_path / "out"), triptych.load(path)
        names = theirs.config.id2label
        inputs = texts(SENTENCES, return_tensors="pt", padding=True)
        with torch.no_grad():
            best = theirs.eval()(**inputs).logits.argmax(-1)
        for row, mask, found in zip(best, inputs.attention_mask, ours.predict(SENTENCES), strict=True):
            assert found.split() == [names[i] for i in row[mask.bool()].tolist()][1:-1]  # each character is a word

    def test_masked_tokens_are_restored_alike(self, tmp_path: Path) -> None:
        path = checkpoint_of(tmp_path, "model=bert/style", "task=denoising")
        save_pretrained(path, tmp_path / "out")
        texts = AutoTokenizer.from_pretrained(tmp_path / "out")
        theirs, ours = hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval(), triptych.load(path)
        inputs = texts(["5 m<mask>rs 19<mask>8"], return_tensors="pt")
        with torch.no_grad():
            best = theirs(**inputs).logits.argmax(-1)
        filled = torch.where(inputs.input_ids == texts.mask_token_id, best, inputs.input_ids)
        assert ours.predict(["5 m<mask>rs 19<mask>8"]) == [texts.decode(filled[0], skip_special_tokens=True)]

    def test_what_no_family_is_says_why(self, tmp_path: Path) -> None:
        path = checkpoint_of(tmp_path, "model=encoder_only", "task=classification")
        with pytest.raises(
            ConfigError, match=r"no published family matches this network.*residual=PreNorm \(expected PostNorm\)"
        ):
            save_pretrained(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_folder_that_is_not_empty_is_left_alone(self, tmp_path: Path) -> None:
        path = checkpoint_of(tmp_path, "model=gpt2/style", "task=classification")
        with pytest.raises(ConfigError, match="is not empty"):
            save_pretrained(path, tmp_path)


def test_an_import_does_not_overwrite(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "there.ckpt").write_text("precious")
    with pytest.raises(ConfigError, match=r"there\.ckpt exists"):
        import_folder(classifier, tmp_path / "there.ckpt")
    assert (tmp_path / "there.ckpt").read_text() == "precious"


def test_export_of_an_import_is_bitwise_the_same(classifier: Path, tmp_path: Path) -> None:
    first = import_folder(classifier, tmp_path / "first.ckpt")
    save_pretrained(tmp_path / "first.ckpt", tmp_path / "out")
    second = load_pretrained(tmp_path / "out")
    assert first.tokenizer.special == second.tokenizer.special
    assert first.tokenizer.encode(TEXTS) == second.tokenizer.encode(TEXTS)
    for (name, a), (other, b) in zip(
        first.network.state_dict().items(), second.network.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"architectures": 5}, r"architectures=5; expected one of BertForMaskedLM, "),
        ({"architectures": ["BertForMagic"]}, r"architectures=\['BertForMagic'\]; expected one of"),
        ({"id2label": ["bad", "good"]}, r"id2label=.*; expected a different name for each of 0, 1, 2"),
        ({"id2label": 2}, "id2label=2; expected"),
        ({"id2label": {"zero": "a", "one": "b"}}, "id2label=.*; expected"),
        ({"id2label": {"0": "a", "5": "b"}}, "id2label=.*; expected"),
        ({"id2label": {"0": "a", "1": "a"}}, "id2label=.*; expected"),
        ({"problem_type": "regression"}, "problem_type=regression, which is not supported; expected at least two"),
        ({"id2label": {"0": "a"}}, "one label 'a' means regression, which is not supported; expected at least two"),
        (
            {"problem_type": "multi_label_classification"},
            "=multi_label_classification is not supported; expected single",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config=.*; expected None"),
        ({"hidden_dropout_prob": "0.1"}, "block.dropout='0.1': expected a number, not a text"),
        ({"layer_norm_eps": -1}, "block.norm.eps=-1.*: expected at least 0"),
        ({"model_type": "mamba"}, "model_type=mamba; expected one of bart, bert, "),
    ],
    ids=[f"odd {i}" for i in range(14)],
)
def test_odd_values_are_rejected(classifier: Path, values: dict[str, Any], said: str) -> None:
    config = json.loads((classifier / "config.json").read_text())
    (classifier / "config.json").write_text(json.dumps(config | values))
    with pytest.raises(ConfigError, match=said):
        load_pretrained(classifier)


def test_a_folder_where_a_checkpoint_belongs(classifier: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"is a Hugging Face folder. Run triptych import .* --output CHECKPOINT first"
    ):
        triptych.load(classifier)
    with pytest.raises(ConfigError, match="only contains weights"):
        triptych.load(classifier / "model.safetensors")


def test_two_models_with_one_table_are_rejected(tmp_path: Path) -> None:
    """transformers knows such a tokenizer of MarianMT alone."""
    path = checkpoint_of(tmp_path, "task=translation", "model=full", "tokenizer=words", "tokenizer.joint=false")
    with pytest.raises(
        ConfigError, match=r"^tokenizer\.joint=false: an export needs one tokenizer for both sides; expected joint=true"
    ):
        save_pretrained(path, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
