"""Text to ids and back."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from triptych.data import BytePairs, Bytes, Characters, SpecialTokens, Tokenizer
from triptych.data.tokenizers import BOS, EOS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

CORPUS = [
    "the cat sat on the mat\n",
    "  the <eos> of\tthe\r\nline\x85",
    "\ufeff5 März 1998: naïve café, 日本語 👩‍👩‍👧 <pad><unk>",
] * 5

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: Bytes().train(CORPUS),
    "characters": lambda: Characters().train(CORPUS),
    "bpe": lambda: BytePairs(vocab_size=300).train(CORPUS),
}
TOKENIZERS = {name: make() for name, make in KINDS.items()}

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
        assert sizes[ids].sum() == len(text.encode())
        assert (sizes[: len(SPECIAL_TOKENS)] == 0).all()
        assert (sizes[len(SPECIAL_TOKENS) :] > 0).all()

    def test_json_round_trip(self, tokenizer: Tokenizer) -> None:
        again = Tokenizer.from_json(tokenizer.to_json())
        texts = [*CORPUS, "unseen: Ω", "<eos>"]
        assert again.encode(texts) == tokenizer.encode(texts)
        assert again.sha256 == tokenizer.sha256

    def test_training_is_a_function_of_the_texts(self, tokenizer: Tokenizer) -> None:
        kind = next(name for name, other in TOKENIZERS.items() if other is tokenizer)
        assert KINDS[kind]().sha256 == tokenizer.sha256


def test_the_hash_tells_tokenizers_apart() -> None:
    hashes = {tokenizer.sha256 for tokenizer in TOKENIZERS.values()} | {Characters().train(["abc"]).sha256}
    assert len(hashes) == 4


LINES = ["a bé\n\n  a\r\n日本 é\t\n \n ab  b\x0b\x1cΩ", "of the \n of the \n", "\u3000\u3000日\x85\xa0"] * 5


def across_words() -> Tokenizer:
    """Byte pairs that are merged across white space: a token may hold several words."""
    backend = BytePairs(vocab_size=262).train([])._backend
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
    "bpe": BytePairs(vocab_size=300).train(LINES),
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


def count_words(tokenizer: Tokenizer, ids: list[int]) -> int:
    """Of ids that begin a text, token by token from the tables."""
    words, ends_in_space = tokenizer.num_words(), tokenizer.ends_in_space()
    return sum(int(words[int(ends_in_space[last]), i]) for last, i in pairwise([BOS, *ids]))


@pytest.mark.parametrize("kind", COUNTED)
class TestCounts:
    @settings(max_examples=200)
    @given(text=lines)
    @example(text="a b\n")
    def test_sum_to_those_of_the_text(self, kind: str, text: str) -> None:
        tokenizer = COUNTED[kind]
        (ids,) = tokenizer.encode([text])
        if kind == "characters":  # one that was never seen is no blank
            text = "".join(character if character in "".join(LINES) else "?" for character in text)
        assert tokenizer.num_characters()[ids].sum() == len(text)
        assert count_words(tokenizer, ids) == len(text.split()) + text.count("\n")
        assert count_words(tokenizer, [*ids, EOS]) == len(text.split()) + text.count("\n") + 1

    @settings(max_examples=50)
    @given(first=lines, second=lines)
    def test_a_line_after_the_end_of_another(self, kind: str, first: str, second: str) -> None:
        tokenizer = COUNTED[kind]
        one, other = tokenizer.encode([first, second])
        both = count_words(tokenizer, [*one, EOS, *other])
        assert both == count_words(tokenizer, one) + 1 + count_words(tokenizer, other)

    def test_special_tokens_are_no_text(self, kind: str) -> None:
        tokenizer = COUNTED[kind]
        silent = [PAD, BOS, SEP, MASK]
        assert not tokenizer.num_words()[:, silent].any()
        assert tokenizer.num_characters()[: len(SPECIAL_TOKENS)].tolist() == [0, 0, 0, 0, 1, 0]  # unk is a character
        assert tokenizer.num_words()[:, [EOS, UNK]].tolist() == [[1, 0], [1, 1]]


class TestBlanksBeyondASCII:
    """str.isspace decides, where a token holds the whole of the blank."""

    @pytest.mark.parametrize("blank", CUT_BLANKS)
    def test_separate_words_where_they_are_one_token(self, blank: str) -> None:
        text = f"a{blank}b"
        for tokenizer in (Characters().train([text]), BytePairs(vocab_size=266).train([blank] * 9)):
            (ids,) = tokenizer.encode([text])
            assert len(ids) == 3
            assert count_words(tokenizer, ids) == 2

    @pytest.mark.parametrize("blank", CUT_BLANKS)
    def test_are_part_of_a_word_where_they_are_cut(self, blank: str) -> None:
        (ids,) = COUNTED["bytes"].encode([f"a{blank}b"])
        assert count_words(COUNTED["bytes"], ids) == 1


class TestBytePairs:
    @pytest.mark.parametrize("vocab_size", [262, 263, 280])
    def test_has_the_size_asked_for(self, vocab_size: int) -> None:
        assert BytePairs(vocab_size=vocab_size).train(CORPUS).vocab_size == vocab_size

    def test_merges_what_is_frequent(self) -> None:
        """The pairs of "aaab" * n: "aa" first, then what is left to merge within the word."""
        tokenizer = BytePairs(vocab_size=263).train(["aaaa"])
        assert tokenizer.encode(["aaaa", "b"]) == [[262, 262], TOKENIZERS["bpe"].encode(["b"])[0]]

    @pytest.mark.parametrize("vocab_size", [0, 100, 261])
    def test_refuses_less_than_the_bytes(self, vocab_size: int) -> None:
        with pytest.raises(ValueError, match=rf"tokenizer\.vocab_size={vocab_size}: expected at least 262"):
            BytePairs(vocab_size=vocab_size)


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
        assert tokenizer.num_bytes()[ids].sum() == len(read.encode())
        assert tokenizer.num_characters()[ids].sum() == len(read)
        words, ends_in_space = tokenizer.num_words(), tokenizer.ends_in_space()
        before = [tokenizer.special.bos, *ids]
        counted = sum(int(words[int(ends_in_space[last]), i]) for last, i in pairwise([*before, tokenizer.special.eos]))
        assert counted == len(text.split()) + 1

    @given(text=phrases)
    def test_pieces_of_words_have_no_blanks(self, text: str) -> None:
        """WordPiece: what stands between the words is not in the tokens."""
        tokenizer = FAMILIES["bert"]
        (ids,) = tokenizer.encode([text])
        assert tokenizer.num_bytes()[ids].sum() == len(text.replace(" ", "").encode())

    @every_family
    def test_special_tokens_are_no_text(self, family: str) -> None:
        tokenizer = FAMILIES[family]
        special = tokenizer.special
        assert set(tokenizer.text_ids) == set(range(tokenizer.vocab_size)) - tokenizer.special_ids
        assert special.ids <= tokenizer.special_ids
        assert not tokenizer.num_bytes()[list(tokenizer.special_ids)].any()
        assert (tokenizer.num_bytes()[tokenizer.text_ids] > 0).all()
        characters = {i: int(tokenizer.num_characters()[i]) for i in tokenizer.special_ids}
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
        special = SpecialTokens.from_plain(json.loads(json.dumps(tokenizer.special.as_plain())))
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
        assert tokenizer.num_bytes()[-1] == len("▁ é".encode())

    def test_one_beyond_the_vocabulary_is_refused(self) -> None:
        size = FAMILIES["bert"].vocab_size
        with pytest.raises(ValueError, match=rf"token id {size}, but the vocabulary has {size} tokens"):
            Tokenizer.from_json(FAMILIES["bert"].to_json(), SpecialTokens(end=(3, size)))


class TestSentinels:
    MAKERS: dict[str, Callable[[int], Tokenizer]] = {  # noqa: RUF012 - a constant of the class
        "bytes": lambda n: Bytes(num_sentinels=n).train(CORPUS),
        "characters": lambda n: Characters(num_sentinels=n).train(CORPUS),
        "bpe": lambda n: BytePairs(vocab_size=300, num_sentinels=n).train(CORPUS),
    }

    @pytest.mark.parametrize("kind", MAKERS)
    @pytest.mark.parametrize("num_sentinels", [0, 1, 12])
    def test_are_the_last_of_the_vocabulary(self, kind: str, num_sentinels: int) -> None:
        tokenizer, size = self.MAKERS[kind](num_sentinels), TOKENIZERS[kind].vocab_size
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

    def test_fewer_than_none_are_refused(self) -> None:
        for make in self.MAKERS.values():
            with pytest.raises(ValueError, match=r"tokenizer\.num_sentinels=-1: expected 0 or more"):
                make(-1)
        with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=270: expected at least 272"):
            BytePairs(vocab_size=270, num_sentinels=10)


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
