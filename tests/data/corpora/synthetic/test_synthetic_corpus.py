"""Probes: each answer against an independent statement, their optimum against all texts, splits, axes and refusals."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data import Example
from triptych.data.corpora.synthetic import (
    Addition,
    Brackets,
    Copy,
    Distance,
    ListOps,
    Majority,
    Mappings,
    Needle,
    Parity,
    Recall,
    Relations,
    Reverse,
    Roles,
    Senses,
    Sort,
    SyntheticCorpus,
)

COUNTS: dict[str, Any] = {"num_train": 400, "num_validation": 60, "num_test": 200, "seed": 1}
LENGTHS: dict[str, Any] = {"min_length": 4, "max_length": 12, "test_max_length": 20}
SIZES: dict[type[SyntheticCorpus], dict[str, Any]] = {
    Copy: {"vocabulary": 12, **LENGTHS},
    Reverse: {"vocabulary": 12, **LENGTHS},
    Sort: {"vocabulary": 12, **LENGTHS},
    Addition: {"min_digits": 2, "max_digits": 4, "test_max_digits": 6, "lowest_first": True},
    Parity: {"min_length": 9, "max_length": 12, "test_max_length": 20},
    Majority: {"min_length": 9, "max_length": 12, "test_max_length": 20},
    Brackets: {
        "kinds": 3, "min_length": 8, "max_length": 12, "test_max_length": 20,
        "min_depth": 1, "max_depth": 3, "test_max_depth": 5,
    },
    ListOps: {"max_args": 4, "min_depth": 1, "max_depth": 2, "test_max_depth": 4, "min_length": 5, "max_length": 40},
    Recall: {
        "vocabulary": 20, "min_pairs": 1, "max_pairs": 3, "test_max_pairs": 5,
        "min_length": 12, "max_length": 16, "test_max_length": 24,
    },
    Needle: {"vocabulary": 12, "needles": 3, **LENGTHS},
    Distance: {"vocabulary": 12, "fillers": 3, "pairs": [1, 3], "gaps": [2, 5], "test_gaps": [2, 5, 9]},
    Relations: {
        "keys": 6, "numbers": 2, "pairs": 4, "queries": 2, "min_terms": 1, "max_terms": 2, "test_max_terms": 4,
    },
    Roles: {"names": 4, "min_fillers": 2, "max_fillers": 4, "test_max_fillers": 7},
    Senses: {
        "cues": 3, "ambiguous": 2, "neutral": 4, "length": 9,
        "min_distance": 1, "max_distance": 4, "test_max_distance": 8, "echo": False,
    },
    Mappings: {"symbols": 5, "mappings": None, "min_shots": 3, "max_shots": 8, "test_max_shots": 10},
}  # fmt: skip
AXES = {
    "length": lambda example: len(example.text.split()),
    "digits": lambda example: example.text.split().index("+"),
    "pairs": lambda example: sum(tag is not None for tag in example.tags),
}
"""Axes as they are seen in the text."""


def made(kind: type[SyntheticCorpus], **changes: Any) -> SyntheticCorpus:
    return kind(**{**SIZES[kind], **COUNTS, **changes})


def examples_of(kind: type[SyntheticCorpus], **changes: Any) -> list[Example]:
    splits = made(kind, **changes).splits()
    return [*splits.train, *splits.validation, *splits.test]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


class TestAnswers:
    @pytest.mark.parametrize(
        ("kind", "expected"), [(Copy, list), (Reverse, lambda given: list(reversed(given))), (Sort, sorted)]
    )
    def test_rewriting(self, kind: type[SyntheticCorpus], expected: Callable[[list[int]], list[int]]) -> None:
        for example in examples_of(kind):
            assert numbers(example.target or "") == expected(numbers(example.text))

    @pytest.mark.parametrize("lowest_first", [True, False])
    def test_addition(self, lowest_first: bool) -> None:
        for example in examples_of(Addition, lowest_first=lowest_first):
            first, second, total = (
                int("".join(digits.split())[:: -1 if lowest_first else 1])
                for digits in (*example.text.split(" + "), example.target or "")
            )
            assert first + second == total
            assert len(str(first)) == len(str(second))
            # a digit carries where the digits above, added by themselves, miss one
            places = range(1, len(str(first)) + 1)
            carried = "".join("01"[total // 10**p - first // 10**p - second // 10**p] for p in places)
            assert (example.difficulty or {})["carries"] == max(map(len, carried.split("0")))

    def test_parity_and_majority(self) -> None:
        for example in examples_of(Parity):
            tags = [("even", "odd")["".join(example.words or ())[:end].count("1") % 2] for end in range(1, 21)]
            assert list(example.tags or ()) == tags[: len(example.words or ())]
            assert example.label == (example.tags or ())[-1]
        for example in examples_of(Majority):
            sums = [sum(1 if word == "1" else -1 for word in example.text.split()[:end]) for end in range(1, 21)]
            tags = ["tie" if total == 0 else "ones" if total > 0 else "zeros" for total in sums]
            assert list(example.tags or ()) == tags[: len(example.words or ())]
            assert example.label == (example.tags or ())[-1]

    @pytest.mark.parametrize("kinds", [1, 3])
    def test_brackets(self, kinds: int) -> None:
        labels = set()
        for example in examples_of(Brackets, kinds=kinds):
            rest, before = example.text.replace(" ", ""), ""
            while rest != before:  # what is left when all that match are taken out
                before, rest = rest, re.sub(r"\((\d)\1\)", "", rest)
            assert example.label == ("broken" if rest else "balanced")
            labels.add(example.label)
            if rest:
                continue
            for end, tag in enumerate(example.tags or (), 1):
                left, before = "".join((example.words or ())[:end]), ""
                while left != before:
                    before, left = left, re.sub(r"\((\d)\1\)", "", left)
                assert tag == (f"{left[-1]})" if left else "-")
            signs = [1 if word[0] == "(" else -1 for word in example.words or ()]
            assert (example.difficulty or {})["depth"] == max(sum(signs[:end]) for end in range(len(signs) + 1))
        assert labels == {"broken", "balanced"}

    def test_tags_continue_where_brackets_are_broken(self) -> None:
        for example in examples_of(Brackets):
            open_now: list[str] = []
            for word, tag in zip(example.words or (), example.tags or (), strict=True):
                if word[0] == "(":
                    open_now.append(word[1:] + ")")
                else:
                    del open_now[-1:]
                assert tag == [*["-"], *open_now][-1]

    def test_the_outermost_operations_of_list_ops_are_its_floor(self) -> None:
        """The best of all rules that give one result per operation."""
        corpus, examples = made(ListOps), examples_of(ListOps)
        rules = ("MIN", "MAX", "MED", "SM")
        hits = [[sum(x.text.startswith(f"[{rule} ") and x.label == str(n) for x in examples) for n in range(10)]
                for rule in rules]  # fmt: skip
        assert corpus.floor("classification", examples) == {"accuracy": sum(map(max, hits)) / len(examples)}
        assert corpus.floor("language_modeling", examples) == {}

    def test_the_floor_of_recall_is_that_of_guessing_among_the_values_of_a_text(self) -> None:
        examples, random, hits, count = examples_of(Recall), Random(0), 0, 0
        for example in examples * 20:
            queries = [tag for tag in example.tags or () if tag]
            hits += sum(random.choice(queries) == tag for tag in queries)
            count += len(queries)
        found = made(Recall).floor("tagging", examples)["accuracy"]
        assert found == pytest.approx(hits / count, abs=4 * (found / count) ** 0.5)

    def test_list_ops(self) -> None:
        seen = set()
        for example in examples_of(ListOps):
            python = example.text
            for name in ("MIN", "MAX", "MED", "SM"):
                python = python.replace(f"[{name} ", f"{name}(")
            python = python.replace(" ]", ")").replace(" ", ",")
            functions = {
                "MIN": lambda *x: min(x),
                "MAX": lambda *x: max(x),
                "MED": lambda *x: (sorted(x)[(len(x) - 1) // 2] + sorted(x)[len(x) // 2]) // 2,
                "SM": lambda *x: sum(x) % 10,
            }
            assert example.label == str(eval(python, functions))
            seen |= set(example.text.split())
            deep = [example.text[:end].count("[") - example.text[:end].count("]") for end in range(len(example.text))]
            assert (example.difficulty or {})["depth"] == max(deep)
        assert seen == {"[MIN", "[MAX", "[MED", "[SM", "]", *"0123456789"}

    def test_recall(self) -> None:
        for example in examples_of(Recall):
            words, tags = example.words or (), example.tags or ()
            pairs = sum(tag is not None for tag in tags)
            assert len(words) == len(tags) >= 4 * pairs
            known = dict(zip(words[0 : 2 * pairs : 2], words[1 : 2 * pairs : 2], strict=True))
            assert len(known) == len(set(known.values())) == pairs
            assert {word: tag for word, tag in zip(words, tags, strict=True) if tag is not None} == known
            asked = [place for place, tag in enumerate(tags) if tag is not None]
            assert min(asked) >= 2 * pairs
            assert {place % 2 for place in asked} == {0}

    def test_queries_of_recall_are_asked_soon(self) -> None:
        """The place g has a probability proportional to g ** -0.99."""
        corpus = made(Recall, min_pairs=1, max_pairs=1, test_max_pairs=1, min_length=12, max_length=12, num_train=4000)
        places = [next(i for i, tag in enumerate(example.tags or ()) if tag) for example in corpus.splits().train]
        weights = [g**-0.99 for g in range(1, 6)]
        for number, weight in enumerate(weights):
            assert places.count(2 + 2 * number) / 4000 == pytest.approx(weight / sum(weights), abs=0.03)

    def test_needle(self) -> None:
        for example in examples_of(Needle):
            (found,) = re.findall(r"needle\d", example.text)
            assert example.label == found
            before = len(example.text.split("needle")[0].split())
            share = 100 * before / (len(example.text.split()) - 1)
            assert abs((example.difficulty or {})["depth"] - share) <= 5

    def test_distance(self) -> None:
        found = examples_of(Distance)
        for example in found:
            words, sizes = example.text.split(), example.difficulty or {}
            pairs, asked = words[: 2 * sizes["pairs"]], words[-sizes["pairs"] :]
            assert [tag for tag in example.tags or () if tag] == [pairs[pairs.index(key) + 1] for key in asked]
            assert not any((example.tags or ())[: -sizes["pairs"]])
            assert len(set(pairs)) == len(pairs)
            assert sorted(asked) == sorted(pairs[::2])
            gap = words[len(pairs) : -len(asked)]
            assert len(gap) == sizes["gap"]
            assert {word[0] for word in gap} == {"f"}
        cells = Counter(tuple((example.difficulty or {}).values()) for example in made(Distance).splits().train)
        assert set(cells) == {(1, 2), (1, 5), (3, 2), (3, 5)}
        assert min(cells.values()) > 70
        assert {(example.difficulty or {})["gap"] for example in made(Distance).splits().test} == {2, 5, 9}

    @pytest.mark.parametrize("kind", [Distance, Relations])
    def test_the_floor_is_the_best_that_the_words_of_a_text_without_their_order_give(self, kind: type[Any]) -> None:
        """Many orders of each text: the share of the answer that is right most often."""
        examples, random, chances = made(kind).splits().test[:60], Random(0), []
        for example in examples:
            words, sizes = example.text.split(), example.difficulty or {}
            values, answers = words[1 : (2 * sizes["pairs"] if kind is Distance else 8) : 2], Counter[object]()
            for _ in range(600):
                random.shuffle(values)  # any key may have any value
                answers[values[0] if kind is Distance else sum(map(int, values[: sizes["terms"]]))] += 1
            chances += [max(answers.values()) / 600] * (sizes["pairs"] if kind is Distance else 1)
        found = made(kind).floor("tagging", examples)["accuracy"]
        assert found == pytest.approx(sum(chances) / len(chances), abs=0.03)

    def test_relations(self) -> None:
        for example in examples_of(Relations):
            pairs, queries = example.text.split()[:8], " ".join(example.text.split()[8:]).split("sum")
            values = dict(zip(pairs[::2], map(int, pairs[1::2]), strict=True))
            assert len(values) == 4
            assert queries.pop(0) == ""
            sums = [str(sum(values[key] for key in query.split())) for query in queries]
            assert [tag for tag in example.tags or () if tag] == sums
            assert len(sums) == 2
            ends = [w for w, t in zip(example.words or (), example.tags or (), strict=True) if t]
            assert ends == [query.split()[-1] for query in queries]
            assert {len(set(query.split())) for query in queries} == {(example.difficulty or {})["terms"]}

    def test_roles(self) -> None:
        actors, texts = Counter[bool](), []
        for example in examples_of(Roles):
            names = [word for word in example.text.split() if word.istitle()]
            assert example.label == names[0]
            actors[names[0] < names[1]] += 1
            assert len(names) == 2
            assert len(example.text.split()) == 3 + (example.difficulty or {})["fillers"]
            texts.append(example.text)
        assert actors[True] / len(texts) == pytest.approx(made(Roles).floor("classification", [])["accuracy"], abs=0.06)
        assert any(text.split()[0].islower() for text in texts)
        assert any(text.split()[-1].islower() for text in texts)

    @pytest.mark.parametrize("echo", [False, True])
    def test_senses(self, echo: bool) -> None:
        found, right = examples_of(Senses, echo=echo), Counter[int]()
        for example in found:
            words = example.text.split()
            echoed = words.pop() if echo else None
            ((place, ambiguous),) = ((i, word) for i, word in enumerate(words) if word[0] == "m")
            ((cue, topic),) = ((i, word[0]) for i, word in enumerate(words) if word[0] in "ab")
            assert (example.tags or ())[place] == topic
            assert sum(tag is not None for tag in example.tags or ()) == 1
            assert echoed == (f"{ambiguous}{topic}" if echo else None)
            assert example.target == re.sub(rf"\b{ambiguous}\b", f"{ambiguous}{topic}", example.text)
            assert example.difficulty == {"distance": abs(cue - place), "right": int(cue > place)}
            right[cue > place] += 1
        share = right[True] / len(found)
        assert share == pytest.approx(0.5, abs=0.06)
        best = made(Senses).optimum("tagging", "decoder_only", found)["accuracy"]
        assert best == pytest.approx(1 - share / 2)

    @pytest.mark.parametrize("mappings", [None, 1, 7])
    def test_mappings(self, mappings: int | None) -> None:
        splits = made(Mappings, mappings=mappings, min_shots=8, num_train=3000).splits()
        seen = []
        for part in (splits.train, splits.validation, splits.test):
            known = set()
            for example in part:
                shots = (example.difficulty or {})["shots"]
                pairs, asked = example.text.split()[: 2 * shots], example.text.split()[2 * shots :]
                mapping = {*zip(pairs[::2], pairs[1::2], strict=True)}
                assert len({x for x, _ in mapping}) == len({y for _, y in mapping}) == len(mapping)
                if len(mapping) == 5:
                    known.add(tuple(sorted(mapping)))
                assert sorted(asked) == sorted(x for x, _ in mapping)
                answers = [dict(mapping)[x] for x in asked]
                assert [tag for tag in example.tags or () if tag] == answers == (example.target or "").split()
                assert (example.tags or ())[-len(asked) :] == tuple(answers)
            seen.append(known)
        assert len(seen[0]) == mappings or (mappings is None and 80 < len(seen[0]) < 110)
        assert seen[1] <= seen[0]
        assert not seen[0] & seen[2]

    def test_the_floor_of_mappings_is_that_of_counting(self) -> None:
        """A guess among the words y that occur as often as the x."""
        corpus, random = made(Mappings, min_shots=3, max_shots=3, test_max_shots=6), Random(0)
        examples, right, asked = corpus.splits().test, 0, 0
        for example in examples * 20:
            pairs = example.text.split()[: 2 * (example.difficulty or {})["shots"]]
            for x in {*pairs[::2]}:
                guess = random.choice([y for y in {*pairs[1::2]} if pairs.count(y) == pairs.count(x)])
                right, asked = right + ((x, guess) in zip(pairs[::2], pairs[1::2], strict=True)), asked + 1
        assert corpus.floor("tagging", examples)["accuracy"] == pytest.approx(right / asked, abs=0.03)
        assert corpus.floor("translation", examples) == {}


ENUMERATED: dict[type[SyntheticCorpus], dict[str, Any]] = {
    Copy: {"vocabulary": 2, "min_length": 1, "max_length": 3, "test_max_length": 4},
    Sort: {"vocabulary": 2, "min_length": 1, "max_length": 3, "test_max_length": 4},
    Addition: {"min_digits": 1, "max_digits": 1, "test_max_digits": 1, "lowest_first": False},
    Parity: {"min_length": 1, "max_length": 3, "test_max_length": 4},
    Majority: {"min_length": 1, "max_length": 3, "test_max_length": 4},
    Brackets: {
        "kinds": 2, "min_length": 2, "max_length": 4, "test_max_length": 4,
        "min_depth": 1, "max_depth": 2, "test_max_depth": 2,
    },
    ListOps: {"max_args": 2, "min_depth": 1, "max_depth": 1, "test_max_depth": 1, "min_length": 4, "max_length": 4},
    Recall: {
        "vocabulary": 4, "min_pairs": 1, "max_pairs": 2, "test_max_pairs": 2,
        "min_length": 4, "max_length": 8, "test_max_length": 8,
    },
    Needle: {"vocabulary": 2, "needles": 2, "min_length": 2, "max_length": 4, "test_max_length": 4},
    Distance: {"vocabulary": 4, "fillers": 1, "pairs": [1, 2], "gaps": [1], "test_gaps": [1, 2]},
    Relations: {
        "keys": 3, "numbers": 2, "pairs": 2, "queries": 1, "min_terms": 1, "max_terms": 2, "test_max_terms": 2,
    },
    Roles: {"names": 2, "min_fillers": 0, "max_fillers": 1, "test_max_fillers": 2},
    Mappings: {"symbols": 5, "mappings": None, "min_shots": 1, "max_shots": 2, "test_max_shots": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", ENUMERATED)
def test_the_optimum_is_that_of_the_best_guesser_of_all_texts(kind: type[SyntheticCorpus]) -> None:
    """Of a space so small that nearly all of it is drawn, the best guess by the text, and of a tag by the words up to
    its own, is right as often as the optimum says."""
    found = examples_of(kind, **ENUMERATED[kind], num_train=3000)
    corpus = made(kind, **ENUMERATED[kind])
    answers: dict[str, dict[object, set[object]]] = {name: defaultdict(set) for name in ("target", "label", "tags")}
    for example in found:
        answers["target"][example.text].add(example.target)
        answers["label"][example.text].add(example.label)
        for end, tag in enumerate(example.tags or (), 1):
            answers["tags"][(example.words or ())[:end]].add(tag)
    if kind in (
        Recall,
        Relations,
        Mappings,
    ):  # whether a word is asked does not follow from the words; what it is asked for does
        answers["tags"] = defaultdict(set, {words: tags - {None} for words, tags in answers["tags"].items()})
    tasks = {"target": ("translation", "exact_match"), "label": ("classification", "accuracy")}
    for column, (task, metric) in {**tasks, "tags": ("tagging", "accuracy")}.items():
        if column in corpus.columns and (kind, column) != (Sort, "tags"):  # which follow from what stands behind
            right = [len(possible) <= 1 for possible in answers[column].values()]
            assert corpus.optimum(task, "full", found) == {metric: sum(right) / len(right)} == {metric: 1}
    assert corpus.optimum("language_modeling", "full", found) == {}


@pytest.mark.parametrize("kind", [Copy, Reverse, Sort])
def test_the_tags_are_the_answer(kind: type[SyntheticCorpus]) -> None:
    """Word by word; a causal stack can know those of copying alone."""
    for example in examples_of(kind):
        assert " ".join(example.tags or ()) == example.target
        assert " ".join(example.words or ()) == example.text
    optima = {name: made(kind).optimum("tagging", name, []) for name in ("encoder_only", "decoder_only")}
    assert optima == {"encoder_only": {"accuracy": 1}, "decoder_only": {"accuracy": 1} if kind is Copy else {}}


@pytest.mark.parametrize("kind", SIZES)
class TestSplits:
    def test_share_no_text(self, kind: type[SyntheticCorpus]) -> None:
        splits = made(kind).splits()
        texts = [{example.text for example in part} for part in (splits.train, splits.validation, splits.test)]
        assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [400, 60, 200]
        assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]

    def test_follow_from_the_seed_and_each_from_nothing_else(self, kind: type[SyntheticCorpus]) -> None:
        splits = made(kind).splits()
        assert made(kind, num_train=50).splits().test == splits.test
        assert made(kind, num_test=50).splits().train == splits.train
        assert made(kind, seed=2).splits().train != splits.train

    def test_axes(self, kind: type[SyntheticCorpus]) -> None:
        """The test goes to the end of each axis, training and validation to theirs; all examples say where they are."""
        splits, sizes = made(kind).splits(), SIZES[kind]
        for part, prefix in ((splits.train, ""), (splits.validation, ""), (splits.test, "test_")):
            for axis in {name.removeprefix("min_") for name in sizes if name.startswith("min_")}:
                found = [(example.difficulty or {})[axis] for example in part]
                high = sizes.get(f"{prefix}max_{axis}", sizes[f"max_{axis}"])
                assert min(found) >= sizes[f"min_{axis}"]
                assert max(found) <= high
                assert max(found) >= high - 3 or (kind, axis) == (ListOps, "length")  # which its depth decides
                if axis in AXES:
                    assert found == [AXES[axis](example) for example in part]

    def test_classes_are_those_that_it_states(self, kind: type[SyntheticCorpus]) -> None:
        info, found = made(kind).info, examples_of(kind)
        assert {example.label for example in found} - {None} == set(info.labels)
        assert {tag for example in found for tag in example.tags or ()} - {None} == set(info.tag_labels)
        columns = {name for name in ("text", "target", "label", "words", "tags") if getattr(found[0], name) is not None}
        assert set(made(kind).columns) == columns


@given(st.sampled_from(list(SIZES)), st.integers(0, 10**6))
def test_any_seed_gives_examples(kind: type[SyntheticCorpus], seed: int) -> None:
    examples = made(kind, seed=seed, num_train=5, num_validation=3, num_test=3).splits().train
    assert all(example.text for example in examples)
    assert all(a is not b for a, b in pairwise(examples))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (Copy, {"min_length": 0}, r"data\.min_length=0: expected at least 1"),
        (Copy, {"max_length": 3}, r"data\.max_length=3: expected at least data\.min_length=4"),
        (Sort, {"test_max_length": 8}, r"data\.test_max_length=8: expected at least data\.max_length=12"),
        (Reverse, {"vocabulary": 1}, r"data\.vocabulary=1: expected at least 2"),
        (Reverse, {"num_test": 0}, r"data\.num_test=0: expected at least 1"),
        (Addition, {"min_digits": 0}, r"data\.min_digits=0: expected at least 1"),
        (Parity, {"min_length": 13}, r"data\.max_length=12: expected at least data\.min_length=13"),
        (Brackets, {"kinds": 0}, r"data\.kinds=0: expected at least 1"),
        (Brackets, {"max_length": 11}, r"data\.max_length=11: expected an even number"),
        (Brackets, {"test_max_depth": 11}, r"data\.test_max_depth=11: expected at most 10, half of data\.test_max_len"),
        (ListOps, {"max_args": 1}, r"data\.max_args=1: expected at least 2"),
        (ListOps, {"min_length": 7}, r"data\.min_length=7: expected at most 6, the longest text of data\.min_depth=1"),
        (ListOps, {"max_length": 12}, r"data\.max_length=12: expected at least 13, .* data\.test_max_depth=4"),
        (Recall, {"vocabulary": 9}, r"data\.vocabulary=9: expected at least 10 \(a key and a value for each pair"),
        (Recall, {"max_pairs": 5}, r"data\.max_pairs=5: expected at most 4, a quarter of data\.max_length"),
        (Recall, {"test_max_pairs": 7}, r"data\.test_max_pairs=7: expected at most 6, .* data\.test_max_length"),
        (Needle, {"min_length": 1}, r"data\.min_length=1: expected at least 2"),
        (Needle, {"needles": 1}, r"data\.needles=1: expected at least 2"),
        (Distance, {"pairs": []}, r"data\.pairs=\[\]: expected numbers of at least 1"),
        (Distance, {"test_gaps": [2, 9]}, r"data\.test_gaps=\[2, 9\]: expected also 5, as in data\.gaps"),
        (Distance, {"pairs": [7]}, r"data\.vocabulary=12: expected at least 14"),
        (Distance, {"fillers": 0}, r"data\.fillers=0: expected at least 1"),
        (Relations, {"numbers": 1}, r"data\.numbers=1: expected at least 2"),
        (Relations, {"pairs": 3}, r"data\.pairs=3: expected at least data\.test_max_terms=4 and at most data\.keys=6"),
        (Relations, {"pairs": 7}, r"data\.pairs=7: expected at least data\.test_max_terms=4 and at most data\.keys=6"),
        (Roles, {"names": 13}, r"data\.names=13: expected 2 to 12"),
        (Roles, {"min_fillers": -1}, r"data\.min_fillers=-1: expected at least 0"),
        (Senses, {"length": 8}, r"data\.length=8: expected more than data\.test_max_distance=8"),
        (Senses, {"cues": 0}, r"data\.cues=0: expected at least 1"),
        (Mappings, {"symbols": 4}, r"data\.symbols=4: expected at least 5"),
        (Mappings, {"mappings": 61}, r"data\.mappings=61: expected 1 to 60, or null"),
    ],
)
def test_rejected(kind: type[SyntheticCorpus], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(kind, **changes)


def test_expressions_of_no_length_are_rejected() -> None:
    corpus = made(ListOps, min_depth=4, max_depth=4, max_length=13)  # each operation has two arguments, or it is longer
    with pytest.raises(ValueError, match=r"none of 1,000 texts of depth 4 has such a length"):
        corpus.splits()
