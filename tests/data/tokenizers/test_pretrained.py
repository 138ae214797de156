"""Hugging Face's tokenizer files, against AutoTokenizer of transformers on the same folders."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartTokenizerFast,
    BertConfig,
    BertTokenizerFast,
    GPT2Config,
    GPT2TokenizerFast,
    LlamaConfig,
    LlamaTokenizerFast,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaTokenizerFast,
    T5Config,
    T5TokenizerFast,
)

from triptych.data import (
    BPE,
    Bytes,
    Characters,
    PretrainedTokenizer,
    SpecialTokens,
    Tokenizer,
    TrainableTokenizer,
    Unigram,
    WordLevel,
    WordPiece,
)
from triptych.data.tokenizers.pretrained import read_tokenizer, write_tokenizer

TEXTS = [
    "the cat sat on the mat",
    "Übermäßig viele Äpfel: naïve café!",
    "日本語 and others",
    "don't do that, 1998-03-05",
    "<s> </s> [CLS] <|endoftext|>",  # so that parts of them are tokens
] * 8
ANGLE = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_ROLES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}


def word_pieces(**normalizer: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(**normalizer)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=BERT, show_progress=False)
    )
    return backend


@cache
def byte_pairs() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=ANGLE, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    return backend


@cache
def unigram() -> list[tuple[str, float]]:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    pieces = [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]
    return [*pieces, *((f"<extra_id_{i}>", 0.0) for i in reversed(range(100)))]


def hidden() -> range:
    """The ids of <extra_id_0>, <extra_id_1> and so on."""
    return range(len(unigram()) - 1, len(unigram()) - 101, -1)


@cache
def blank_pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte pairs as LLaMA has them: blanks as U+2581, and bytes for what is unknown."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    backend.train_from_iterator(
        TEXTS[:8], trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    )
    return model_of(backend)


def model_of(backend: tokenizers.Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def save(folder: Path, tokenizer: Any, config: Any) -> None:
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)


def bert(folder: Path) -> None:
    save(folder, BertTokenizerFast(vocab=word_pieces().get_vocab()), BertConfig())


def bert_vocab(folder: Path, **settings: bool | None) -> None:
    """Word pieces as they were published at first."""
    vocabulary = word_pieces().get_vocab()
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)))
    BertConfig().save_pretrained(folder)
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))


def byte_level(folder: Path, kind: Any, config: Any, add_prefix_space: bool = False) -> None:
    vocabulary, merges = model_of(byte_pairs())
    save(folder, kind(vocab=vocabulary, merges=merges, add_prefix_space=add_prefix_space), config)


roberta = partial(byte_level, kind=RobertaTokenizerFast, config=RobertaConfig(pad_token_id=1))
bart = partial(byte_level, kind=BartTokenizerFast, config=BartConfig())
gpt2 = partial(byte_level, kind=GPT2TokenizerFast, config=GPT2Config(bos_token_id=5, eos_token_id=5))


def merges_only(folder: Path, make: Callable[[Path], None], keep_settings: bool = True) -> None:
    """vocab.json and merges.txt instead of tokenizer.json."""
    make(folder)
    byte_pairs().model.save(str(folder))
    (folder / "tokenizer.json").unlink()
    if not keep_settings:
        (folder / "tokenizer_config.json").unlink()


def t5(folder: Path) -> None:
    save(folder, T5TokenizerFast(vocab=unigram()), T5Config())


def llama(folder: Path) -> None:
    vocabulary, merges = blank_pairs()
    save(folder, LlamaTokenizerFast(vocab=vocabulary, merges=merges, add_bos_token=True), LlamaConfig())


def general(folder: Path) -> None:
    """A tokenizer of no family, that truncates and pads, with a token that was added later."""
    backend = word_pieces(lowercase=False)
    backend.post_processor = processors.TemplateProcessing(
        single="[SEP] [CLS] $A [SEP]", special_tokens=[("[SEP]", 3), ("[CLS]", 2)]
    )
    backend.add_tokens([AddedToken("new word")])
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="[CLS]", eos_token="[SEP]", sep_token="[MASK]"
    ).save_pretrained(folder)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "bert": bert,
    "bert vocab.txt": bert_vocab,
    "bert vocab.txt cased": partial(bert_vocab, do_lower_case=False, strip_accents=None, tokenize_chinese_chars=False),
    "bert vocab.txt stripped": partial(bert_vocab, do_lower_case=False, strip_accents=True),
    "roberta": roberta,
    "roberta merges.txt": partial(merges_only, make=roberta),
    "roberta merges.txt with prefix": partial(merges_only, make=partial(roberta, add_prefix_space=True)),
    "roberta merges.txt alone": partial(merges_only, make=roberta, keep_settings=False),
    "bart": bart,
    "bart merges.txt alone": partial(merges_only, make=bart, keep_settings=False),
    "gpt2": gpt2,
    "gpt2 merges.txt": partial(merges_only, make=gpt2),
    "gpt2 merges.txt alone": partial(merges_only, make=gpt2, keep_settings=False),
    "t5": t5,
    "llama": llama,
    "general": general,
}
EXPECTED = {  # the ids of the specials in the vocabularies above
    "bert": SpecialTokens(bos=2, eos=3, sep=3, start=2, pad=0, unk=1, mask=4, begin=(2,), end=(3,)),
    "roberta": SpecialTokens(bos=0, eos=2, sep=2, start=0, pad=1, unk=3, mask=4, begin=(0,), end=(2,), between=(2, 2)),
    "bart": SpecialTokens(
        bos=0, eos=2, sep=2, start=2, pad=1, unk=3, mask=4, begin=(0,), end=(2,), between=(2, 2), target_begin=(0,)
    ),
    "gpt2": SpecialTokens(bos=5, eos=5, sep=5, start=5, pad=5, unk=None, mask=None, begin=(), end=()),
    "t5": SpecialTokens(
        bos=1, eos=1, sep=1, start=0, pad=0, unk=2, mask=None, begin=(), end=(1,), sentinels=tuple(hidden())
    ),
    "llama": SpecialTokens(bos=1, eos=2, sep=2, start=1, pad=2, unk=0, mask=None, begin=(1,), end=(), between=(1,)),
    "general": SpecialTokens(bos=2, eos=3, sep=4, start=2, pad=0, unk=1, mask=None, begin=(3, 2), end=(3,)),
}
LOOK_ALIKES = [*ANGLE, *BERT, "<extra_id_0>", "<0x0A>"]

any_text = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("the cat,\n\t '\"<>/[]s日é\u00a0\u2028\u0301")),
    max_size=20,
).filter(lambda text: not any(special in text for special in [*LOOK_ALIKES, "<extra_id_"]))
cases = [
    example(text=text)
    for text in ("", " ", "\n", "  the  cat \r\n", "don't", "naïve e\u0301 \u00a0x", "\ufeff\x00\x85", "a new word")
]


def every_case(test: Any) -> Any:
    for case in cases:
        test = case(test)
    return settings(max_examples=40)(given(text=any_text)(test))


class Folder:
    """A folder, what we read from it, and what transformers does."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.tokenizer = read_tokenizer(path)
        self.reference = AutoTokenizer.from_pretrained(path)

    def check(self, text: str) -> None:
        special = self.tokenizer.special
        (ids,) = self.tokenizer.encode([text])
        whole = [*special.begin, *ids, *special.end]
        assert whole == self.reference(text, padding=False, truncation=False).input_ids
        assert self.tokenizer.decode(whole) == self.reference.decode(whole, skip_special_tokens=True)


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("folders") / "folder"
    FOLDERS[request.param](path)
    return Folder(request.param, path)


class TestRead:
    @every_case
    def test_ids_and_texts_are_those_of_transformers(self, folder: Folder, text: str) -> None:
        folder.check(text)

    def test_pairs_are_laid_out_as_in_transformers(self, folder: Folder) -> None:
        texts, family = ("the cat", "on the mat"), folder.name.partition(" ")[0]
        pair, start = folder.tokenizer.special.pair(*folder.tokenizer.encode(texts))
        expected = folder.reference(*texts, return_token_type_ids=True)
        # where they put nothing between two texts, we put a separator
        assert (pair == expected.input_ids) == (family not in ("gpt2", "general"))
        if family == "bert":
            assert [int(i >= start) for i in range(len(pair))] == expected.token_type_ids

    def test_special_tokens(self, folder: Folder) -> None:
        assert folder.tokenizer.special == EXPECTED[folder.name.partition(" ")[0]]
        assert folder.tokenizer.vocab_size == len(folder.reference)

    def test_text_never_becomes_a_special_token(self, folder: Folder) -> None:
        added = folder.tokenizer._backend.get_added_tokens_decoder()
        special = {i: token.content for i, token in added.items() if token.special}
        assert special.keys() >= set(folder.tokenizer.special.begin + folder.tokenizer.special.end)
        for name in {*special.values(), *LOOK_ALIKES}:
            for text in (name, f"a {name} b", f"a{name}b{name}", name * 3, f"▁{name}", f"<{name[1:]}"):
                (ids,) = folder.tokenizer.encode([text])
                assert not set(ids) & (special.keys() - {folder.tokenizer.special.unk}), text

    def test_reading_is_a_function_of_the_folder(self, folder: Folder) -> None:
        again = PretrainedTokenizer(dir=str(folder.path)).train(["other texts"])
        assert (again.sha256, again.special) == (folder.tokenizer.sha256, folder.tokenizer.special)

    def test_a_checkpoint_keeps_it(self, folder: Folder) -> None:
        special = SpecialTokens.from_dict(folder.tokenizer.special.to_dict())
        again = Tokenizer.from_json(folder.tokenizer.to_json(), special)
        assert again.sha256 == folder.tokenizer.sha256
        assert again.encode(TEXTS + LOOK_ALIKES) == folder.tokenizer.encode(TEXTS + LOOK_ALIKES)


OWN: dict[str, TrainableTokenizer] = {
    "bytes": Bytes(),
    "characters": Characters(),
    "words": WordLevel(lowercase=True),
    "bpe": BPE(vocab_size=300, lowercase=True),
    "wordpiece": WordPiece(vocab_size=200),
    "unigram": Unigram(vocab_size=400, lowercase=True),
}


def own(name: str) -> Tokenizer:
    return OWN[name].train(TEXTS)


class Written:
    """A tokenizer, and the folder that it is written to."""

    def __init__(self, tokenizer: Tokenizer, path: Path) -> None:
        self.tokenizer, self.path = tokenizer, path
        write_tokenizer(tokenizer, path, model_max_length=77)
        self.reference = AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module", params=[*OWN, *(n for n in FOLDERS if " " not in n)])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("written")
    if request.param not in FOLDERS:
        return Written(own(request.param), path)
    FOLDERS[request.param](path / "read")
    shutil.copy(path / "read" / "tokenizer.json", path / "tokenizer.json")  # an earlier one is replaced
    if (path / "read" / "config.json").exists():  # names another class of tokenizers
        shutil.copy(path / "read" / "config.json", path / "config.json")
    return Written(read_tokenizer(path / "read"), path)


class TestWrite:
    @every_case
    def test_transformers_reads_the_same(self, written: Written, text: str) -> None:
        special = written.tokenizer.special
        (ids,) = written.tokenizer.encode([text])
        whole = [*special.begin, *ids, *special.end]
        assert written.reference(text).input_ids == whole
        assert written.reference.decode(whole, skip_special_tokens=True) == written.tokenizer.decode(whole)

    def test_transformers_reads_the_same_pairs(self, written: Written) -> None:
        texts = ("the cat", "on the mat")
        pair, start = written.tokenizer.special.pair(*written.tokenizer.encode(texts))
        found = written.reference(*texts, return_token_type_ids=True)
        assert found.input_ids == pair
        assert found.token_type_ids == [int(i >= start) for i in range(len(pair))]

    def test_a_network_takes_what_transformers_reads(self, written: Written) -> None:
        assert set(written.reference("the cat")) == {"input_ids", "attention_mask"}  # token types: only BERT's has them
        assert written.reference.model_max_length == 77
        assert written.reference.is_fast

    def test_transformers_knows_the_special_tokens(self, written: Written) -> None:
        special, reference = written.tokenizer.special, written.reference
        for role in ("bos", "eos", "pad", "unk", "sep", "mask"):
            assert getattr(reference, f"{role}_token_id") == getattr(special, role), role
        assert len(reference) == written.tokenizer.vocab_size

    def test_reading_it_gives_the_same(self, written: Written) -> None:
        again = read_tokenizer(written.path)
        assert again.special == written.tokenizer.special
        assert again.sha256 == written.tokenizer.sha256
        assert again.encode(TEXTS + LOOK_ALIKES) == written.tokenizer.encode(TEXTS + LOOK_ALIKES)

    def test_after_transformers_wrote_it_too(self, written: Written, tmp_path: Path) -> None:
        written.reference.save_pretrained(tmp_path)
        assert read_tokenizer(tmp_path).special == written.tokenizer.special


def test_what_is_put_around_a_text_can_be_chosen(tmp_path: Path) -> None:
    tokenizer = own("bytes")
    write_tokenizer(tokenizer, tmp_path, begin=[3, 1], end=(), model_max_length=9)
    (ids,) = tokenizer.encode(["cat"])
    assert AutoTokenizer.from_pretrained(tmp_path)("cat").input_ids == [3, 1, *ids]
    assert read_tokenizer(tmp_path).special == tokenizer.special


def test_an_id_that_there_is_not_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no token with id 300"):
        write_tokenizer(own("bytes"), tmp_path, begin=[300], model_max_length=9)
    tokenizer = own("bytes")
    tokenizer.special = replace(tokenizer.special, sentinels=(5, 6, 4))
    write_tokenizer(tokenizer, tmp_path, model_max_length=9)
    assert read_tokenizer(tmp_path).special.sentinels == (5, 6, 4)


class TestOlderFiles:
    """What transformers wrote before version 5."""

    def test_added_tokens_and_special_tokens_map(self, tmp_path: Path) -> None:
        path = tmp_path / "gpt2"
        merges_only(path, gpt2)
        (path / "added_tokens.json").write_text(json.dumps({"<new>": 331, "word": 330}))
        (path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<new>"}))
        tokenizer = read_tokenizer(path)
        assert tokenizer.special.pad == 331
        assert tokenizer.vocab_size == 332
        reference = AutoTokenizer.from_pretrained(path)
        for text in ("a word b", "swords"):
            assert tokenizer.encode([text]) == [reference(text).input_ids]

    def test_tokens_with_flags(self, tmp_path: Path) -> None:
        path = tmp_path / "gpt2"
        merges_only(path, gpt2)
        token = {"content": "<mask>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
        update(path / "tokenizer_config.json", mask_token={**token, "__type": "AddedToken"})
        update(path / "tokenizer_config.json", added_tokens_decoder={"4": {**token, "special": True}})
        tokenizer = read_tokenizer(path)
        assert tokenizer.special.mask == 4
        assert tokenizer._backend.get_added_tokens_decoder()[4].lstrip

    def test_other_special_tokens(self, tmp_path: Path) -> None:
        path = tmp_path / "gpt2"
        gpt2(path)
        update(path / "tokenizer_config.json", additional_special_tokens=["<a>"])
        update(path / "tokenizer_config.json", extra_special_tokens={"image_token": "<b>"})
        tokenizer = read_tokenizer(path)
        assert tokenizer.vocab_size == 332
        assert tokenizer.decode([330, 331]) == ""
        assert [tokenizer._backend.id_to_token(i) for i in (330, 331)] == ["<a>", "<b>"]

    def test_config_names_what_the_tokenizer_does_not(self, tmp_path: Path) -> None:
        path = tmp_path / "general"
        general(path)
        settings = json.loads((path / "tokenizer_config.json").read_text())
        kept = {name: value for name, value in settings.items() if not name.endswith("_token")}
        (path / "tokenizer_config.json").write_text(json.dumps(kept))
        config = {"bos_token_id": 2, "eos_token_id": [3, 2], "pad_token_id": 9999, "decoder_start_token_id": 4}
        (path / "config.json").write_text(json.dumps(config))
        special = read_tokenizer(path).special
        assert (special.bos, special.eos, special.pad, special.start) == (2, 3, 3, 4)
        assert (special.begin, special.end, special.target_begin) == ((3, 2), (3,), ())

    @pytest.mark.parametrize(("add_bos", "add_eos"), [(False, False), (True, False), (False, True), (True, True)])
    def test_settings_of_bos_and_eos(self, tmp_path: Path, add_bos: bool, add_eos: bool) -> None:
        path = tmp_path / "gpt2"
        merges_only(path, gpt2)
        update(path / "tokenizer_config.json", add_bos_token=add_bos, add_eos_token=add_eos)
        special = read_tokenizer(path).special
        ids = AutoTokenizer.from_pretrained(path)("").input_ids
        assert [*special.begin, *special.end] == ids == [5] * (add_bos + add_eos)
        assert (bool(special.begin), bool(special.end)) == (add_bos, add_eos)


def update(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


def change(path: Path, keys: Sequence[str | int], value: Any) -> None:
    content = json.loads(path.read_text())
    *outer, last = keys
    node = content
    for key in outer:
        node = node[key]
    node[last] = value
    path.write_text(json.dumps(content))


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError, match=str(folder)) as error:
        read_tokenizer(folder)
    message = str(error.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message.removeprefix(str(folder))


class TestRefused:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        bert(tmp_path / "bert")
        return tmp_path / "bert"

    def test_nothing_there(self, tmp_path: Path) -> None:
        (tmp_path / "vocab.json").write_text("{}")
        (tmp_path / "pytorch_model.bin").write_bytes(b"")
        looked_for = "tokenizer.json, vocab.txt, vocab.json with merges.txt, spiece.model, tokenizer.model, "
        looked_for += "source.spm with target.spm with vocab.json"
        assert refusal(tmp_path) == f": no tokenizer; looked for {looked_for}"
        with pytest.raises(ValueError, match=f"tokenizer.dir={tmp_path}: no tokenizer; looked for"):
            PretrainedTokenizer(dir=str(tmp_path))

    def test_byte_pairs_of_other_words(self, tmp_path: Path) -> None:
        """Qwen's digits stand alone; without tokenizer.json nothing says so."""
        for name, content in (("vocab.json", "{}"), ("merges.txt", ""), ("config.json", '{"model_type": "qwen3"}')):
            (tmp_path / name).write_text(content)
        assert refusal(tmp_path) == "/vocab.json: expected tokenizer.json, since this family does not split like GPT-2"

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"tokenizer\.dir=.*nowhere: no such folder"):
            PretrainedTokenizer(dir=str(tmp_path / "nowhere"))

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "added_tokens.json"])
    def test_no_json(self, path: Path, name: str) -> None:
        (path / name).write_text('{"a": 1,\n "b"}')
        assert refusal(path) == f"/{name}, line 2: not JSON (Expecting ':' delimiter)"
        (path / name).write_text("[1]")
        assert refusal(path) == f"/{name}: expected an object, got list"
        (path / name).write_bytes(b"\xff")
        assert refusal(path).startswith(f"/{name}, line 1: not UTF-8")

    def test_not_a_tokenizer(self, path: Path) -> None:
        change(path / "tokenizer.json", ["model", "type"], "Nonsense")
        assert refusal(path).startswith("/tokenizer.json: this file, or another one in its folder, is invalid (")

    def test_ids_with_holes(self, path: Path) -> None:
        change(path / "tokenizer.json", ["model", "vocab", "the"], 900)
        size = read_size(path)
        assert refusal(path) == f"/tokenizer.json: {size} tokens, but their ids are not 0 to {size - 1}"

    def test_one_id_for_two_tokens(self, path: Path) -> None:
        change(path / "tokenizer.json", ["model", "vocab", "the"], 9)
        assert "their ids are not 0 to" in refusal(path)

    def test_an_added_token_elsewhere(self, path: Path) -> None:
        change(path / "tokenizer.json", ["added_tokens", 4], {**token_of(path, 4), "content": "<new>", "id": 999})
        assert refusal(path) == "/tokenizer.json: added token '<new>' cannot have id 999"

    def test_an_added_token_of_the_settings_elsewhere(self, path: Path) -> None:
        (path / "added_tokens.json").write_text(json.dumps({"<new>": 999}))
        assert refusal(path) == ": added token '<new>' cannot have id 999"

    def test_a_post_processor_with_other_tokens(self, path: Path) -> None:
        change(path / "tokenizer.json", ["post_processor", "special_tokens", "[CLS]", "ids"], [9])
        assert refusal(path) == "/tokenizer.json: the post-processor adds '[CLS]' with id 9, which is another token"
        change(path / "tokenizer.json", ["post_processor", "special_tokens", "[CLS]", "ids"], [999])
        assert refusal(path) == "/tokenizer.json: the post-processor adds '[CLS]' with id 999, which is no token"

    def test_no_token_for_the_unknown(self, path: Path) -> None:
        change(path / "tokenizer.json", ["model", "unk_token"], "[OTHER]")
        assert "[OTHER]" not in read_json(path)["model"]["vocab"]
        assert "unk" in refusal(path).lower()

    def test_no_end(self, path: Path) -> None:
        for name in ("tokenizer_config.json", "config.json"):
            (path / name).unlink()
        assert refusal(path) == ": tokenizer_config.json names neither eos_token nor sep_token"

    def test_a_start_that_there_is_not(self, path: Path) -> None:
        update(path / "config.json", decoder_start_token_id=9999)
        assert refusal(path) == "/config.json: decoder_start_token_id=9999: the tokenizer has no such token"

    def test_a_name_that_is_none(self, path: Path) -> None:
        update(path / "tokenizer_config.json", pad_token=7)
        assert refusal(path) == "/tokenizer_config.json: 7 is not a token"

    def test_special_tokens_of_ours_that_there_are_not(self, tmp_path: Path) -> None:
        write_tokenizer(own("bytes"), tmp_path, model_max_length=9)
        change(tmp_path / "tokenizer_config.json", ["triptych", "sep"], 262)
        assert refusal(tmp_path) == "/tokenizer_config.json: triptych: no token has id 262"
        change(tmp_path / "tokenizer_config.json", ["triptych"], {"other": 1})
        assert "other" in refusal(tmp_path)

    def test_a_word_twice(self, tmp_path: Path) -> None:
        (tmp_path / "vocab.txt").write_text("[PAD]\nthe\ncat\nthe\n")
        assert refusal(tmp_path) == "/vocab.txt, line 4: 'the' is a duplicate of line 2"

    @pytest.mark.parametrize("line", ["q xq", "alone", "a b c", ""])
    def test_merges_that_are_not_in_the_vocabulary(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "gpt2"
        merges_only(path, gpt2)
        lines = (path / "merges.txt").read_text().splitlines()
        lines.insert(3, line)
        (path / "merges.txt").write_text("\n".join(lines) + "\n")
        assert refusal(path) == f"/merges.txt, line 4: {line!r} is not a pair of tokens that form a token"

    def test_merges_in_tokenizer_json(self, tmp_path: Path) -> None:
        path = tmp_path / "gpt2"
        gpt2(path)
        change(path / "tokenizer.json", ["model", "merges", 0], ["zzz", "q"])
        assert "zzz" in refusal(path)

    def test_a_damaged_table_of_characters(self, tmp_path: Path) -> None:
        """The library panics."""
        path = tmp_path / "t5"
        t5(path)
        broken = {"type": "Precompiled", "precompiled_charsmap": "!"}
        change(path / "tokenizer.json", ["normalizer"], broken)
        assert "Precompiled" in refusal(path)

    def test_no_code_is_run(self, path: Path) -> None:
        (path / "evil.py").write_text(f"open({str(path / 'ran')!r}, 'w')")
        update(path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})
        read_tokenizer(path)
        assert not (path / "ran").exists()


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((path / "tokenizer.json").read_text())
    return content


def read_size(path: Path) -> int:
    return len(read_json(path)["model"]["vocab"])


def token_of(path: Path, i: int) -> dict[str, Any]:
    token: dict[str, Any] = read_json(path)["added_tokens"][i]
    return token
