"""A corpus of which the test split alone is read, as ``triptych evaluate`` does."""

from pathlib import Path
from typing import Any

import pytest

from triptych.data import LabelledText, ParallelText, PlainText, QuestionAnsweringCorpus, TaggedText

FILES = {
    "a.en": "one\ntwo\n",
    "a.de": "eins\nzwei\n",
    "a.tsv": "text\tlabel\ngood\t1\nbad\t0\n",
    "a.conll": "one NUM\ntwo NUM\n\nthree NUM\n",
    "a.jsonl": '{"question": "who?", "context": "she did", "answers": [{"text": "she", "answer_start": 0}]}\n' * 2,
    "a.txt": "a text\nof two lines\n",
}
CORPORA: list[tuple[type, str | list[str], dict[str, Any]]] = [
    (ParallelText, ["a.en", "a.de"], {"split_seed": 1}),
    (LabelledText, "a.tsv", {"text": "text", "label": "label", "columns": None, "split_seed": 1}),
    (TaggedText, "a.conll", {"column": "upos", "word": 0, "tag": -1, "split_seed": 1}),
    (
        QuestionAnsweringCorpus,
        "a.jsonl",
        {"text": "question", "text_pair": "context", "answers": "answers", "split_seed": 1},
    ),
    (PlainText, "a.txt", {}),
]


@pytest.mark.parametrize(("corpus", "test", "options"), CORPORA, ids=[c.__name__ for c, _, _ in CORPORA])
def test_it_needs_no_other(corpus: Any, test: str | list[str], options: dict[str, Any], tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    whole = corpus(dir=str(tmp_path), train=test, validation=test, test=test, **options).splits()
    alone = corpus(dir=str(tmp_path), train=None, validation=None, test=test, **options).splits()
    assert [*alone.test] == [*whole.test]
    assert len([*alone.test]) > 0
    assert not alone.train
    assert not alone.validation
    with pytest.raises(ValueError, match=r"^data\.test=0\.5: a fraction of data\.train, which is not set"):
        corpus(dir=str(tmp_path), train=None, validation=None, test=0.5, **options)
