"""SentencePiece models, against the SentencePiece library."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, MarianConfig, MarianMTModel, PegasusConfig, T5Config

from oracle import randomized
from predicting import in_double, predict
from triptych.data import Example, SpecialTokens, Tokenizer
from triptych.data.tokenizers.pretrained import read_tokenizer, write_tokenizer
from triptych.data.tokenizers.sentencepiece import SentencePieceModel
from triptych.interop import load_pretrained

TEXTS = [
    "the cat sat on the mat", "Übermäßig viele Äpfel: naïve café!", "日本語 and others", "don't do that, 1998-03-05",
    "s > / < s",
] * 8  # fmt: skip
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LLAMA = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 340, "character_coverage": 0.985}
OPTIONS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram of T5": T5,
    "unigram with bytes": {"byte_fallback": True, "vocab_size": 340, "character_coverage": 0.985},
    "unigram as it stands": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "unigram in lower case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "byte pairs": {"model_type": "bpe"},
    "byte pairs of LLaMA": {**LLAMA, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
}


def train(path: Path, texts: Sequence[str] = TEXTS, **options: Any) -> bytes:
    """A model in a file."""
    (path.parent / "texts").write_text("\n".join(texts))
    sentencepiece.SentencePieceTrainer.train(
        input=str(path.parent / "texts"),
        model_prefix=str(path.with_suffix("")),
        minloglevel=2,
        num_threads=1,  # more add up in another order each time
        **{"vocab_size": 120, "hard_vocab_limit": False, **options},
    )
    content = path.with_suffix(".model").read_bytes()
    path.write_bytes(content)
    return content


class Trained:
    """A model, here and there."""

    def __init__(self, path: Path, **options: Any) -> None:
        train(path, **options)
        self.reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
        eos, unk = self.reference.eos_id(), self.reference.unk_id()
        special = SpecialTokens(bos=eos, eos=eos, sep=eos, start=eos, pad=eos, unk=unk, mask=None, begin=(), end=())
        self.tokenizer = Tokenizer(SentencePieceModel.read(path).backend(), special)


@pytest.fixture(scope="module", params=OPTIONS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("models") / "m.model", **OPTIONS[request.param])


any_text = st.text(
    st.one_of(st.characters(exclude_categories=["Cs", "Mn", "Mc", "Me"]), st.sampled_from("the cat\n\t'/[]s日éß ")),
    max_size=20,
).filter(lambda text: not any(name in text.lower() for name in ("<unk>", "<s>", "</s>", "<pad>")))  # see TestFolders


class TestModel:
    @settings(max_examples=100)
    @given(text=any_text)
    @example(text="")
    @example(text=" ")
    @example(text="  the  cat \r\n ")
    @example(text=" ▁the▁ ▁")
    @example(text="\u00a0ﬁ ½ \u3000①")
    @example(text="don't")
    @example(text="<0x41> <0x")
    def test_ids_and_texts_are_those_of_the_library(self, trained: Trained, text: str) -> None:
        (ids,) = trained.tokenizer.encode([text])
        assert ids == trained.reference.encode(text)

    def test_texts(self, trained: Trained) -> None:
        for text in TEXTS:  # the library writes " ⁇ " for what is unknown
            ids = [i for i in trained.reference.encode(text) if not trained.reference.is_unknown(i)]
            assert trained.tokenizer.decode(ids) == trained.reference.decode(ids)

    def test_size_and_special_tokens(self, trained: Trained) -> None:
        reference = trained.reference
        assert trained.tokenizer.vocab_size == len(reference)
        special = {i for i in range(len(reference)) if reference.is_control(i) or reference.is_unknown(i)}
        assert {i for i, t in trained.tokenizer._backend.get_added_tokens_decoder().items() if t.special} == special


class TestFolders:
    """What transformers makes of a folder with a model alone."""

    def test_t5(self, tmp_path: Path) -> None:
        train(tmp_path / "spiece.model", **T5)
        T5Config().save_pretrained(tmp_path)
        tokenizer, reference = read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
        size = len(reference)
        assert tokenizer.vocab_size == size
        assert tokenizer.special == SpecialTokens(
            bos=1,
            eos=1,
            sep=1,
            start=0,
            pad=0,
            unk=2,
            mask=None,
            begin=(),
            end=(1,),
            sentinels=tuple(reference.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(100)])),
        )
        for text in [*TEXTS, "", " two  blanks \n"]:
            assert [*tokenizer.encode([text])[0], 1] == reference(text).input_ids

    def test_pegasus(self, tmp_path: Path) -> None:
        train(tmp_path / "spiece.model", **T5)
        PegasusConfig().save_pretrained(tmp_path)
        names = {"tokenizer_class": "PegasusTokenizer", "mask_token": "<mask_2>", "mask_token_sent": "<mask_1>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
        tokenizer, reference = read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
        assert tokenizer.vocab_size == len(reference)
        assert tokenizer.special == SpecialTokens(
            bos=1, eos=1, sep=1, start=0, pad=0, unk=105, mask=3, begin=(), end=(1,)
        )
        for text in TEXTS:
            assert [*tokenizer.encode([text])[0], 1] == reference(text).input_ids

    @pytest.mark.parametrize("add_eos", [False, True])
    def test_llama(self, tmp_path: Path, add_eos: bool) -> None:
        train(tmp_path / "tokenizer.model", **OPTIONS["byte pairs of LLaMA"])
        LlamaConfig().save_pretrained(tmp_path)
        around = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": add_eos}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(around))
        tokenizer, reference = read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
        end = (2,) if add_eos else ()
        assert tokenizer.special == SpecialTokens(
            bos=1, eos=2, sep=2, start=1, pad=2, unk=0, mask=None, begin=(1,), end=end
        )
        for text in [*TEXTS, "", "Ω\n\tx", "two  blanks "]:  # at the beginning, transformers 5.23 drops a blank
            assert [1, *tokenizer.encode([text])[0], *end] == reference(text).input_ids

    @pytest.mark.parametrize("name", ["spiece.model", "tokenizer.model"])
    def test_write_and_read(self, tmp_path: Path, name: str) -> None:
        train(tmp_path / name, **OPTIONS["byte pairs of LLaMA"] if name == "tokenizer.model" else T5)
        tokenizer = read_tokenizer(tmp_path)
        write_tokenizer(tokenizer, tmp_path, model_max_length=9)
        again, reference = read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
        assert (again.sha256, again.special) == (tokenizer.sha256, tokenizer.special)
        special = tokenizer.special
        for text in [*TEXTS, "", "  two  blanks ", "Ω\n"]:
            ids = [*special.begin, *tokenizer.encode([text])[0], *special.end]
            assert reference(text).input_ids == ids
            assert reference.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)

    @pytest.mark.parametrize("name", ["spiece.model", "tokenizer.model"])
    def test_text_never_becomes_a_special_token(self, tmp_path: Path, name: str) -> None:
        train(tmp_path / name, **OPTIONS["byte pairs of LLaMA"] if name == "tokenizer.model" else T5)
        tokenizer = read_tokenizer(tmp_path)
        special = {i for i, t in tokenizer._backend.get_added_tokens_decoder().items() if t.special}
        for look_alike in ("<s>", "</s>", "<pad>", "<extra_id_0>", "<extra_id_99>"):
            for text in (look_alike, f"a {look_alike} b", f"a{look_alike}{look_alike}b"):
                (ids,) = tokenizer.encode([text])
                assert not set(ids) & (special - {tokenizer.special.unk}), text


@pytest.fixture
def marian(tmp_path: Path) -> Path:
    """A folder of MarianMT: two models, and a vocabulary without some of their pieces."""
    pieces: list[str] = []
    for side, half in (("source", slice(None)), ("target", slice(1, 3))):
        (tmp_path / side).mkdir()
        (tmp_path / f"{side}.spm").write_bytes(train(tmp_path / side / "m.model", TEXTS[half], vocab_size=60))
        model = SentencePieceModel.read(tmp_path / f"{side}.spm")
        pieces += [piece.text for piece in model.pieces[3:] if piece.text not in ("t", "ä", *pieces)]
    names = ["</s>", "<unk>", *sorted(pieces), ">>de<<", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    pad = len(names) - 1
    MarianConfig(vocab_size=len(names), pad_token_id=pad, decoder_start_token_id=pad).save_pretrained(tmp_path)
    return tmp_path


class TestMarian:
    def test_two_models_and_one_vocabulary(self, marian: Path) -> None:
        tokenizer, reference = read_tokenizer(marian), AutoTokenizer.from_pretrained(marian)
        assert type(reference).__name__ == "MarianTokenizer"
        pad = len(reference) - 1
        assert tokenizer.special == SpecialTokens(
            bos=0, eos=0, sep=0, start=pad, pad=pad, unk=1, mask=None, begin=(), end=(0,)
        )
        differ = 0
        for text in [*TEXTS, "", " two  blanks\n", "Ω", "日", "ßß cat", ">>de<< the cat", ">>de<<the cat"]:
            (source,), (target,) = tokenizer.encode([text]), tokenizer.encode([text], as_target=True)
            assert [*source, 0] == reference(text).input_ids
            assert [*target, 0] == reference(text_target=text).input_ids
            assert tokenizer.decode(target).strip() == reference.decode(target, skip_special_tokens=True)
            differ += source != target
        assert differ > 5

    @pytest.mark.parametrize("look_alike", ["</s>", "<pad>"])
    def test_text_never_becomes_a_special_token(self, marian: Path, look_alike: str) -> None:
        tokenizer = read_tokenizer(marian)
        for as_target in (False, True):
            for ids in tokenizer.encode([look_alike, f"a{look_alike}b", f"a {look_alike} b"], as_target):
                assert not set(ids) & (tokenizer.special_ids - {1})

    def test_a_checkpoint_keeps_it(self, marian: Path) -> None:
        tokenizer = read_tokenizer(marian)
        again = Tokenizer.from_json(tokenizer.to_json(), tokenizer.special)
        assert again.sha256 == tokenizer.sha256
        for as_target in (False, True):
            assert again.encode(TEXTS, as_target) == tokenizer.encode(TEXTS, as_target)

    def test_write_and_read(self, marian: Path, tmp_path: Path) -> None:
        tokenizer, folder = read_tokenizer(marian), tmp_path / "written"
        folder.mkdir()
        write_tokenizer(tokenizer, folder, model_max_length=9)
        again, reference = read_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
        assert (again.sha256, again.special) == (tokenizer.sha256, tokenizer.special)
        assert reference.model_max_length == 9
        for text in TEXTS:
            assert reference(text).input_ids == [*tokenizer.encode([text])[0], 0]
            assert reference(text_target=text).input_ids == [*tokenizer.encode([text], as_target=True)[0], 0]

    def test_a_translator_reads_and_writes_as_theirs(self, marian: Path) -> None:
        """The whole way: sources and targets of a batch, and what is written."""
        config = MarianConfig.from_pretrained(marian)
        sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
        for key, value in {**sizes, "encoder_attention_heads": 2, "decoder_attention_heads": 2}.items():
            setattr(config, key, value)
        model = randomized(MarianMTModel(config))
        model.save_pretrained(marian)
        task, reference = in_double(load_pretrained(marian).task), AutoTokenizer.from_pretrained(marian)
        (item,) = task.encode([Example("the cat sat", target="Äpfel: café!")])
        assert item.source.tolist() == reference("the cat sat").input_ids
        assert item.labels.tolist() == reference(text_target="Äpfel: café!").input_ids
        assert item.inputs.tolist() == [config.decoder_start_token_id, *item.labels.tolist()[:-1]]
        task.max_new_tokens = 8
        sources = reference(TEXTS[:4], return_tensors="pt", padding=True)
        outputs = model.double().generate(**sources, max_new_tokens=8, num_beams=1, do_sample=False)
        expected = reference.batch_decode(outputs, skip_special_tokens=True)
        assert [text.strip() for text in predict(task, TEXTS[:4])] == [text.strip() for text in expected]

    def test_damage(self, marian: Path) -> None:
        (marian / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
        with pytest.raises(ValueError, match="separate_vocabs is not supported; expected a shared vocabulary"):
            read_tokenizer(marian)
        (marian / "tokenizer_config.json").unlink()
        (marian / "target.spm").write_bytes(b"\x00")
        with pytest.raises(ValueError, match=r"target\.spm: not a SentencePiece model"):
            read_tokenizer(marian)


class TestRefused:
    def test_cut_files(self, tmp_path: Path) -> None:
        content = train(tmp_path / "spiece.model")
        for length in (0, 1, 2, 5, 100, len(content) // 2, len(content) - 1):
            (tmp_path / "spiece.model").write_bytes(content[:length])
            with pytest.raises(ValueError, match=r"spiece\.model: (not a SentencePiece model|this file, or another) "):
                read_tokenizer(tmp_path)

    def test_text(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")  # another format by the same name
        with pytest.raises(ValueError, match=r"tokenizer\.model: not a SentencePiece model"):
            read_tokenizer(tmp_path)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"\n\x05\n\x01a\x18\x07", r"not a SentencePiece model \(7 is not a valid Kind\)"),
            (b"\n\x05\n\x01\xff\x18\x02", r"not a SentencePiece model \(a piece is not UTF-8\)"),
            (b"\n\x05\n\x01a\x18\x01", r"not a SentencePiece model \(expected one unknown piece\)"),
            (
                b"\n\x05\n\x01a\x18\x02\x12\x02\x18\x09",
                r"SentencePiece model type 9 is not supported; expected 1 \(unigram\) or 2",
            ),
        ],
    )
    def test_what_its_library_would_pass_over(self, content: bytes, message: str) -> None:
        """Field 1 of the model is a piece; of a piece, field 1 is its text and field 3 its kind."""
        with pytest.raises(ValueError, match=rf"^{message}"):
            SentencePieceModel.parse(content)

    @pytest.mark.parametrize("model_type", ["word", "char"])
    def test_other_kinds(self, tmp_path: Path, model_type: str) -> None:
        train(tmp_path / "spiece.model", model_type=model_type)
        with pytest.raises(ValueError, match=r"type [34] is not supported; expected 1 \(unigram\) or 2 \(BPE\)"):
            read_tokenizer(tmp_path)
