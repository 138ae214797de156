"""What denoising hides, by the definitions of its objectives, and what it restores."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from scipy import stats
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from predicting import learn, make_context, predict
from small_models import build
from triptych.assembly.compatibility import check_grid
from triptych.config import ConfigError
from triptych.data import BPE, IGNORE_INDEX, Bytes, Characters, EncodedExample, Example, SpecialTokens, Tokenizer
from triptych.models.generation import BeamSearch
from triptych.tasks import Denoising
from triptych.tasks.denoising import OBJECTIVES, corrupt_spans, mask_spans, mask_tokens, place_spans, restore_spans

LINES = ["the cat sat  on the mat", "one, two; three", " a b\tc\n", "", "x", "unbelievable"] * 3
TOKENIZERS = {
    "bytes": Bytes(num_sentinels=9).train(LINES),
    "characters": Characters(num_sentinels=9).train(LINES),
    "bpe": BPE(vocab_size=300, num_sentinels=9).train(LINES),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
ARCHITECTURE = {objective: name for name, choices in reversed(OBJECTIVES.items()) for objective in choices}
every_objective = pytest.mark.parametrize("objective", ARCHITECTURE)

MASK, OTHERS = 999, np.arange(500, 600)  # no tokens of the texts
SENTINELS = tuple(range(1000, 1010))
texts = st.lists(st.integers(0, 99), max_size=60)
shares = st.floats(0.01, 0.99)
means = st.floats(1, 6)
seeds = st.integers(0, 2**32 - 1)


def hidden_count(length: int, share: float) -> int:
    return 0 if length == 0 else max(1, round(share * length))


def make_task(objective: str | None, architecture: str = "", **options: Any) -> Denoising:
    tokenizer = options.pop("tokenizer", TOKENIZERS["characters"])
    network = build(architecture or ARCHITECTURE[objective or ""], vocab_size=tokenizer.vocab_size, max_length=64)
    length, seed = options.pop("max_length", 64), options.pop("seed", 0)
    context = make_context(network, tokenizer, length, seed=seed)
    settings: dict[str, Any] = {"whole_word_masking": False, "mask_prob": 0.3, "mean_span_length": 3} | options
    return Denoising(context, label_smoothing=0.0, max_new_tokens=20, objective=objective, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["masked_lm", "text_infilling", "span_corruption"])
def test_each_copy_hides_other_parts(objective: str) -> None:
    """The first copy is the text as an evaluation reads it; all restore to the same text."""
    task, examples = make_task(objective, copies_per_text=3), [Example(line * 3, place=line) for line in LINES]
    copies, evaluated = task.encode_training(examples), task.encode(examples)
    assert len(copies) == 3 * len(evaluated) == 3 * len(examples)
    assert [item.example for item in copies] == examples * 3

    def shown(item: EncodedExample) -> list[list[int]]:
        return [row.tolist() for row in (item.inputs, item.labels, item.source) if row is not None]

    assert [*map(shown, copies[: len(examples)])] == [*map(shown, evaluated)]
    firsts, seconds = copies[: len(examples)], copies[len(examples) : 2 * len(examples)]
    assert sum(shown(a) != shown(b) for a, b in zip(firsts, seconds, strict=True)) > len(examples) / 2


def test_of_a_pair_the_first_text_is_asked() -> None:
    """A corpus of pairs serves tasks that read one text; those of pairs read both."""
    task = make_task("span_corruption")
    asked = task.model_input(Example("the cat", text_pair="sat"))
    assert asked == "the cat"
    assert len(predict(task, [asked])) == 1


class TestMasked:
    @given(ids=texts, share=shares, seed=seeds)
    @example(ids=[], share=0.15, seed=0)
    def test_hides_the_share_and_leaves_the_rest(self, ids: list[int], share: float, seed: int) -> None:
        tokens, labels = mask_tokens(
            np.array(ids, dtype=np.int64), np.ones(len(ids), bool), share, MASK, OTHERS, np.random.default_rng(seed)
        )
        chosen = labels != IGNORE_INDEX
        assert chosen.sum() == hidden_count(len(ids), share)
        assert labels[chosen].tolist() == [i for i, is_chosen in zip(ids, chosen, strict=True) if is_chosen]
        assert tokens[~chosen].tolist() == [i for i, is_chosen in zip(ids, chosen, strict=True) if not is_chosen]
        assert set(tokens[chosen]) <= {MASK, *OTHERS, *ids}

    def test_eighty_ten_ten(self) -> None:
        """Each count within what a binomial distribution has with a probability of 1 - 1e-6."""
        ids = np.arange(100_000) % 100
        tokens, labels = mask_tokens(ids, np.ones(len(ids), bool), 0.15, MASK, OTHERS, np.random.default_rng(0))
        chosen = labels != IGNORE_INDEX
        assert chosen.sum() == 15_000
        counts = [
            (tokens[chosen] == MASK).sum(),
            np.isin(tokens[chosen], OTHERS).sum(),
            (tokens[chosen] == ids[chosen]).sum(),
        ]
        assert sum(counts) == 15_000
        for count, probability in zip(counts, (0.8, 0.1, 0.1), strict=True):
            least, most = stats.binom.interval(1 - 1e-6, 15_000, probability)
            assert least <= count <= most
        # where they are, and what replaces them, is uniform
        random_ones = tokens[chosen & np.isin(tokens, OTHERS)]
        assert stats.chisquare(np.bincount(random_ones - OTHERS[0], minlength=len(OTHERS))).pvalue > 1e-6
        assert stats.chisquare(chosen.reshape(100, 1000).sum(1)).pvalue > 1e-6

    @settings(max_examples=100)
    @given(ids=texts, share=shares, seed=seeds, data=st.data())
    def test_a_word_is_chosen_as_a_whole(self, ids: list[int], share: float, seed: int, data: st.DataObject) -> None:
        """Off the share by half a word at most, unless one word is more than that."""
        assume(ids)
        begins = np.array([True, *(data.draw(st.booleans()) for _ in ids[1:])])
        _, labels = mask_tokens(np.array(ids), begins, share, MASK, OTHERS, np.random.default_rng(seed))
        chosen = labels != IGNORE_INDEX
        word = np.cumsum(begins)
        sizes = [int((word == w).sum()) for w in set(word)]
        assert all(len(set(chosen[word == w])) == 1 for w in set(word))
        is_one_word = len(set(word[chosen])) == 1
        assert chosen.any()
        assert is_one_word or abs(int(chosen.sum()) - hidden_count(len(ids), share)) <= max(sizes) / 2

    @every_tokenizer
    def test_words_are_those_of_the_text(self, tokenizer: Tokenizer) -> None:
        """Whatever the tokenizer: what is hidden is words, each with the white space before it."""
        task = make_task("masked_lm", tokenizer=tokenizer, whole_word_masking=True)
        text = "the unbelievable cat sat on a mat"
        seen = set()
        for item in task.encode([Example(text)] * 40):
            labels = item.labels[1:-1].tolist()
            shown = "".join("_" if i != IGNORE_INDEX else "." for i in labels)
            (ids,) = tokenizer.encode([text])
            lengths = [len(tokenizer.decode([i])) for i in ids]
            marks = "".join(mark * length for mark, length in zip(shown, lengths, strict=True))
            words = [text.split()[0], *(f" {word}" for word in text.split()[1:])]
            ends = np.cumsum([len(word) for word in words]).tolist()
            parts = [marks[start:end] for start, end in pairwise([0, *ends])]
            assert all(len(set(part)) == 1 for part in parts)
            seen |= {word for word, part in zip(words, parts, strict=True) if part[0] == "_"}
        assert seen == {"the", " unbelievable", " cat", " sat", " on", " a", " mat"}


class TestBeginsWord:
    @pytest.mark.parametrize(
        ("text", "begins"), [("ab c", "x_x_"), ("a  b", "xx__"), (" a", "x_"), ("a\n\tb c ", "xx__x_x"), ("", "")]
    )
    def test_of_characters(self, text: str, begins: str) -> None:
        tokenizer = Characters().train(["abc \n\t"])
        (ids,) = tokenizer.encode([text])
        assert "".join("x" if b else "_" for b in tokenizer.begins_word(ids)) == begins

    @staticmethod
    def of(backend: Backend, tokens: list[str]) -> str:
        tokenizer = Tokenizer(backend, SpecialTokens(**dict.fromkeys(("bos", "eos", "sep", "start", "pad"), 0), unk=0,
                                                     mask=0, begin=(), end=()))  # fmt: skip
        ids = [backend.token_to_id(token) for token in tokens]
        return "".join("x" if b else "_" for b in tokenizer.begins_word(ids))

    def test_of_word_pieces(self) -> None:
        backend = Backend(models.WordPiece({"[UNK]": 0, "un": 1, "##able": 2, ",": 3, "##s": 4}, unk_token="[UNK]"))
        backend.decoder = decoders.WordPiece()
        assert self.of(backend, ["un", "##able", "##s", ",", "un", "[UNK]", "##s"]) == "x__xxx_"

    def test_of_sentence_pieces(self) -> None:
        pieces = ["<unk>", "\u2581a", "b", "\u2581", "\u2581cd", ","]
        backend = Backend(models.Unigram([(piece, 0.0) for piece in pieces], unk_id=0))
        backend.decoder = decoders.Metaspace()
        assert self.of(backend, ["\u2581a", "b", ",", "\u2581", "b", "\u2581cd", "<unk>"]) == "x__x_x_"

    def test_of_bytes(self) -> None:
        backend = Backend(models.BPE({"!": 0, "\u0120the": 1, "a": 2, "\u0120": 3, "\u010a": 4, "a\u0120": 5}, []))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        assert self.of(backend, ["a", "a", "\u0120the", "a", "\u0120", "\u0120the", "\u010a", "a"]) == "x_x_x_x_"
        assert self.of(backend, ["a\u0120", "a", "a\u0120", "\u0120the"]) == "xx_x"


class TestPlaced:
    @settings(max_examples=100)
    @given(lengths=st.lists(st.integers(0, 5), max_size=8), kept=st.integers(0, 20), seed=seeds)
    def test_spans_are_disjoint_and_do_not_touch(self, lengths: list[int], kept: int, seed: int) -> None:
        total = sum(lengths)
        spans = place_spans(lengths, total + kept, np.random.default_rng(seed))
        assert len(spans) == min(len(lengths), kept + 1)
        assert sum(span.stop - span.start for span in spans) == total
        assert all(one.stop < other.start for one, other in pairwise(spans))
        assert all(0 <= span.start <= span.stop <= total + kept for span in spans)
        if len(lengths) <= kept + 1:
            assert sorted(span.stop - span.start for span in spans) == sorted(lengths)

    def test_each_way_is_equally_likely(self) -> None:
        """Spans of 2 and 0 in a text of 4: C(3, 2) places, in 2 orders."""
        random = np.random.default_rng(0)
        ways: dict[str, int] = {}
        for _ in range(6000):
            way = str(place_spans([2, 0], 4, random))
            ways[way] = ways.get(way, 0) + 1
        assert len(ways) == 6
        assert stats.chisquare(list(ways.values())).pvalue > 1e-6


class TestInfilled:
    @settings(max_examples=100)
    @given(ids=texts, share=shares, mean=means, seed=seeds)
    @example(ids=[], share=0.3, mean=3.0, seed=0)
    @example(ids=[7], share=0.3, mean=3.0, seed=0)
    def test_masks_stand_for_spans(self, ids: list[int], share: float, mean: float, seed: int) -> None:
        ids = list(range(len(ids)))  # so that what is left says where it was
        source = mask_spans(ids, share, mean, MASK, np.random.default_rng(seed))
        left = [i for i in source if i != MASK]
        assert left == sorted(left)
        assert len(left) == len(ids) - hidden_count(len(ids), share)
        assert (MASK, MASK) not in set(pairwise(source))
        # every token that is hidden has a mask at its place: two neighbours with none between them were neighbours
        assert all(two == one + 1 for one, two in pairwise([-1, *source, len(ids)]) if MASK not in (one, two))

    def test_lengths_are_poisson(self) -> None:
        """Those of length 0 put a mask between tokens that stay."""
        ids = list(range(100_000))
        source = mask_spans(ids, 0.3, 3.0, MASK, np.random.default_rng(0))
        bounds = [-1, *source, len(ids)]
        lengths = [
            bounds[place + 1] - bounds[place - 1] - 1 for place in range(1, len(bounds) - 1) if bounds[place] == MASK
        ]
        assert sum(lengths) == 30_000
        observed = np.bincount(np.minimum(lengths, 9), minlength=10)
        expected = np.append(stats.poisson.pmf(range(9), 3), stats.poisson.sf(8, 3)) * len(lengths)
        assert stats.chisquare(observed, expected).pvalue > 1e-6


def corrupt_again(ids: list[int], source: list[int]) -> list[int]:
    """The target that belongs to a source, from the definition: each sentinel and what it hides, then the next one."""
    target, place = [], 0
    for i, token in enumerate(source):
        if token in SENTINELS:
            following = source[i + 1] if i + 1 < len(source) else len(ids)
            target += [token, *ids[place:following]]
            place = following
        else:
            assert token == ids[place]
            place += 1
    assert place == len(ids)
    return [*target, SENTINELS[sum(token in SENTINELS for token in source)]]


class TestCorrupted:
    @settings(max_examples=200)
    @given(ids=texts, share=shares, mean=means, num_sentinels=st.integers(2, 10), seed=seeds)
    @example(ids=[], share=0.15, mean=3.0, num_sentinels=2, seed=0)
    @example(ids=[7], share=0.15, mean=3.0, num_sentinels=2, seed=0)
    @example(ids=[7] * 40, share=0.4, mean=1.0, num_sentinels=4, seed=0)  # too few sentinels
    @example(ids=[7] * 40, share=0.9, mean=1.0, num_sentinels=10, seed=0)  # too few tokens between
    def test_source_and_target(self, ids: list[int], share: float, mean: float, num_sentinels: int, seed: int) -> None:
        places = list(range(len(ids)))
        sentinels = SENTINELS[:num_sentinels]
        source, target = corrupt_spans(places, share, mean, sentinels, np.random.default_rng(seed))
        used = [i for i in source if i in SENTINELS]
        hide = hidden_count(len(ids), share)
        assert used == list(sentinels[: len(used)])
        assert [i for i in target if i in SENTINELS] == list(sentinels[: len(used) + 1])
        assert target[-1] == sentinels[len(used)]
        assert len(source) - len(used) == len(ids) - hide
        assert len(target) - len(used) - 1 == hide
        assert not any(one in SENTINELS and two in SENTINELS for one, two in pairwise(source))  # maximal
        assert not any(one in SENTINELS and two in SENTINELS for one, two in pairwise(target) if ids)  # not empty
        expected = min(max(1, round(hide / mean)), num_sentinels - 1, len(ids) - hide + 1) if ids else 0
        assert len(used) == expected
        assert target == corrupt_again(places, source)

    @given(ids=texts, share=shares, mean=means, seed=seeds)
    def test_the_text_comes_back(self, ids: list[int], share: float, mean: float, seed: int) -> None:
        source, target = corrupt_spans(ids, share, mean, SENTINELS, np.random.default_rng(seed))
        assert restore_spans(source, target, SENTINELS) == ids

    def test_what_the_target_lacks_stands_for_nothing(self) -> None:
        source, target = [1, 1000, 2, 1001, 3], [8, 1001, 9, 9, 1005, 7]
        assert restore_spans(source, target, SENTINELS) == [1, 2, 9, 9, 3]

    def test_spans_have_the_mean_length(self) -> None:
        """As many as the paper's: 500 tokens, 15 %, 3 a span, 25 spans; each cut of 75 into 25 is as likely."""
        lengths = []
        for seed in range(400):
            sentinels = range(1000, 1100)
            _, target = corrupt_spans(list(range(500)), 0.15, 3, sentinels, np.random.default_rng(seed))
            starts = [place for place, token in enumerate(target) if token >= 1000]
            assert len(starts) == 26
            lengths += [two - one - 1 for one, two in pairwise(starts)]
        assert sum(lengths) == 75 * 400
        probability = [math.comb(74 - length, 23) / math.comb(74, 24) for length in range(1, 12)]
        for length, p in enumerate(probability, 1):  # the first part of a composition of 75 into 25 parts
            least, most = stats.binom.interval(1 - 1e-6, len(lengths), p)
            assert least <= lengths.count(length) <= most


class TestTask:
    @every_tokenizer
    @every_objective
    def test_source_and_labels_give_the_text(self, objective: str, tokenizer: Tokenizer) -> None:
        task = make_task(objective, tokenizer=tokenizer)
        special = tokenizer.special
        for line, item in zip(LINES, task.encode([Example(line) for line in LINES]), strict=True):
            labels = item.labels.tolist()
            if objective == "masked_lm":
                assert item.source is None
                assert (
                    tokenizer.decode(np.where(item.labels == IGNORE_INDEX, item.inputs, item.labels).tolist()) == line
                )
                assert set(item.labels[[0, -1]]) == {IGNORE_INDEX}
                continue
            assert labels[-1] == special.eos
            assert item.inputs.tolist() == [special.bos, *labels[:-1]]
            if objective == "span_corruption":
                assert item.source is not None
                assert item.source[0] == special.bos
                assert item.source[-1] == special.eos
                assert task.text_of(labels[:-1], item.source.tolist()) == line
            else:
                assert tokenizer.decode(labels) == line

    def test_random_tokens_are_text(self) -> None:
        """However many special tokens there are."""
        tokenizer = Characters(num_sentinels=200).train(["ab"])
        task = make_task("masked_lm", tokenizer=tokenizer)
        items = task.encode([Example("a" * 50)] * 10)
        seen = {i for item in items for i in item.inputs[item.labels != IGNORE_INDEX].tolist()}
        assert seen == {tokenizer.special.mask, *tokenizer.encode(["ab"])[0]}

    @every_objective
    def test_what_is_hidden_follows_from_seed_and_number_alone(self, objective: str) -> None:
        def hidden(seed: int, lines: list[str]) -> list[list[list[int]]]:
            items = make_task(objective, seed=seed).encode([Example(line) for line in lines])
            return [[x.tolist() for x in (i.inputs, i.labels, i.source) if x is not None] for i in items]

        np.random.seed(7)
        first = hidden(0, LINES)
        np.random.seed(8)
        assert hidden(0, LINES) == first
        other = ["another line", *LINES[1:]]
        assert hidden(0, other)[1:] == first[1:]  # whatever stands beside it
        if objective != "next_token":
            assert hidden(1, LINES) != first
            same = hidden(0, ["the cat sat on the mat"] * 9)
            assert any(one != same[0] for one in same)  # the number counts

    def test_a_source_that_is_cut_has_the_target_of_what_is_left(self) -> None:
        task = make_task("span_corruption", max_length=16, mask_prob=0.2, mean_span_length=1)
        special = task.tokenizer.special
        example = Example("the cat sat on the mat unbelievable")
        (whole,) = task.encode([example])
        (cut,) = task.enforce_max_length([whole])
        assert whole.source is not None
        assert cut.source is not None
        assert len(cut.source) == 16
        left = [i for i in cut.source.tolist() if i in special.sentinels]
        assert 0 < len(left) < sum(i in special.sentinels for i in whole.source.tolist())
        asked = [i for i in cut.labels.tolist() if i in special.sentinels]
        assert asked == list(special.sentinels[: len(left) + 1])
        assert cut.labels[-1] == special.eos
        assert cut.inputs.tolist() == [special.start, *cut.labels[:-1]]
        kept = cut.source.tolist()[1:-1]
        assert example.text.startswith(
            task.tokenizer.decode(restore_spans(kept, cut.labels.tolist(), special.sentinels))
        )

    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_prediction_fills_in_the_spans(self, num_beams: int) -> None:
        """A network that has learned one text by heart."""
        torch.manual_seed(0)
        task = make_task("span_corruption")
        special = task.tokenizer.special
        one, two = special.sentinels[:2]
        (source,) = task.tokenizer.encode_marked(["the <extra_id_0> sat <extra_id_1> mat"], special.sentinels)
        cat, on = task.tokenizer.encode(["cat", "on the"])
        tokens, labels = special.written([one, *cat, two, *on, special.sentinels[2]])
        item = EncodedExample(np.array(tokens), np.array(labels), np.array(special.single(source)))
        learn(task, [item], steps=60, lr=1e-2)
        task.search = BeamSearch(num_beams=num_beams)
        assert predict(task, ["the <extra_id_0> sat <extra_id_1> mat"]) == ["the cat sat on the mat"]


class TestRefusals:
    @every_objective
    @pytest.mark.parametrize("architecture", OBJECTIVES)
    def test_an_objective_of_another_architecture(self, objective: str, architecture: str) -> None:
        """By the task, and before any data is read; with the choices."""
        config = OmegaConf.create(
            {
                "task": {"_target_": "triptych.tasks.Denoising", "objective": objective},
                "data": {"_target_": "triptych.data.Dates"},
                "model": {"_target_": {"encoder_only": "triptych.models.EncoderOnly",
                                       "decoder_only": "triptych.models.DecoderOnly",
                                       "prefix_lm": "triptych.models.PrefixLM",
                                       "full": "triptych.models.EncoderDecoder"}[architecture],
                          "embedding": {"_target_": "triptych.nn.Embedding"}},
            }
        )  # fmt: skip
        if objective in OBJECTIVES[architecture]:
            check_grid(config)
            assert make_task(objective, architecture).objective == objective
            return
        choices = " or ".join(OBJECTIVES[architecture])
        message = rf"task\.objective={objective} on model={architecture}: .+; expected {choices}, or null"
        with pytest.raises(ConfigError, match=message):
            check_grid(config)
        with pytest.raises(ValueError, match=message):
            make_task(objective, architecture)

    @pytest.mark.parametrize("architecture", OBJECTIVES)
    def test_one_that_is_none(self, architecture: str) -> None:
        choice = OBJECTIVES[architecture][0]
        with pytest.raises(ValueError, match=rf"^task\.objective=spans on model={architecture}: expected {choice}"):
            make_task("spans", architecture)

    @pytest.mark.parametrize("architecture", OBJECTIVES)
    def test_null_is_the_natural_one(self, architecture: str) -> None:
        assert make_task(None, architecture).objective == OBJECTIVES[architecture][0]

    @pytest.mark.parametrize(
        ("objective", "special", "message"),
        [
            ("masked_lm", SpecialTokens(mask=None), r"task\.objective=masked_lm: the tokenizer has no mask token"),
            ("text_infilling", SpecialTokens(mask=None), r"text_infilling: the tokenizer has no mask token"),
            ("span_corruption", SpecialTokens(), r"tokenizer has 0 sentinels; expected at least 2 \(tokenizer\.num_se"),
            ("span_corruption", SpecialTokens(sentinels=(6,)), "tokenizer has 1 sentinels; expected at least 2"),
        ],
    )
    def test_a_tokenizer_that_lacks_a_token(self, objective: str, special: SpecialTokens, message: str) -> None:
        tokenizer = Tokenizer.from_json(Characters().train(LINES).to_json(), special)
        with pytest.raises(ValueError, match=message):
            make_task(objective, tokenizer=tokenizer)

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"mask_prob": 0.0}, r"task\.mask_prob=0\.0: expected more than 0 and less than 1"),
            ({"mask_prob": 1.0}, r"task\.mask_prob=1\.0: expected"),
            ({"copies_per_text": 0}, r"task\.copies_per_text=0: expected at least 1"),
            ({"mean_span_length": 0.5}, r"task\.mean_span_length=0\.5: expected at least 1"),
            ({"mean_span_length": math.nan}, r"task\.mean_span_length=nan: expected at least 1"),
            (
                {"whole_word_masking": True},
                r"task\.whole_word_masking=true: text_infilling hides no words; expected false, or mask",
            ),
        ],
        ids=str,
    )
    def test_settings_that_cannot_be(self, option: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make_task("text_infilling", **option)
