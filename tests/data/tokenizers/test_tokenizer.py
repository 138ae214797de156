"""Text to ids and back."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from triptych.data import (
    BPE,
    Bytes,
    Characters,
    SpecialTokens,
    Tokenizer,
    TrainableTokenizer,
    TrainedTokenizer,
    Unigram,
    WordLevel,
    WordPiece,
)
from triptych.data.tokenizers.sentencepiece import SentencePieceModel
from triptych.data.tokenizers.tokenizer import AT_ONCE, BOS, EOS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from triptych.data.tokenizers.trainable import _count_words, _word_level

CORPUS = [
    "the cat sat on the mat\n",
    "  the <eos> of\tthe\r\nline\x85",
    "\ufeff5 März 1998: naïve café, 日本語 👩‍👩‍👧 <pad><unk>",
] * 5

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: Bytes().train(CORPUS),
    "characters": lambda: Characters().train(CORPUS),
    "bpe": lambda: BPE(vocab_size=300).train(CORPUS),
    "unigram": lambda: Unigram(vocab_size=320).train(CORPUS),
}
TOKENIZERS = {name: make() for name, make in KINDS.items()}


def count(tokenizer: Tokenizer, table: np.ndarray, ids: list[int]) -> int:
    """What the tokens of a text stand for, one by one from the table."""
    ends_in_space = tokenizer.ends_in_space()
    before = [tokenizer.special.bos, *ids]
    return sum(int(table[int(ends_in_space[last]), i]) for last, i in pairwise(before))


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
seen_text = st.text(sorted(set("".join(CORPUS))), max_size=30)
every_kind = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
byte_level = pytest.mark.parametrize("tokenizer", [TOKENIZERS["bytes"], TOKENIZERS["bpe"]], ids=["bytes", "bpe"])


class TestRoundTrip:
    @byte_level
    @given(texts=st.lists(any_text, max_size=5))
    @example(texts=["\r\n \x85\u2028\ufeff\x00", "", "  two  spaces ", "e\u0301 é"])
    def test_of_any_text(self, tokenizer: Tokenizer, texts: list[str]) -> None:
        assert [tokenizer.decode(ids) for ids in tokenizer.encode(texts)] == texts

    @given(text=any_text)
    @example(text=" \r\n\n \x00<0x41>  ##a <eos><unk>e\u0301")
    def test_of_unigrams(self, text: str) -> None:
        """All but U+2581, which stands for a blank."""
        (ids,) = TOKENIZERS["unigram"].encode([text])
        assert TOKENIZERS["unigram"].decode(ids) == text.replace("\u2581", " ")
        assert UNK not in ids

    @given(text=seen_text)
    @example(text="\n\n\r\n\x85\x85")
    def test_of_seen_characters(self, text: str) -> None:
        (ids,) = TOKENIZERS["characters"].encode([text])
        assert len(ids) == len(text)
        assert TOKENIZERS["characters"].decode(ids) == text

    def test_characters_are_numbered_in_their_order(self) -> None:
        seen = "".join(sorted(set("".join(CORPUS))))
        numbers = range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + len(seen))
        assert TOKENIZERS["characters"].encode([seen]) == [list(numbers)]

    @given(text=any_text)
    def test_an_unseen_character_becomes_unk(self, text: str) -> None:
        (ids,) = TOKENIZERS["characters"].encode([text])
        seen = set("".join(CORPUS))
        assert [i == UNK for i in ids] == [character not in seen for character in text]
        assert TOKENIZERS["characters"].decode(ids) == "".join(c for c in text if c in seen)

    @given(text=any_text)
    def test_bytes_are_the_bytes(self, text: str) -> None:
        """One token a byte, equal for equal bytes and different for different ones."""
        (ids,) = TOKENIZERS["bytes"].encode([text])
        content = text.encode()
        assert len(ids) == len(content)
        assert len(set(zip(ids, content, strict=True))) == len(set(ids)) == len(set(content))


@every_kind
class TestSpecialTokens:
    def test_come_first(self, tokenizer: Tokenizer) -> None:
        assert list(range(6)) == [PAD, BOS, EOS, SEP, UNK, MASK]
        vocabulary = tokenizer._backend.get_vocab()
        assert [vocabulary[token] for token in SPECIAL_TOKENS] == list(range(6))
        assert sorted(vocabulary.values()) == list(range(tokenizer.vocab_size))

    @pytest.mark.parametrize("special", SPECIAL_TOKENS)
    def test_text_never_becomes_one(self, tokenizer: Tokenizer, special: str) -> None:
        """Even where every character was seen in training."""
        tokenizer = (
            Characters().train([*CORPUS, *SPECIAL_TOKENS]) if tokenizer is TOKENIZERS["characters"] else tokenizer
        )
        for text in (special, f"a {special}", special * 2):
            (ids,) = tokenizer.encode([text])
            assert min(ids) >= len(SPECIAL_TOKENS)
            assert tokenizer.decode(ids) == text

    @given(text=seen_text, specials=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=5))
    def test_are_left_out_of_decoded_text(
        self, tokenizer: Tokenizer, text: str, specials: list[tuple[int, int]]
    ) -> None:
        (ids,) = tokenizer.encode([text])
        for special, place in specials:
            ids.insert(place, special)
        assert tokenizer.decode(ids) == text


@every_kind
class TestAnyKind:
    @given(text=seen_text)
    def test_num_bytes_sums_to_the_length_in_utf8(self, tokenizer: Tokenizer, text: str) -> None:
        (ids,) = tokenizer.encode([text])
        sizes = tokenizer.num_bytes()
        assert count(tokenizer, sizes, ids) == len(text.encode())
        assert (sizes[:, : len(SPECIAL_TOKENS)] == 0).all()
        assert (sizes[:, len(SPECIAL_TOKENS) :] > 0).all()

    def test_json_round_trip(self, tokenizer: Tokenizer) -> None:
        again = Tokenizer.from_json(tokenizer.to_json())
        texts = [*CORPUS, "unseen: Ω", "<eos>"]
        assert again.encode(texts) == tokenizer.encode(texts)
        assert again.sha256 == tokenizer.sha256

    def test_training_is_a_function_of_the_texts(self, tokenizer: Tokenizer) -> None:
        kind = next(name for name, other in TOKENIZERS.items() if other is tokenizer)
        assert KINDS[kind]().sha256 == tokenizer.sha256


def by_the_library(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    backend = Backend.from_str(tokenizer.to_json())
    backend.encode_special_tokens = True
    return [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]


class TestEachPartOnce:
    """Bytes are looked up in a table, and different characters or words are encoded once; the library, which encodes
    whole texts, is what they must agree with."""

    KINDS = (
        Bytes(num_sentinels=2),
        Characters(num_sentinels=2),
        WordLevel(vocab_size=15, num_sentinels=2),
        WordLevel(lowercase=True, min_frequency=2),
        WordLevel(split_punctuation=True, lowercase=True),
        WordPiece(vocab_size=90, lowercase=True),
    )
    a_word = st.sampled_from([*SPECIAL_TOKENS, "<extra_id_0>", "the", "THE", "cat.", "Σ", "ΑΣ", "İ", "\x1c", "\u180e"])
    spaced = st.lists(a_word | any_text | st.sampled_from([" ", "\n", "\x85", "\u2028", "\ufeff"])).map("".join)

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    @given(texts=st.lists(spaced | seen_text, max_size=5))
    def test_as_the_library_does(self, kind: TrainableTokenizer, texts: list[str]) -> None:
        trained = kind.train(CORPUS)
        for tokenizer in (trained, Tokenizer.from_json(trained.to_json(), trained.special)):
            assert tokenizer.encode(texts) == by_the_library(tokenizer, texts)
            assert (tokenizer._cut is None) == (tokenizer._ids_of_bytes is not None)

    @pytest.mark.parametrize("kind", KINDS[2:], ids=str)
    @given(texts=st.lists(spaced, min_size=1, max_size=5))
    def test_words_are_counted_as_by_the_library(self, kind: WordLevel | WordPiece, texts: list[str]) -> None:
        reader = _word_level(" ", kind.lowercase, getattr(kind, "split_punctuation", True))
        trainer = trainers.WordLevelTrainer(vocab_size=10**6, min_frequency=2, special_tokens=[], show_progress=False)
        mine = _count_words(reader, texts, 2)
        reader.train_from_iterator(texts, trainer)
        assert mine == sorted(reader.get_vocab(), key=reader.token_to_id)

    def test_longer_tokens_are_left_to_the_library(self) -> None:
        backend = Backend.from_str(Bytes().train([]).to_json())
        backend.add_tokens(["ab"])
        changed = (Tokenizer(backend), BPE(vocab_size=263).train(CORPUS), BPE(vocab_size=262, lowercase=True).train([]))
        for tokenizer in changed:
            assert tokenizer.encode(["ab THE the"]) == by_the_library(tokenizer, ["ab THE the"])
            assert tokenizer._ids_of_bytes is None

    @pytest.mark.parametrize("change", ["normalizer", "unk", "pre_tokenizer", "added"])
    def test_others_are_left_to_the_library(self, change: str) -> None:
        backend = Backend.from_str(Characters().train(["abc"]).to_json())
        if change == "normalizer":
            backend.normalizer = normalizers.Lowercase()
        elif change == "unk":
            backend.model = models.WordLevel(backend.get_vocab(), unk_token="a")
        elif change == "pre_tokenizer":
            backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        else:
            backend.add_tokens(["bc"])
        tokenizer = Tokenizer(backend)
        texts = ["A", "b c", "x", "abc", "a"]
        assert tokenizer.encode(texts) == [e.ids for e in backend.encode_batch(texts, add_special_tokens=False)]
        assert tokenizer.encode(texts) != Characters().train(["abc"]).encode(texts)


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_many_texts_are_encoded_as_each_alone(kind: str) -> None:
    tokenizer = KINDS[kind]()
    texts = [f"the cat {i} sat" * (i % 3) for i in range(2 * AT_ONCE + 1)]
    encoded = tokenizer.encode(texts)
    assert len(encoded) == len(texts)
    for i in (0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE):
        assert tokenizer.encode([texts[i]]) == [encoded[i]]


@given(seen_text, st.floats(0, 0.9), st.integers(0, 5))
def test_merges_that_are_left_out(text: str, share: float, seed: int) -> None:
    """The text is the same, and its tokens those of the merges that are left, one by one in their order."""
    whole = TOKENIZERS["bpe"]
    thin = whole.with_bpe_dropout(share, (seed,))
    merges = [tuple(merge) for merge in json.loads(thin.to_json())["model"]["merges"]]
    table = json.loads(whole.to_json())["model"]
    assert merges == [merge for merge in map(tuple, table["merges"]) if merge in set(merges)]
    expected = []
    for word, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text):
        parts = list(word)
        for pair in merges:
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == pair:
                    parts[i : i + 2] = ["".join(pair)]
                i += 1
        expected += [table["vocab"][part] for part in parts]
    (ids,) = thin.encode([text])
    assert ids == expected
    assert thin.decode(ids) == whole.decode(whole.encode([text])[0])
    assert thin.vocab_size == whole.vocab_size


def test_how_many_merges_are_left_out() -> None:
    tokenizer = BPE(vocab_size=4000).train([" ".join(map(str, range(20_000)))])
    total = len(json.loads(tokenizer.to_json())["model"]["merges"])
    left = len(json.loads(tokenizer.with_bpe_dropout(0.3, (1, 2)).to_json())["model"]["merges"])
    assert total > 3000
    assert abs(left / total - 0.7) < 4 * (0.3 * 0.7 / total) ** 0.5
    assert tokenizer.with_bpe_dropout(0, (1,)).to_json() == tokenizer.to_json()


def test_two_models_lose_merges_each() -> None:
    tokenizer = BPE(vocab_size=300, joint=False).train(CORPUS, [text.upper() for text in CORPUS])
    thin = tokenizer.with_bpe_dropout(0.9, (1,))
    for as_target, text in ((False, CORPUS[0]), (True, CORPUS[0].upper())):
        (before,), (after,) = tokenizer.encode([text], as_target), thin.encode([text], as_target)
        assert len(after) > len(before)
        assert thin.decode(after) == tokenizer.decode(before)


@pytest.mark.parametrize("kind", ["characters", "bytes", "unigram"])
def test_without_merges_none_can_be_left_out(kind: str) -> None:
    with pytest.raises(ValueError, match=r"batch\.bpe_dropout=0\.1: this tokenizer has no merges; .* tokenizer=bpe"):
        TOKENIZERS[kind].with_bpe_dropout(0.1, (1,))


@every_kind
def test_two_ids_are_exchanged(tokenizer: Tokenizer) -> None:
    """And nothing else: texts, their tokens and what is special stay as they are."""
    last = tokenizer.vocab_size - 1
    other = tokenizer.with_swapped_ids(EOS, last)
    places = {EOS: last, last: EOS}
    assert other.special == replace(tokenizer.special, eos=last, end=(last,))
    assert other.vocab_size == tokenizer.vocab_size
    for text in [*CORPUS, tokenizer.decode([last]), "<eos>"]:
        (before,), (after,) = tokenizer.encode([text]), other.encode([text])
        assert after == [places.get(i, i) for i in before]
        assert other.decode(after) == tokenizer.decode(before)
    assert other.with_swapped_ids(last, EOS).encode(CORPUS) == tokenizer.encode(CORPUS)
    unknown = tokenizer.with_swapped_ids(UNK, last)
    (ids,) = unknown.encode(["\U00010348"])
    assert ids == [{UNK: last, last: UNK}.get(i, i) for i in tokenizer.encode(["\U00010348"])[0]]
    assert json.loads(unknown.to_json())["model"].get("unk_id") in (None, last)


def test_tokens_that_were_added_keep_their_ids() -> None:
    backend = Backend.from_str(TOKENIZERS["bpe"].to_json())
    backend.add_tokens(["mat, the"])
    tokenizer = Tokenizer(backend)
    last = tokenizer.last_of_model
    assert last == tokenizer.vocab_size - 2
    (before,), (after,) = (t.encode(["the mat, the mat"]) for t in (tokenizer, tokenizer.with_swapped_ids(EOS, last)))
    assert last + 1 in before
    assert after == [EOS if i == last else i for i in before]


def test_the_hash_tells_tokenizers_apart() -> None:
    hashes = {tokenizer.sha256 for tokenizer in TOKENIZERS.values()} | {Characters().train(["abc"]).sha256}
    assert len(hashes) == 5


LINES = ["a bé\n\n  a\r\n日本 é\t\n \n ab  b\x0b\x1cΩ", "of the \n of the \n", "\u3000\u3000日\x85\xa0"] * 5


def across_words() -> Tokenizer:
    """Byte pairs that are merged across white space: a token may hold several words."""
    backend = BPE(vocab_size=262).train([])._backend
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.model = models.BPE()
    backend.train_from_iterator(LINES, trainer)
    return Tokenizer(backend)


COUNTED = {
    "bytes": Bytes().train(LINES),
    "characters": Characters().train(LINES),
    "bpe": BPE(vocab_size=300).train(LINES),
    "unigram": Unigram(vocab_size=320).train(LINES),
    "bpe across words": across_words(),
}
BLANKS = [character for character in map(chr, range(0x110000)) if character.isspace()]
CUT_BLANKS = [character for character in BLANKS if not character.isascii()]  # a byte-level tokenizer may cut them
ascii_blanks = st.sampled_from([character for character in BLANKS if character.isascii()])
lines = st.lists(
    st.one_of(
        st.sampled_from(["a", "b", "é", "日", "Ω", " ", "\n", "\r\n", "of the \n"]),
        ascii_blanks,
        st.characters(exclude_categories=["Cs"], exclude_characters=CUT_BLANKS),
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize("kind", COUNTED)
class TestCounts:
    @settings(max_examples=100)
    @given(text=lines)
    @example(text="a b\n")
    def test_sum_to_those_of_the_text(self, kind: str, text: str) -> None:
        tokenizer = COUNTED[kind]
        (ids,) = tokenizer.encode([text])
        if kind == "characters":  # one that was never seen is no blank
            text = "".join(character if character in "".join(LINES) else "?" for character in text)
        assert count(tokenizer, tokenizer.num_characters(), ids) == len(text)
        assert count(tokenizer, tokenizer.num_words(), ids) == len(text.split()) + text.count("\n")
        assert count(tokenizer, tokenizer.num_words(), [*ids, EOS]) == len(text.split()) + text.count("\n") + 1

    @settings(max_examples=50)
    @given(first=lines, second=lines)
    def test_a_line_after_the_end_of_another(self, kind: str, first: str, second: str) -> None:
        tokenizer = COUNTED[kind]
        one, other = tokenizer.encode([first, second])
        both = count(tokenizer, tokenizer.num_words(), [*one, EOS, *other])
        assert both == count(tokenizer, tokenizer.num_words(), one) + 1 + count(tokenizer, tokenizer.num_words(), other)

    def test_special_tokens_are_no_text(self, kind: str) -> None:
        tokenizer = COUNTED[kind]
        silent = [PAD, BOS, SEP, MASK]
        assert not tokenizer.num_words()[:, silent].any()
        assert tokenizer.num_characters()[1, : len(SPECIAL_TOKENS)].tolist() == [0, 0, 0, 0, 1, 0]  # unk is one
        assert tokenizer.num_words()[:, [EOS, UNK]].tolist() == [[1, 0], [1, 1]]


class TestBlanksBeyondASCII:
    """str.isspace decides, where a token holds the whole of the blank."""

    @pytest.mark.parametrize("blank", CUT_BLANKS)
    def test_separate_words_where_they_are_one_token(self, blank: str) -> None:
        text = f"a{blank}b"
        for tokenizer in (Characters().train([text]), BPE(vocab_size=266).train([blank] * 9)):
            (ids,) = tokenizer.encode([text])
            assert len(ids) == 3
            assert count(tokenizer, tokenizer.num_words(), ids) == 2

    @pytest.mark.parametrize("blank", CUT_BLANKS)
    def test_are_part_of_a_word_where_they_are_cut(self, blank: str) -> None:
        (ids,) = COUNTED["bytes"].encode([f"a{blank}b"])
        assert count(COUNTED["bytes"], COUNTED["bytes"].num_words(), ids) == 1


class TestBytePairs:
    @pytest.mark.parametrize("vocab_size", [262, 263, 280])
    def test_has_the_size_asked_for(self, vocab_size: int) -> None:
        assert BPE(vocab_size=vocab_size).train(CORPUS).vocab_size == vocab_size

    def test_merges_what_is_frequent(self) -> None:
        """The pairs of "aaab" * n: "aa" first, then what is left to merge within the word."""
        tokenizer = BPE(vocab_size=263).train(["aaaa"])
        assert tokenizer.encode(["aaaa", "b"]) == [[262, 262], TOKENIZERS["bpe"].encode(["b"])[0]]

    @pytest.mark.parametrize("vocab_size", [0, 100, 261])
    def test_rejects_less_than_the_bytes(self, vocab_size: int) -> None:
        with pytest.raises(ValueError, match=rf"tokenizer\.vocab_size={vocab_size}: expected at least 262"):
            BPE(vocab_size=vocab_size)


phrases = st.lists(st.text("abcdeé日👩", min_size=1, max_size=6), max_size=6).map(" ".join)


def gpt2() -> Tokenizer:
    """Byte pairs, one special token, at the end."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    backend.add_special_tokens(["<|endoftext|>"])
    end = backend.get_vocab_size() - 1
    layout = dict.fromkeys(("bos", "eos", "sep", "start", "pad"), end)
    return Tokenizer(backend, SpecialTokens(**layout, unk=None, mask=None, begin=(), end=()))


def llama() -> Tokenizer:
    """SentencePiece's byte pairs: a blank is "▁", a character that is not known its bytes."""
    pieces = [*"▁abcdeé", "ab", "▁a", "▁ab"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab")]
    model = models.BPE({piece: i for i, piece in enumerate(vocabulary)}, merges, byte_fallback=True, unk_token="<unk>")
    backend = Backend(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(vocabulary[:3])
    special = SpecialTokens(bos=1, eos=2, sep=2, start=1, pad=0, unk=0, mask=None, begin=(1,), end=())
    return Tokenizer(backend, special)


def t5() -> Tokenizer:
    """SentencePiece's unigrams, with sentinels that nothing but the library's own list calls special."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=names, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(["abcde é日👩", "abc de", "abab cde"] * 5, trainer)
    backend.add_special_tokens(["<extra_id_0>", "<extra_id_1>"])
    return Tokenizer(backend, SpecialTokens(bos=0, eos=1, sep=1, start=0, pad=0, unk=2, mask=None, begin=(), end=(1,)))


def bert() -> Tokenizer:
    """WordPiece."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*names, *"abcdeé日👩,", *(f"##{c}" for c in "abcdeé日👩"), "ab", "##ab"]
    backend = Backend(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    backend.add_special_tokens(names)
    special = SpecialTokens(bos=2, eos=3, sep=3, start=2, pad=0, unk=1, mask=4, begin=(2,), end=(3,))
    return Tokenizer(backend, special)


FAMILIES = {"gpt2": gpt2(), "llama": llama(), "t5": t5(), "bert": bert()}
every_family = pytest.mark.parametrize("family", FAMILIES)


class TestFamilies:
    """Tokenizers like those of published families: other special tokens, other ways to write a blank and a byte."""

    @pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
    @given(text=phrases)
    @example(text="ab 日")
    def test_counts_sum_to_those_of_the_text(self, family: str, text: str) -> None:
        """SentencePiece puts a blank before a text."""
        tokenizer = FAMILIES[family]
        (ids,) = tokenizer.encode([text])
        assert tokenizer.decode(ids) == text
        read = text if family == "gpt2" or not ids else f" {text}"
        assert count(tokenizer, tokenizer.num_bytes(), ids) == len(read.encode())
        assert count(tokenizer, tokenizer.num_characters(), ids) == len(read)
        assert count(tokenizer, tokenizer.num_words(), [*ids, tokenizer.special.eos]) == len(text.split()) + 1

    @given(text=phrases)
    def test_counts_of_word_pieces(self, text: str) -> None:
        """What stands between the words is not in the tokens, and is counted all the same."""
        tokenizer = FAMILIES["bert"]
        (ids,) = tokenizer.encode([text])
        assert tokenizer.decode(ids) == text
        assert count(tokenizer, tokenizer.num_bytes(), ids) == len(text.encode())
        assert count(tokenizer, tokenizer.num_characters(), ids) == len(text)
        assert count(tokenizer, tokenizer.num_words(), ids) == len(text.split())

    @every_family
    def test_special_tokens_are_no_text(self, family: str) -> None:
        tokenizer = FAMILIES[family]
        special = tokenizer.special
        assert set(tokenizer.text_ids) == set(range(tokenizer.vocab_size)) - tokenizer.special_ids
        assert special.ids <= tokenizer.special_ids
        assert not tokenizer.num_bytes()[:, list(tokenizer.special_ids)].any()
        assert (tokenizer.num_bytes()[:, tokenizer.text_ids] > 0).all()
        characters = {i: int(tokenizer.num_characters()[1, i]) for i in tokenizer.special_ids}
        assert characters == {i: int(i == special.unk) for i in tokenizer.special_ids}
        assert tokenizer.num_words()[0, special.eos] == 1

    @every_family
    @given(text=phrases, places=st.lists(st.integers(0, 40), max_size=5))
    def test_special_tokens_are_left_out_of_decoded_text(self, family: str, text: str, places: list[int]) -> None:
        tokenizer = FAMILIES[family]
        (ids,) = tokenizer.encode([text])
        plain = tokenizer.decode(ids)
        for special, place in zip(tokenizer.special_ids, places, strict=False):
            ids.insert(place, special)
        assert tokenizer.decode(ids) == plain

    @every_family
    def test_come_back_from_plain_containers(self, family: str) -> None:
        tokenizer = FAMILIES[family]
        special = SpecialTokens.from_dict(json.loads(json.dumps(tokenizer.special.to_dict())))
        assert special == tokenizer.special
        again = Tokenizer.from_json(tokenizer.to_json(), special)
        assert again.special_ids == tokenizer.special_ids
        assert again.num_bytes().tolist() == tokenizer.num_bytes().tolist()

    def test_sentinels_of_the_library_alone_are_special(self) -> None:
        tokenizer = FAMILIES["t5"]
        assert tokenizer.special_ids == {0, 1, 2, tokenizer.vocab_size - 2, tokenizer.vocab_size - 1}

    def test_an_added_token_that_is_text_stands_for_itself(self) -> None:
        backend = Backend.from_str(FAMILIES["gpt2"].to_json())
        backend.add_tokens(["▁ é"])
        tokenizer = Tokenizer(backend, FAMILIES["gpt2"].special)
        assert tokenizer.num_bytes()[0, -1] == len("▁ é".encode())

    def test_one_beyond_the_vocabulary_is_rejected(self) -> None:
        size = FAMILIES["bert"].vocab_size
        with pytest.raises(ValueError, match=rf"token id {size}, but the vocabulary has {size} tokens"):
            Tokenizer.from_json(FAMILIES["bert"].to_json(), SpecialTokens(end=(3, size)))


WORDS = ["the", "cat", "<unk>", "<eos>", "日本", "na\u00efve,", "##s"]
BLANK = st.sampled_from([*BLANKS, " ", " \n ", "\r\n"])
running_text = st.lists(st.one_of(st.sampled_from([*WORDS, "dog"]), BLANK), max_size=40).map("".join)


def as_written(text: str) -> str:
    """The words of each line with a blank between them."""
    return "\n".join(" ".join(line.split()) for line in text.split("\n"))


class TestWords:
    TOKENIZER = WordLevel().train(["the cat \n the\n", " ".join(WORDS) * 2, "of\n"])

    @settings(max_examples=50)
    @given(text=running_text)
    @example(text=" the <eos> \n\x1ccat ##s\r\n日本\n")
    def test_a_token_is_a_word_or_the_end_of_a_line(self, text: str) -> None:
        (ids,) = self.TOKENIZER.encode([text])
        assert len(ids) == len(text.split()) + text.count("\n")
        (tokens,) = ([word for line in text.split("\n") for word in [*line.split(), "\n"]][:-1],)
        vocabulary = self.TOKENIZER._backend.get_vocab()
        assert ids == [UNK if token in SPECIAL_TOKENS else vocabulary.get(token, UNK) for token in tokens]
        known = [token for token, i in zip(tokens, ids, strict=True) if i != UNK]
        assert self.TOKENIZER.decode(ids) == as_written(" ".join(known))
        assert self.TOKENIZER.begins_word(ids).all()

    @settings(max_examples=50)
    @given(text=st.lists(st.sampled_from(["the", "cat", "日本", " ", "\n"]), max_size=40).map("".join))
    def test_counts_are_those_of_the_text_as_it_is_written(self, text: str) -> None:
        tokenizer, written = WordLevel().train([text]), as_written(text)
        (ids,) = tokenizer.encode([text])
        assert tokenizer.decode(ids) == written
        assert count(tokenizer, tokenizer.num_bytes(), ids) == len(written.encode())
        assert count(tokenizer, tokenizer.num_characters(), ids) == len(written)
        assert count(tokenizer, tokenizer.num_words(), ids) == len(ids)
        (unknown,) = self.TOKENIZER.encode([f"{text} dog\n dog dog"])
        assert count(self.TOKENIZER, self.TOKENIZER.num_words(), [*unknown, EOS]) == len(unknown) + 1

    @given(texts=st.lists(running_text, max_size=5), room=st.integers(1, 12), min_frequency=st.integers(1, 3))
    def test_the_most_frequent_words_are_kept(self, texts: list[str], room: int, min_frequency: int) -> None:
        tokenizer = WordLevel(vocab_size=6 + room, min_frequency=min_frequency).train(texts)
        words = [word for text in texts for word in re.findall(r"\n|[^\s]+", text) if word not in SPECIAL_TOKENS]
        frequent = sorted(item for item in Counter(words).items() if item[1] >= min_frequency)
        kept = sorted(frequent, key=lambda item: -item[1])[:room]
        vocabulary = tokenizer._backend.get_vocab()
        assert sorted(vocabulary, key=lambda token: vocabulary[token]) == [*SPECIAL_TOKENS, *(word for word, _ in kept)]

    def test_punctuation_and_case(self) -> None:
        tokenizer = WordLevel(split_punctuation=True, lowercase=True).train(["Don't, he said.\n"])
        assert tokenizer.decode(tokenizer.encode(["SAID  he\n... don"])[0]) == "said he\n. . . don"
        assert WordLevel().train(["He said."]).encode(["he said", "He said."]) == [[UNK, UNK], [6, 7]]

    def test_settings_that_cannot_be_are_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=8: expected at least 9"):
            WordLevel(vocab_size=8, num_sentinels=2)
        with pytest.raises(ValueError, match=r"tokenizer\.min_frequency=0: expected 1 or more"):
            WordLevel(min_frequency=0)


class TestWordPiece:
    TOKENIZER = WordPiece(vocab_size=200, lowercase=True).train(CORPUS)

    @settings(max_examples=50)
    @given(text=st.lists(st.sampled_from([*CORPUS[:3], "The cats.", "sat!\n", "\n", " zebra ", "Ω"])).map(" ".join))
    def test_cuts_as_the_longest_pieces_of_words(self, text: str) -> None:
        """By hand: Devlin et al. 2019."""
        vocabulary, expected = self.TOKENIZER._backend.get_vocab(), []
        for word in re.findall(r"\n|[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+", text.lower()):
            pieces, rest = [], word
            while rest:
                starts = [rest[:n] if rest is word else f"##{rest[:n]}" for n in range(len(rest), 0, -1)]
                piece = next((start for start in starts if start in vocabulary), None)
                if piece is None:
                    pieces, rest = ["<unk>"], ""
                else:
                    pieces, rest = [*pieces, piece], rest[len(piece.removeprefix("##")) :]
            expected += pieces
        (ids,) = self.TOKENIZER.encode([text])
        assert [self.TOKENIZER._backend.id_to_token(i) for i in ids] == expected
        assert [bool(b) for b in self.TOKENIZER.begins_word(ids)] == [not piece.startswith("##") for piece in expected]

    @given(text=st.lists(st.sampled_from(["the", "cats", ",", "mat", "日本語", "\n"])).map(" ".join))
    def test_round_trip_and_counts(self, text: str) -> None:
        (ids,) = self.TOKENIZER.encode([text])
        written = as_written(text)
        assert self.TOKENIZER.decode(ids) == written
        assert count(self.TOKENIZER, self.TOKENIZER.num_bytes(), ids) == len(written.encode())
        assert count(self.TOKENIZER, self.TOKENIZER.num_words(), ids) == len(written.split()) + written.count("\n")

    def test_learns_frequent_pieces_and_has_the_size_asked_for(self) -> None:
        tokenizer = WordPiece(vocab_size=15).train(["abab abab", "ab"])
        tokens = set(tokenizer._backend.get_vocab()) - set(SPECIAL_TOKENS)
        assert tokens == {"a", "b", "##a", "##b", "ab", "##ab", "abab"}  # and nothing else is left to merge
        assert WordPiece(vocab_size=12).train(["abab abab", "ab"]).vocab_size == 12
        with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=9: expected at least 10 \(characters\)"):
            WordPiece(vocab_size=9).train(["abab abab", "ab"])


class TestUnigram:
    """Against SentencePiece's own reading of the model that it has trained."""

    TEXTS: list[str] = [  # noqa: RUF012 - a constant of the class
        *CORPUS,
        "the mats of the cats",
        "sat   on the mat",
        "thecat",
        "日本",
    ]

    @pytest.mark.parametrize("lowercase", [False, True])
    def test_cuts_as_sentencepiece_does(self, lowercase: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        models = []
        parse = SentencePieceModel.parse
        monkeypatch.setattr(SentencePieceModel, "parse", lambda content: (models.append(content), parse(content))[1])
        tokenizer = Unigram(vocab_size=330, lowercase=lowercase, num_sentinels=3).train(CORPUS)
        assert tokenizer.vocab_size <= 330
        reference = sentencepiece.SentencePieceProcessor(model_proto=models[0])
        for text in self.TEXTS:
            (ids,) = tokenizer.encode([text])
            expected = reference.encode(text.lower() if lowercase else text, out_type=str)
            if "<" not in text:  # names of tokens and bytes are cut
                assert [tokenizer._backend.id_to_token(i) for i in ids] == expected

    def test_a_size_that_is_too_small_is_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=264: expected at least 26\d \(bytes, special"):
            Unigram(vocab_size=264).train(["abcde"])
        with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=300"):
            Unigram(vocab_size=300).train([])


SIDES: dict[str, TrainedTokenizer] = {
    "words": WordLevel(joint=False),
    "wordpiece": WordPiece(vocab_size=40, joint=False),
    "bpe": BPE(vocab_size=270, joint=False),
    "unigram": Unigram(vocab_size=300, joint=False),
}


@pytest.mark.parametrize("kind", SIDES)
class TestTwoSides:
    """Sources and targets cut by models of their own, with one table."""

    SOURCES, TARGETS = ("the cat sat. the hat. the cats",) * 9, ("die Katze saß. die Hüte. die cat",) * 9

    def test_each_is_cut_as_by_a_tokenizer_of_its_own(self, kind: str) -> None:
        both = SIDES[kind].train(self.SOURCES, self.TARGETS)
        tokens = {i: token for token, i in both._backend.get_vocab().items()}
        assert sorted(tokens) == list(range(both.vocab_size))
        alone = [replace(SIDES[kind], joint=True).train(side) for side in (self.SOURCES, self.TARGETS)]
        assert set(tokens.values()) == set(alone[0]._backend.get_vocab()) | set(alone[1]._backend.get_vocab())
        for text in (self.SOURCES[0], self.TARGETS[0], "the Katze <eos> zoo"):
            for as_target in (False, True):
                (ids,) = both.encode([text], as_target)
                (expected,) = alone[as_target].encode([text])
                assert [tokens[i] for i in ids] == [alone[as_target]._backend.id_to_token(i) for i in expected]
                assert both.decode(ids) == alone[as_target].decode(expected)
        assert both.encode([self.TARGETS[0]]) != both.encode([self.TARGETS[0]], as_target=True)

    def test_comes_back_from_its_text(self, kind: str) -> None:
        both = SIDES[kind].train(self.SOURCES, self.TARGETS)
        again = Tokenizer.from_json(both.to_json(), both.special)
        assert again.sha256 == both.sha256
        for as_target in (False, True):
            assert again.encode(self.TARGETS, as_target) == both.encode(self.TARGETS, as_target)

    def test_no_text_becomes_a_sentinel(self, kind: str) -> None:
        both = replace(SIDES[kind], num_sentinels=1).train([*self.SOURCES, "<extra_id_0>"], self.TARGETS)
        assert both.special.sentinels == (both.vocab_size - 1,)
        for as_target in (False, True):
            assert not set(both.encode(["a <extra_id_0>"], as_target)[0]) & (both.special_ids - {UNK})

    def test_without_targets_is_rejected(self, kind: str) -> None:
        with pytest.raises(ValueError, match=r"tokenizer\.joint=False: there are no targets"):
            SIDES[kind].train(self.SOURCES)


@pytest.mark.parametrize("kind", [BPE(vocab_size=300), *(replace(kind, joint=True) for kind in SIDES.values())])
def test_learning_is_deterministic(kind: TrainableTokenizer) -> None:
    """Many words and pieces are equally frequent here; the trainers of the library take them in a random order."""
    words = [f"{a}{b}{c} {c}{a}\n" for a in "abcdefg" for b in "aeiou" for c in ("ba", "né", "日")]
    assert len({kind.train(words).sha256 for _ in range(3)}) == 1


def places_by_bytes(tokenizer: Tokenizer, text: str, ids: list[int], before: int = 0) -> list[tuple[int, int]]:
    """Where each token of a text lies, by the bytes that it stands for and nothing else.

    Args:
        tokenizer: whose tokens hold all that there is.
        text: that was encoded.
        ids: its tokens.
        before: bytes that the tokenizer puts before a text.
    """
    character_of = [i for i, character in enumerate(text) for _ in character.encode()]
    ends = np.cumsum(tokenizer.num_bytes()[1, ids]).tolist()
    spans = [(max(start - before, 0), max(end - before, 1)) for start, end in pairwise([0, *ends])]
    return [(character_of[start], character_of[end - 1] + 1) for start, end in spans]


class TestPlaces:
    """Where in a text its tokens lie."""

    OTHERS: dict[str, Tokenizer] = {  # noqa: RUF012 - a constant of the class
        "words": TestWords.TOKENIZER,
        "wordpiece": WordPiece(vocab_size=150).train(CORPUS),
        "lower case": BPE(vocab_size=300, lowercase=True).train(CORPUS),
        "two sides": Unigram(vocab_size=320, joint=False).train(CORPUS, ["le chat"]),
    }

    @byte_level
    @given(text=any_text)
    @example(text="\r\n \x85\u2028\ufeff\x00👩‍👩‍👧 日本 e\u0301")
    def test_of_bytes(self, tokenizer: Tokenizer, text: str) -> None:
        ((ids, places),) = tokenizer.encode_with_places([text])
        assert places == places_by_bytes(tokenizer, text, ids)

    @pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
    @given(text=phrases)
    def test_of_families(self, family: str, text: str) -> None:
        tokenizer = FAMILIES[family]
        ((ids, places),) = tokenizer.encode_with_places([text])
        assert places == places_by_bytes(tokenizer, text, ids, before=int(family != "gpt2"))

    @given(text=running_text)
    def test_of_words(self, text: str) -> None:
        words = [match.span() for match in re.finditer(r"\n|[^\s]+", text)]
        ((_, places),) = TestWords.TOKENIZER.encode_with_places([text])
        assert places == words

    @given(texts=st.lists(phrases, max_size=3))
    @pytest.mark.parametrize("kind", [*TOKENIZERS, *FAMILIES, "words", "wordpiece", "lower case", "two sides"])
    def test_of_each_kind_cover_every_word(self, kind: str, texts: list[str]) -> None:
        """So the tokens from that at an answer's first character to that at its last hold the answer."""
        tokenizer = {**TOKENIZERS, **FAMILIES, **self.OTHERS}[kind]
        texts = [text.replace("d", "İ") for text in texts] if kind == "lower case" else texts  # two in lower case
        encoded = tokenizer.encode_with_places(texts)
        assert [ids for ids, _ in encoded] == tokenizer.encode(texts)
        for text, (ids, places) in zip(texts, encoded, strict=True):
            assert len(ids) == len(places)
            assert places == sorted(places)
            assert all(start < end <= len(text) for start, end in places)
            covered = {i for start, end in places for i in range(start, end)}
            assert covered >= {i for i, character in enumerate(text) if character != " "}


class TestSentinels:
    MAKERS: dict[str, Callable[[int], Tokenizer]] = {  # noqa: RUF012 - a constant of the class
        "bytes": lambda n: Bytes(num_sentinels=n).train(CORPUS),
        "characters": lambda n: Characters(num_sentinels=n).train(CORPUS),
        "words": lambda n: WordLevel(num_sentinels=n).train(CORPUS),
        "bpe": lambda n: BPE(vocab_size=300, num_sentinels=n).train(CORPUS),
        "wordpiece": lambda n: WordPiece(vocab_size=150 + n, num_sentinels=n).train(CORPUS),
        "unigram": lambda n: Unigram(vocab_size=320 + n, num_sentinels=n).train(CORPUS),
        "words of two sides": lambda n: WordLevel(joint=False, num_sentinels=n).train(CORPUS, ["le chat"]),
    }

    @pytest.mark.parametrize("kind", MAKERS)
    @pytest.mark.parametrize("num_sentinels", [0, 1, 12])
    def test_are_the_last_of_the_vocabulary(self, kind: str, num_sentinels: int) -> None:
        tokenizer, size = self.MAKERS[kind](num_sentinels), self.MAKERS[kind](0).vocab_size
        assert tokenizer.vocab_size == (size if kind == "bpe" else size + num_sentinels)
        sentinels = range(tokenizer.vocab_size - num_sentinels, tokenizer.vocab_size)
        assert tokenizer.special == SpecialTokens(sentinels=tuple(sentinels))
        assert tokenizer.special_ids == {*range(6), *sentinels}
        names = [tokenizer._backend.id_to_token(i) for i in sentinels]
        assert names == [f"<extra_id_{i}>" for i in range(num_sentinels)]
        again = Tokenizer.from_json(tokenizer.to_json(), tokenizer.special)
        assert again.encode_marked(["".join(names)], tokenizer.special.sentinels) == [list(sentinels)]
        (ids,) = again.encode(["".join(names)])
        assert not set(ids) & set(sentinels)

    def test_fewer_than_none_are_rejected(self) -> None:
        for make in self.MAKERS.values():
            with pytest.raises(ValueError, match=r"tokenizer\.num_sentinels=-1: expected 0 or more"):
                make(-1)
        with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=270: expected at least 272"):
            BPE(vocab_size=270, num_sentinels=10)


class TestMarked:
    """Names of special tokens that are understood."""

    @every_kind
    @given(parts=st.lists(seen_text.filter(lambda text: "<mask>" not in text), min_size=1, max_size=5))
    def test_stand_for_the_tokens(self, tokenizer: Tokenizer, parts: list[str]) -> None:
        (ids,) = tokenizer.encode_marked(["<mask>".join(parts)], [MASK])
        first, *others = tokenizer.encode(parts)
        assert ids == [*first, *(i for part in others for i in [MASK, *part])]

    def test_others_stay_text(self) -> None:
        tokenizer = TOKENIZERS["bytes"]
        (ids,) = tokenizer.encode_marked(["<sep>a<mask><mask>b<eos>"], [SEP, MASK])
        a, b, eos = tokenizer.encode(["a", "b", "<eos>"])
        assert ids == [SEP, *a, MASK, MASK, *b, *eos]

    def test_take_the_blanks_that_the_tokenizer_says(self) -> None:
        """BART's mask takes the blanks before it."""
        backend = Backend.from_str(FAMILIES["gpt2"].to_json())
        backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        tokenizer = Tokenizer(backend, FAMILIES["gpt2"].special)
        mask = tokenizer.vocab_size - 1
        a, b = tokenizer.encode(["a", " b"])
        assert tokenizer.encode_marked(["a  <mask> b"], [mask]) == [[*a, mask, *b]]
