"""Folders as they are published, with their generation settings: what ``generate`` writes, we write."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import models, pre_tokenizers, processors

import oracle
from cases import values_by_day
from predicting import in_double, predict
from triptych.config import ConfigError
from triptych.interop import import_folder, load_pretrained, save_pretrained

BOS, PAD, EOS, UNK, VOCAB = 0, 1, 2, 3, 24
WORDS = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCAB))]
TEXTS = ["w5 w9 w4", "w20 w11 w7 w7 w13", "w4", "w23 w22 w21 w20 w19 w18", "w10 w5 w10", "w6 w6"]
PROMPTS = ["w5 w9 w4", "w20 w11 w7", "w4 w4 w8", "w23 w22 w21", "w10 w5 w10", "w6 w6 w4"]
"""For a decoder by itself, of one length: ``generate`` takes what fills up on the left for a token that may come again.
"""
IDS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}


def bart() -> Any:
    sizes = {f"{stack}_{key}": n for stack in ("encoder", "decoder") for key, n in (("layers", 1), ("ffn_dim", 40))}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = hf.BartConfig(
        vocab_size=VOCAB, d_model=32, max_position_embeddings=40, **sizes, **heads, **IDS, decoder_start_token_id=EOS,
        forced_eos_token_id=None,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=40, **IDS))


def published(folder: Path, make: Callable[[], Any], settings: dict[str, Any]) -> tuple[Any, Any]:
    """Writes a folder with these generation settings and a tokenizer; gives the model and the tokenizer of it. The end
    comes often: in place of the token 4."""
    model = oracle.randomized(make(), 4)
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        if make is bart:  # which would repeat the token that it likes best
            model.final_logits_bias.zero_()
            model.model.decoder.layers[-1].final_layer_norm.bias.zero_()
        table[EOS] = 1.1 * table[4]
    model.save_pretrained(folder)
    is_full = model.config.is_encoder_decoder
    start = {"decoder_start_token_id": EOS} if is_full else {}
    (folder / "generation_config.json").write_text(json.dumps({**IDS, **start, **settings}))
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if is_full:
        special = [("<s>", BOS), ("</s>", EOS)]
        backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    side = "right" if is_full else "left"
    texts = hf.PreTrainedTokenizerFast(tokenizer_object=backend, padding_side=side, **names)
    texts.save_pretrained(folder)
    return type(model).from_pretrained(folder).double().eval(), texts


def theirs(model: Any, texts: Any) -> list[list[int]]:
    """The tokens that ``generate`` writes, up to the end."""
    is_full = model.config.is_encoder_decoder
    inputs = texts(TEXTS if is_full else PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    has_limit = model.generation_config.max_length or model.generation_config.max_new_tokens
    limit = {} if has_limit else {"max_new_tokens": 14}
    outputs = model.generate(**inputs, **limit)
    outputs = outputs[:, 1 if is_full else inputs.input_ids.shape[1] :].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return [row[: next((i for i, token in enumerate(row) if token in ends), None)] for row in outputs]


def ours(task: Any, settings: dict[str, Any]) -> list[list[int]]:
    """The tokens that we write."""
    if "max_length" not in settings:
        task.max_new_tokens = 14
    task.text_of = lambda ids, given: [*ids]
    return predict(in_double(task), TEXTS if task.architecture == "full" else PROMPTS)


BOTH: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 9},
    {"bad_words_ids": [[14], [18, 18], [20, 20, 8], [EOS]]},
    {"repetition_penalty": 1.6},
    {"suppress_tokens": [14, 18, 20], "begin_suppress_tokens": [5, 9, 11, EOS]},
    {"bad_words_ids": [[14], [18]], "renormalize_logits": True},
    {"eos_token_id": [EOS, 14, 18]},
    {"eos_token_id": [19, EOS], "min_new_tokens": 4, "no_repeat_ngram_size": 3},
]
FULL: list[dict[str, Any]] = [
    {"forced_bos_token_id": 8},
    {"forced_eos_token_id": EOS, "max_length": 9},
    {"min_length": 7, "max_length": 11},
    # of bart-large-cnn, with other lengths
    {"forced_bos_token_id": BOS, "forced_eos_token_id": EOS, "no_repeat_ngram_size": 3, "length_penalty": 2.0}
    | {"min_length": 6, "max_length": 14, "early_stopping": True},
    # of opus-mt-en-de
    {"bad_words_ids": [[PAD]], "forced_eos_token_id": EOS, "max_length": 16, "renormalize_logits": True},
    # of pegasus-xsum
    {"forced_eos_token_id": EOS, "length_penalty": 0.6, "max_length": 12},
    {"forced_bos_token_id": 8, "begin_suppress_tokens": [8, 14]},
]
SETTINGS_OF = [(bart, settings) for settings in BOTH + FULL] + [(gpt2, settings) for settings in BOTH]


def name_of(value: Any) -> str:
    return f"{value[0].__name__} {value[1]}" if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("case", "num_beams"), values_by_day(SETTINGS_OF, [1, 4]), ids=name_of)
def test_what_generate_writes_we_write(
    case: tuple[Callable[[], Any], dict[str, Any]], num_beams: int, tmp_path: Path
) -> None:
    make, settings = case
    model, texts = published(tmp_path, make, {**settings, "num_beams": num_beams})
    task_name = "translation" if make is bart else "language_modeling"
    task: Any = load_pretrained(tmp_path, task_name).task
    if make is gpt2:  # has no setting of it: predict is asked
        task.search = type(task.search)(num_beams)
    expected = theirs(model, texts)
    assert ours(task, settings) == expected
    task.logits_processors = None
    is_natural = "forced_eos_token_id" in settings or (
        num_beams > 1 and any(name.startswith("min") for name in settings)
    )
    if not is_natural:  # else the same comes by itself here
        assert ours(task, settings) != expected


def test_settings_go_in_and_out_again(tmp_path: Path) -> None:
    settings = {**FULL[3], "num_beams": 2, "bad_words_ids": [[5], [6, 7]], "repetition_penalty": 1.2}
    settings |= {"eos_token_id": [EOS, 19], "renormalize_logits": True}
    settings |= {"suppress_tokens": [9], "begin_suppress_tokens": [10, EOS]}
    published(tmp_path / "theirs", bart, settings)
    first: Any = import_folder(tmp_path / "theirs", tmp_path / "imported.ckpt").task
    save_pretrained(tmp_path / "imported.ckpt", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    expected = {
        **settings, "max_new_tokens": 13, "min_new_tokens": 5, "do_sample": False, "decoder_start_token_id": EOS,
    }  # fmt: skip
    del expected["max_length"], expected["min_length"]
    assert written == {**IDS, **expected}
    again: Any = load_pretrained(tmp_path / "out").task
    assert again.logits_processors == first.logits_processors
    assert ours(again, settings) == ours(first, settings)
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").double()
    texts = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(model, texts) == ours(first, settings)


def test_settings_of_an_old_folder_stand_in_its_configuration(tmp_path: Path) -> None:
    settings = {"no_repeat_ngram_size": 2, "num_beams": 3, "max_length": 12, "forced_bos_token_id": 8}
    published(tmp_path, bart, {})
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **settings, "top_k": 50, "do_sample": False}))
    model = hf.BartForConditionalGeneration.from_pretrained(tmp_path).double()
    texts = hf.AutoTokenizer.from_pretrained(tmp_path)
    assert ours(load_pretrained(tmp_path).task, settings) == theirs(model, texts)


@pytest.mark.parametrize(
    ("make", "settings", "named"),
    [
        (gpt2, {"do_sample": True, "temperature": 0.6, "top_p": 0.9}, "do_sample=True, temperature=0.6, top_p=0.9"),
        (gpt2, {"num_beams": 4, "max_length": 12}, "max_length=12, num_beams=4"),
        (gpt2, {"min_length": 3}, "min_length=3"),
        (bart, {"encoder_no_repeat_ngram_size": 3, "penalty_alpha": 0.6}, "encoder_no_repeat_ngram_size=3, penalty"),
        (bart, {"new_in_transformers_6": 1}, "new_in_transformers_6=1"),
        (bart, {"use_cache": True, "top_k": 50, "num_return_sequences": 1, "guidance_scale": 1.0}, None),
        (gpt2, {"max_length": 40}, None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_left_out_is_named(
    make: Callable[[], Any],
    settings: dict[str, Any],
    named: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    published(tmp_path, make, {})
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    with caplog.at_level(logging.WARNING, "triptych"):
        load_pretrained(tmp_path)
    said = [message for message in caplog.messages if "generation_config.json: ignored settings" in message]
    assert len(said) == (named is not None)
    assert named is None or named in said[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eos_token_id": 5}, "generation_config.json: eos_token_id=5, but the tokenizer and config.json have 2"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id=0, but the tokenizer and config.json have 2"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1: expected 0 or more"),
        ({"no_repeat_ngram_size": "many"}, "no_repeat_ngram_size"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0: expected more than 0"),
        ({"bad_words_ids": [[]]}, "bad_words_ids"),
        ({"bad_words_ids": "none"}, "bad_words_ids"),
        ({"bad_words_ids": [[VOCAB]]}, f"task.logits_processors: token {VOCAB}, but the vocabulary has {VOCAB}"),
        ({"max_length": "long"}, "max_length='long'; expected a whole number of at least 0"),
        ({"num_beams": "many"}, "num_beams"),
    ],
    ids=str,
)
def test_what_cannot_be_is_rejected(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    published(tmp_path, bart, {})
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    with pytest.raises(ConfigError) as caught:
        load_pretrained(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


class TestTokenizersThatContradict:
    """A tokenizer that fills up or ends with another token than config.json says."""

    def change(self, folder: Path, **values: Any) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    def classifier(self, folder: Path) -> None:
        """One that finds the end of a text by its id of padding."""
        published(folder, gpt2, {})
        sizes = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 40}
        oracle.randomized(hf.GPT2ForSequenceClassification(hf.GPT2Config(**sizes, **IDS))).save_pretrained(folder)

    @pytest.mark.parametrize(
        ("role", "i", "name"), [("pad", 7, "'<pad>' with id 1"), ("eos", 9, "'</s>' with id 2")], ids=["pad", "eos"]
    )
    def test_are_rejected(self, role: str, i: int, name: str, tmp_path: Path) -> None:
        self.classifier(tmp_path)
        load_pretrained(tmp_path)
        self.change(tmp_path, **{f"{role}_token_id": i})
        with pytest.raises(ConfigError) as caught:
            import_folder(tmp_path, tmp_path / "imported.ckpt")
        words = f"config.json: {role}_token_id={i}, but {role}_token of the tokenizer (tokenizer.json, "
        assert words in str(caught.value)
        assert str(caught.value).endswith(f"is {name}")
        assert not (tmp_path / "imported.ckpt").exists()

    @pytest.mark.parametrize(
        "values", [{"pad_token_id": None}, {"pad_token_id": -1}, {"eos_token_id": [19, EOS]}], ids=str
    )
    def test_others_are_not(self, values: dict[str, Any], tmp_path: Path) -> None:
        self.classifier(tmp_path)
        self.change(tmp_path, **values)
        load_pretrained(tmp_path)


def test_constraints_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """A token that fills up is none that could come again."""
    published(tmp_path, gpt2, {"no_repeat_ngram_size": 1, "repetition_penalty": 1.5})
    task: Any = in_double(load_pretrained(tmp_path).task)
    task.max_new_tokens = 14
    assert predict(task, TEXTS) == [predict(task, [text])[0] for text in TEXTS]
