"""Words with a tag each."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.data import CorpusInfo, TaggedText
from triptych.data.corpora.tagged_text import CONLLU

SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\u00a0\u3000"  # of str.split and str.splitlines, but not here

Sentences = list[list[tuple[str, str]]]


def corpus(folder: Path, train: str, **options: Any) -> TaggedText:
    given = {"validation": train, "test": train, "column": "upos", "word": 0, "tag": -1, "split_seed": 1}
    return TaggedText(**{"dir": str(folder), "train": train, **given, **options})


def read(folder: Path, name: str, content: str, **options: Any) -> Sentences:
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    examples = corpus(folder, name, **options).splits().train
    assert all(e.text == " ".join(e.words or ()) for e in examples)
    return [list(zip(e.words or (), e.tags or (), strict=True)) for e in examples]


def conllu(number: object, word: str, tag: str = "X", column: str = "upos") -> str:
    fields = dict.fromkeys(CONLLU, "_") | {"id": str(number), "form": word, column: tag}
    return "\t".join(fields[name] for name in CONLLU) + "\n"


field = st.text(
    st.sampled_from("#-_.1" + SEPARATORS) | st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t "),
    min_size=1,
    max_size=4,
).filter(lambda text: not text.startswith(("\ufeff", "-DOCSTART-")))
sentences = st.lists(st.lists(st.tuples(field, field), min_size=1, max_size=4), min_size=1, max_size=4)
column = st.sampled_from(["lemma", "upos", "xpos", "feats", "deprel"])


class TestAnySentences:
    """Written by somebody else's code."""

    @settings(max_examples=60)
    @given(rows=sentences, column=column, packed=st.booleans(), end=st.sampled_from(["\n", "\r\n"]), data=st.data())
    def test_of_conllu(
        self, tmp_path_factory: pytest.TempPathFactory, rows: Sentences, column: str, packed: bool, end: str,
        data: st.DataObject,
    ) -> None:  # fmt: skip
        """Whatever else the format has between the words is left out."""
        content, places = "", []
        for sentence in rows:
            content += data.draw(st.sampled_from(["", "# text = 1\tX\n# \n", "\n"]))
            for i, (word, tag) in enumerate(sentence, 1):
                content += data.draw(st.sampled_from(["", conllu(f"{i}-{i + 1}", "both"), conllu(f"{i - 1}.1", "")]))
                if i == 1:
                    places.append(content.count("\n") + 1)
                content += conllu(i, word, tag, column)
            content += "\n"
        name = f"x.conllu{'.gz' if packed else ''}"
        folder = tmp_path_factory.getbasetemp()
        assert read(folder, name, content.rstrip("\n").replace("\n", end), column=column) == rows
        assert [e.place for e in corpus(folder, name).splits().test] == [(folder / name, line) for line in places]

    @settings(max_examples=60)
    @given(
        rows=sentences, before=st.integers(0, 2), between=st.integers(0, 2), after=st.integers(0, 2),
        separator=st.sampled_from(["\t", " ", "   "]), from_end=st.booleans(), documents=st.booleans(),
    )  # fmt: skip
    def test_of_columns(
        self, tmp_path_factory: pytest.TempPathFactory, rows: Sentences, before: int, between: int, after: int,
        separator: str, from_end: bool, documents: bool,
    ) -> None:  # fmt: skip
        lines = ["-DOCSTART- -X- O", ""] * documents
        for sentence in rows:
            for word, tag in sentence:
                lines.append(separator.join(["more"] * before + [word] + ["x"] * between + [tag] + ["0"] * after))
            lines += ["", " "]
        width = before + between + after + 2
        numbers = {"word": before, "tag": before + between + 1}
        if from_end:
            numbers = {key: number - width for key, number in numbers.items()}
        folder = tmp_path_factory.getbasetemp()
        assert read(folder, "x.conll", "\n".join(lines), **numbers) == rows


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("x.conllu", ["1\tone\tX\n"], r"line 4: 3 fields between tabs; expected 10"),
        ("x.conllu", [" \n"], r"line 4: 1 field between tabs; expected 10"),
        ("x.conllu", [conllu(1, "")], r"line 4: the word is empty"),
        ("x.conllu", [conllu(1, "a", "")], r"line 4: the tag is empty"),
        ("x.conllu", [conllu("1-", "a")], r"line 4: the number of the word is 1-; expected 1"),
        ("x.conllu", [conllu(1, "a"), conllu(1, "b")], r"line 5: the number of the word is 1; expected 2"),
        ("x.conllu", [conllu(2, "a")], r"line 4: the number of the word is 2; expected 1"),
        ("x.txt", ["a\n"], r"line 4: 1 field; expected 10, as in line 2"),
        ("x.txt", ["a\tb\n"], r"line 4: 2 fields; expected 10, as in line 2"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, name: str, lines: list[str], message: str) -> None:
    content = ("# a comment\n" if name == "x.conllu" else "\n") + conllu(1, "one") + "\n" + "".join(lines)
    with pytest.raises(ValueError, match=rf"/{name}, {message}$"):
        read(tmp_path, name, content)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tag": 2}, r"2 fields; data\.tag=2 is out of range"),
        ({"word": -3}, r"2 fields; data\.word=-3 is out of range"),
        ({"word": -1, "tag": 1}, r"2 fields; data\.word=-1 and data\.tag=1 are the same column"),
    ],
)
def test_columns_that_are_not_there_are_rejected(tmp_path: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=rf"/x\.txt, line 2: {message}$"):
        read(tmp_path, "x.txt", "\na b\n", **options)


def test_a_comment_of_free_text_is_no_word(tmp_path: Path) -> None:
    for content in ("# annotated by hand\n\na X\n", "# 12\n\na X Y\n", "a X\n\n# annotated by hand\n"):
        with pytest.raises(ValueError, match=r'line 3: .*in line 1; the only comments are "# id \.\.\." and "# key = '):
            read(tmp_path, "x.txt", content, word=0, tag=-1)


@pytest.mark.parametrize(("name", "content"), [("x.conllu", ""), ("x.conllu", "# text = a\n"), ("x.txt", "\n\n")])
def test_no_words_are_rejected(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: no rows"):
        read(tmp_path, name, content)


def test_the_tags_are_those_of_the_training(tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("a Z\n")
    (tmp_path / "x.txt").write_text("a 10\nb 9\n\nc 1.5\n")
    assert corpus(tmp_path, "x.txt", test="new.txt").info == CorpusInfo(tag_labels=("1.5", "9", "10"))
    assert not CorpusInfo().is_stream


def test_files_are_looked_for_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a Z\n")
    with pytest.raises(ValueError, match=r"^data\.test=y\.txt: no such file .*did you mean x\.txt"):
        corpus(tmp_path, "x.txt", test="y.txt")
    with pytest.raises(ValueError, match=r"data\.validation=0\.5 and data\.test=0\.5"):
        corpus(tmp_path, "x.txt", validation=0.5, test=0.5)


class TestComments:
    """Of files with columns between tabs or blanks. The writers of such files agree on no mark for a comment."""

    LINES = ("# id 4f2a-10", "# id 4f2a-10\tdomain=en", "# text = # is a sign", "# sent_id = 3",
             "# global.columns = X Y", "# newdoc id = a", "# newpar", "# text = ")  # fmt: skip

    @settings(max_examples=30)
    @given(
        rows=st.lists(st.lists(st.sampled_from(["#", "a", "id"]), min_size=1, max_size=3), min_size=1, max_size=4),
        separator=st.sampled_from(["\t", " "]), middle=st.sampled_from([[], ["_"], ["#", "O"]]), data=st.data(),
    )  # fmt: skip
    def test_before_a_sentence_are_left_out(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], separator: str, middle: list[str],
        data: st.DataObject,
    ) -> None:  # fmt: skip
        """A word that is ``#`` stays one, at the beginning of a sentence too."""
        lines, places = [], []
        for words in rows:
            lines += data.draw(st.lists(st.sampled_from(self.LINES), max_size=2))
            places.append(len(lines) + 1)
            lines += [separator.join([word, *middle, "B-NP"]) for word in words] + [""]
        folder = tmp_path_factory.getbasetemp()
        found = read(folder, "x.conll", "\n".join(lines))
        assert found == [[(word, "B-NP") for word in words] for words in rows]
        assert [e.place for e in corpus(folder, "x.conll").splits().test] == [(folder / "x.conll", n) for n in places]

    @pytest.mark.parametrize("line", ["# # B-NP", "# O", "#\tO", "# = SYM", "#id O", "# Case=Nom", "# # = O"])
    def test_words_stay_words(self, tmp_path: Path, line: str) -> None:
        word, *_, tag = line.split()
        expected = [(word, tag), ("b", "X")]
        following = f"b{line[len(word) : -len(tag)]}X"
        assert read(tmp_path, "x.txt", f"{line}\n{following}\n") == [expected]

    def test_within_a_sentence_are_words(self, tmp_path: Path) -> None:
        assert read(tmp_path, "x.txt", "a A\n# id\n\n# id 7\nb B\n") == [[("a", "A"), ("#", "id")], [("b", "B")]]
