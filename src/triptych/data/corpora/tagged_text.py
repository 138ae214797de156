"""Words with one tag each: CoNLL-U, or one word per line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triptych.config import counted
from triptych.data.corpora.row_corpus import TableCorpus
from triptych.data.example import SourceLocation
from triptych.data.readers.columns import Columns
from triptych.data.readers.files import format_of, read_lines, resolve_file
from triptych.data.readers.tables import NO_TEXT, Row, check_is_text

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")  # a multiword token or an empty node
COMMENT = re.compile(r"# (?:id[ \t].+|newdoc|newpar|[A-Za-z][^\t=]* = .*)")  # "#" may also be a word
COMMENTS = '; the only comments are "# id ..." and "# key = value" before a sentence'
DOCUMENT = "-DOCSTART-"


@dataclass(kw_only=True)
class TaggedText(TableCorpus):
    """Sentences with one word per line, separated by empty lines. The text of an example is its words, joined by
    spaces. The file name determines the format:

    - .conllu: CoNLL-U, ten tab-separated columns; comments, multiword tokens (1-2) and empty nodes (8.1) are skipped.
      https://universaldependencies.org/format.html
    - other names: the same number of columns in each line, separated by tabs, or by spaces in lines without tabs. Lines
      that start with -DOCSTART- are skipped (CoNLL-2003), as are comments before the first word of a sentence: ``# id
      ...`` (MultiCoNER) and ``# key = value`` (CoNLL-U). Any other ``#`` is a word.

    Each file may be compressed (.gz, .zst). The tags are those of the training examples.

    Attributes:
        column: column of the tags in CoNLL-U.
        word: column number of the words in other files, from 0; negative numbers count from the end.
        tag: column number of the tags in other files, from 0; negative numbers count from the end.
    """

    formats = ()
    columns = ("text", "words", "tags")
    reader = Columns(words="words", tags="tags")

    column: Literal["lemma", "upos", "xpos", "feats", "deprel"]
    word: int
    tag: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, file in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            if isinstance(file, str):
                check_is_text(
                    f"data.{name}", file, "CoNLL-U, or one word per line with tabs or spaces between its columns",
                    f"data=hub data.name={self.dir} data.words=COLUMN data.tags=COLUMN", {*NO_TEXT} - {".tsv"},
                )  # fmt: skip

    def rows(self, source: str) -> Iterator[tuple[SourceLocation, Row]]:
        """Yields the sentences, with the line of the first word as place.

        Raises:
            ValueError: a line in no such format, or without a word or a tag.
        """
        path = resolve_file(self.dir, "data", source)
        words = self._conllu_words(path) if format_of(source) == ".conllu" else self._table_words(path)
        begin, sentence = 0, list[tuple[str, str]]()
        for line, word in words:
            if word is not None:
                if not all(word):
                    raise ValueError(f"{path}, line {line}: the {'tag' if word[0] else 'word'} is empty")
                begin = begin if sentence else line
                sentence.append(word)
            elif sentence:
                yield (path, begin), {"words": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}
                sentence = []

    def _conllu_words(self, path: Path) -> Iterator[tuple[int, tuple[str, str] | None]]:
        """Yields the line, and word and tag, or None at the end of a sentence."""
        tag, number = CONLLU.index(self.column), 0
        for line, text in enumerate([*read_lines(path), ""], 1):
            fields = text.split("\t")
            if not text:
                number = 0
                yield line, None
            elif text.startswith("#"):
                continue
            elif len(fields) != len(CONLLU):
                raise ValueError(
                    f"{path}, line {line}: {counted(len(fields), 'field')} between tabs; expected {len(CONLLU)}"
                )
            elif not NO_WORD.fullmatch(fields[0]):
                number += 1
                if fields[0] != str(number):
                    raise ValueError(
                        f"{path}, line {line}: the number of the word is {fields[0][:60]}; expected {number}"
                    )
                yield line, (fields[1], fields[tag])

    def _table_words(self, path: Path) -> Iterator[tuple[int, tuple[str, str] | None]]:
        """Yields the line, and word and tag, or None at the end of a sentence."""
        first, width = 0, 0  # number of the first line, number of its fields
        is_within = False  # within a sentence
        is_comment = False  # the first line may be a comment
        for line, text in enumerate([*read_lines(path), ""], 1):
            if not text.strip(" \t") or text.startswith(DOCUMENT):
                is_within = False
                yield line, None
                continue
            if not is_within and COMMENT.fullmatch(text):
                continue
            is_within = True
            fields = text.split("\t") if "\t" in text else re.split(" +", text.strip(" "))
            found = f"{path}, line {line}: {counted(len(fields), 'field')}"
            if not first:
                first, width, is_comment = line, len(fields), text.startswith("#")
                for key in ("word", "tag"):
                    if not -width <= getattr(self, key) < width:
                        raise ValueError(f"{found}; data.{key}={getattr(self, key)} is out of range")
                if self.word % width == self.tag % width:
                    raise ValueError(f"{found}; data.word={self.word} and data.tag={self.tag} are the same column")
            if len(fields) != width:
                hint = COMMENTS if is_comment or text.startswith("#") else ""
                raise ValueError(f"{found}; expected {width}, as in line {first}{hint}")
            yield line, (fields[self.word], fields[self.tag])
