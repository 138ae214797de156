"""What is taken out of a text, how it is laid out, and how an answer is compared."""

import io
import string
import tokenize
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from predicting import GREEDY, learn, make_context, predict
from small_models import build
from triptych.data import BPE, IGNORE_INDEX, Characters, Example
from triptych.tasks import Infilling
from triptych.tasks.infilling import Middle, cut_out, edit_similarity, parts_in_test, without_literals

MIDDLES = get_args(Middle)
LINES = ["def double(x):\n    return 2 * x\n", "import os\n\nprint(os.sep)", "x = 1", "a\nb\nc\nd"]
TOKENIZERS = {
    "characters": Characters(num_sentinels=3).train([string.printable]),
    "bpe": BPE(vocab_size=290, num_sentinels=4).train(LINES),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
every_architecture = pytest.mark.parametrize("architecture", ["full", "decoder_only", "prefix_lm"])
texts = st.text(st.sampled_from("ab (\n\t.é"), max_size=40)


def make_task(architecture: str, **options: Any) -> Infilling:
    tokenizer = options.pop("tokenizer", TOKENIZERS["characters"])
    max_length = options.pop("max_length", 64)
    network = build(architecture, vocab_size=tokenizer.vocab_size, max_length=max_length)
    context = make_context(network, tokenizer, max_length, seed=options.pop("seed", 0))
    settings = {
        "fim_rate": 0.5, "fim_spm_rate": 0.5, "copies_per_text": 1, "middle": "span", "test_middle": "line",
        "max_new_tokens": 8,
    }  # fmt: skip
    return Infilling(context, label_smoothing=0.0, **GREEDY, **settings | options)


@pytest.fixture(scope="module")
def tasks() -> dict[str, Infilling]:
    return {name: make_task(name) for name in ("full", "decoder_only", "prefix_lm")}


class TestCutOut:
    @given(text=texts, seed=st.integers(0, 2**32 - 1), middle=st.sampled_from(MIDDLES))
    def test_the_parts_are_the_text(self, text: str, seed: int, middle: Middle) -> None:
        prefix, suffix, cut = cut_out(text, middle, np.random.default_rng(seed))
        if middle == "rest_of_line":
            assert not suffix
            assert text.startswith(prefix + cut)
            assert text[len(prefix) + len(cut) :].lstrip(" \t")[:1] in ("", "\n")
        else:
            assert prefix + cut + suffix == text
        if middle != "span":
            assert "\n" not in cut
            assert cut == cut.rstrip()
            assert bool(cut) == bool(text.strip())

    def test_a_line_is_whole(self) -> None:
        text = "def f():\n    return 1\n\nf()\n"
        seen = {cut_out(text, "line", np.random.default_rng(seed)) for seed in range(50)}
        assert {cut for _, _, cut in seen} == {"def f():", "return 1", "f()"}
        assert ("def f():\n    ", "\n\nf()\n", "return 1") in seen

    def test_the_places_of_a_span_are_uniform(self) -> None:
        """The smaller one of two draws from 0, ..., n, by enumeration."""
        n, random = 6, np.random.default_rng(0)
        starts = [len(cut_out("a" * n, "span", random)[0]) for _ in range(4000)]
        expected = [
            sum(min(i, j) == k for i in range(n + 1) for j in range(n + 1)) / (n + 1) ** 2 for k in range(n + 1)
        ]
        assert np.bincount(starts, minlength=n + 1) / 4000 == pytest.approx(expected, abs=0.03)

    def test_an_evaluation_cuts_a_text_once_and_for_all(self) -> None:
        assert parts_in_test(LINES[3], "line") == parts_in_test(LINES[3], "line")
        assert len({parts_in_test(f"a{i}\nb{i}\nc{i}", "line")[2][0] for i in range(30)}) == 3


class TestLayout:
    @every_architecture
    @every_tokenizer
    def test_an_evaluation_scores_the_middle_alone(self, architecture: str, tokenizer: Any) -> None:
        task = make_task(architecture, tokenizer=tokenizer)
        for text, item in zip(LINES, task.encode([Example(text) for text in LINES]), strict=True):
            prefix, suffix, middle = parts_in_test(text, "line")
            scored = item.labels[item.labels != IGNORE_INDEX].tolist()
            assert scored == [*tokenizer.encode([middle])[0], tokenizer.special.eos]
            read = item.inputs[: item.prefix + 1] if item.source is None else item.source
            before, behind = task.parts_of(read.tolist())[:2]
            assert (tokenizer.decode(before), tokenizer.decode(behind)) == (prefix, suffix)
            assert task.reference(Example(text)) == middle
            assert task.model_input(Example(text)) == f"{prefix}<extra_id_0>{suffix}"

    def test_the_order_of_the_parts(self) -> None:
        """Bavarian et al. 2022, section 3 and appendix D."""
        p, s, m = TOKENIZERS["characters"].special.sentinels
        special, decoder = TOKENIZERS["characters"].special, make_task("decoder_only")
        assert decoder.given([7, 8], [9]) == [special.bos, p, 7, 8, s, 9, m]
        assert decoder.given([7, 8], [9], suffix_first=True) == [special.bos, p, s, 9, m, 7, 8]
        assert make_task("full").given([7, 8], [9]) == special.single([7, 8, p, 9])

    @given(
        prefix=st.lists(st.integers(10, 20), max_size=5),
        suffix=st.lists(st.integers(10, 20), max_size=5),
        suffix_first=st.booleans(),
    )
    def test_the_parts_are_found_again(
        self, tasks: dict[str, Infilling], prefix: list[int], suffix: list[int], suffix_first: bool
    ) -> None:
        for task in tasks.values():
            found = task.parts_of(task.given(prefix, suffix, suffix_first=suffix_first))
            assert found[:2] == (prefix, suffix)

    @pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
    def test_a_causal_decoder_remains_a_language_model(self, share: float) -> None:
        task, examples = (
            make_task("decoder_only", fim_rate=share, copies_per_text=2),
            [Example(f"x = {i}") for i in range(300)],
        )
        items = task.encode_training(examples)
        assert [item.example for item in items] == examples * 2
        whole = [item for item in items if not item.prefix]
        assert len(whole) / len(items) == pytest.approx(1 - share, abs=0.06)
        for item in items:
            assert item.labels[:-1].tolist() == item.inputs[1:].tolist()  # the next token, everywhere
            assert item.labels[-1] == task.tokenizer.special.eos
        for item in whole:
            assert task.tokenizer.decode(item.inputs) == (item.example or Example("")).text

    @every_architecture
    def test_a_training_cuts_a_text_elsewhere_each_time(self, architecture: str) -> None:
        task = make_task(architecture, fim_rate=1.0, copies_per_text=3, fim_spm_rate=1.0)
        items, text = task.encode_training([Example("abcdefghijklmnop")] * 5), "abcdefghijklmnop"
        middles = set()
        for item in items:
            read = item.inputs[: item.prefix + 1] if item.source is None else item.source
            prefix, suffix, first = task.parts_of(read.tolist())
            assert first == (architecture != "full")
            start = item.prefix if item.source is None else 0
            middle = item.labels[start:-1].tolist()
            assert "".join(map(task.tokenizer.decode, (prefix, middle, suffix))) == text
            middles.add(tuple(middle))
        assert len(middles) > 5
        again = make_task(architecture, fim_rate=1.0, copies_per_text=3, fim_spm_rate=1.0).encode_training(
            [Example(text)] * 5
        )
        assert [item.inputs.tolist() for item in items] == [item.inputs.tolist() for item in again]
        if architecture == "prefix_lm":
            assert all((item.labels[: item.prefix] == IGNORE_INDEX).all() for item in items)

    @every_architecture
    def test_what_is_too_long_is_cut_far_from_the_middle(self, architecture: str) -> None:
        task = make_task(architecture, max_length=24, fim_rate=1.0)
        lines = ["a" * 30, "b" * 30, "cc", "d" * 30, "e" * 30]
        text = next("\n".join([*lines[:2], f"cc{i}", *lines[3:]]) for i in range(99)
                    if parts_in_test("\n".join([*lines[:2], f"cc{i}", *lines[3:]]), "line")[2] == f"cc{i}")  # fmt: skip
        prefix, suffix, middle = parts_in_test(text, "line")
        [item] = task.enforce_max_length(task.encode([Example(text)]))
        assert item.longest <= 24
        read = item.inputs[: item.prefix + 1] if item.source is None else item.source
        before, behind = (task.tokenizer.decode(ids) for ids in task.parts_of(read.tolist())[:2])
        assert prefix.endswith(before)
        assert suffix.startswith(behind)
        assert len(before) >= 4
        assert abs(len(before) - len(behind)) <= 1
        assert task.tokenizer.decode(item.labels[item.labels != IGNORE_INDEX]) == middle
        for learned in task.enforce_max_length(task.encode_training([Example(text)] * 20)):
            assert learned.longest <= 24
            if architecture == "decoder_only":
                assert (learned.labels != IGNORE_INDEX).all()

    def test_mistakes(self) -> None:
        with pytest.raises(ValueError, match=r"task.fim_rate=1.5: expected 0 to 1"):
            make_task("full", fim_rate=1.5)
        with pytest.raises(ValueError, match=r"task.copies_per_text=0: expected at least 1"):
            make_task("full", copies_per_text=0)
        with pytest.raises(ValueError, match="the tokenizer has 2 sentinels; expected at least 3"):
            make_task("full", tokenizer=Characters(num_sentinels=2).train(LINES))
        with pytest.raises(ValueError, match="2 times <extra_id_0> in a text; expected it once"):
            predict(make_task("full"), ["a<extra_id_0>b<extra_id_0>"])


@every_architecture
def test_what_is_missing_is_written(architecture: str) -> None:
    """A network that knows four texts by heart."""
    words = ["alpha\nbeta\ngamma", "one\ntwo\nthree", "red\ngreen\nblue", "up\ndown\nleft"]
    task = make_task(architecture, tokenizer=Characters(num_sentinels=3).train(words), fim_rate=1.0, middle="line")
    assert learn(task, task.encode([Example(word) for word in words]), steps=150, lr=1e-2)[-1] < 0.05
    asked = [task.model_input(Example(word)) for word in words]
    assert predict(task, asked) == [task.reference(Example(word)) for word in words]
    assert predict(task, asked[:1])[0] in words[0]
    assert isinstance(predict(task, ["up\nd"])[0], str)  # nothing is marked: its end


def literals_by_python(line: str) -> str:
    """The line as Python's own tokenizer reads it, without what is in quotes, and each number a 0."""
    parts, place = [], 0
    for token in tokenize.generate_tokens(io.StringIO(line).readline):
        if token.type not in (tokenize.STRING, tokenize.NUMBER):
            continue
        parts.append(line[place : token.start[1]])
        letters = len(token.string) - len(token.string.lstrip("rRbBuUfF"))
        parts.append("0" if token.type == tokenize.NUMBER else token.string[:letters] + token.string[letters] * 2)
        place = token.end[1]
    return "".join([*parts, line[place:]])


class TestComparison:
    @pytest.mark.parametrize(
        "line",
        ["x = 'a b'", 'f("it\'s", b"\\"", 0x1F, 1.5e3, 2j)', "a1 = b2[3:-1_000]", "print('a' 'b')", "''", "x.y = z",
         "re.match(r'\\d+', s)", "['', \"\", 0]"],
    )  # fmt: skip
    def test_literals_are_those_of_python(self, line: str) -> None:
        assert without_literals(line) == literals_by_python(line)

    def test_a_line_of_codexglue(self) -> None:
        """Its evaluator reads <STR_LIT> as nothing and <NUM_LIT> as 0."""
        line = "self.send('<STR_LIT>', timeout=<NUM_LIT>)".replace("<STR_LIT>", "").replace("<NUM_LIT>", "0")
        assert without_literals("  self.send('hello, world', timeout=30)\n") == line

    @given(texts, texts)
    @example("", "")
    def test_edit_similarity(self, first: str, second: str) -> None:
        """By the longest common subsequence."""
        table = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
        for i, a in enumerate(first, 1):
            for j, b in enumerate(second, 1):
                table[i, j] = table[i - 1, j - 1] + 1 if a == b else max(table[i - 1, j], table[i, j - 1])
        total = len(first) + len(second)
        expected = 2 * table[-1, -1] / total if total else 1
        assert edit_similarity(first, second) == pytest.approx(expected)
