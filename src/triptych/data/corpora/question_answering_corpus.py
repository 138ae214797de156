"""Questions that a span of a text answers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.data.corpora.row_corpus import TableCorpus
from triptych.data.example import SourceLocation
from triptych.data.readers.files import format_of, read_text, resolve_file
from triptych.data.readers.tables import NAMES_ITS_COLUMNS, Row


@dataclass(kw_only=True)
class QuestionAnsweringCorpus(TableCorpus):
    """Questions, a text for each, and the spans of the text that answer it. The suffix determines the format:

    - .json: SQuAD's files, 1.1 and 2.0 (Rajpurkar et al. 2016, 2018);
    - .jsonl: one object per line with a question, a context and its answers. The answers are ``{"text": [...],
      "answer_start": [...]}`` as in Hugging Face datasets, or a list of objects with these two keys, as in SQuAD's
      files;
    - .parquet: the same columns.

    Each file may be compressed (.gz, .zst). If there are no answers, the text does not answer the question. Fractions
    are drawn from the questions, so questions about one text may be in different splits.

    Attributes:
        text: column of the questions, in .jsonl and .parquet.
        text_pair: column of the contexts.
        answers: column of the answers.
    """

    formats = (".json", *NAMES_ITS_COLUMNS)
    columns = ("text", "text_pair", "answers")

    text: str
    text_pair: str
    answers: str

    def rows(self, source: str) -> Iterator[tuple[SourceLocation, Row]]:
        """Yields the questions; the place of a question in SQuAD's files is its id."""
        path = resolve_file(self.dir, "data", source)
        if format_of(source) != ".json":
            yield from super().rows(source)
            return
        columns = dict(self.reader.items)
        for name, question, context, answers in _squad(path):
            yield (path, name), {columns["text"]: question, columns["text_pair"]: context, columns["answers"]: answers}


def _squad(path: Path) -> Iterator[tuple[str, object, object, object]]:
    """Yields name, question, context and answers of each question in a SQuAD file."""
    try:
        content = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    for i, article in enumerate(_part(content, "data", list, str(path))):
        of_article = f"{path}, data {i}"
        for j, paragraph in enumerate(_part(article, "paragraphs", list, of_article)):
            of_paragraph = f"{of_article}, paragraph {j}"
            context = _part(paragraph, "context", str, of_paragraph)
            for k, asked in enumerate(_part(paragraph, "qas", list, of_paragraph)):
                where = f"{of_paragraph}, question {k}"
                question = _part(asked, "question", str, where)
                name = f"question {asked['id']}" if "id" in asked else where.removeprefix(f"{path}, ")
                answers = _part(asked, "answers", list, f"{path}, {name}")
                if "is_impossible" in asked and asked["is_impossible"] != (not answers):
                    raise ValueError(
                        f"{path}, {name}: is_impossible is {json.dumps(asked['is_impossible'])}, but there are "
                        f"{len(answers)} answers"
                    )
                yield name, question, context, answers


def _part(value: object, key: str, kind: type[list[Any]] | type[str], where: str) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        name = "a string" if kind is str else "a list"
        raise ValueError(f"{where}: expected an object whose {key} is {name} (SQuAD's format)")
    return value[key]
