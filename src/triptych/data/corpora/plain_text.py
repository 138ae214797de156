"""Plain text, and tables of documents, for language models."""

import math
from dataclasses import replace
from pathlib import Path

from triptych.data.corpora.corpus import CorpusInfo, RealCorpus
from triptych.data.readers.files import check_split_shares, find_all, format_of
from triptych.data.readers.long_text import LongText, Source, contents_of
from triptych.data.readers.tables import FORMATS, NO_TEXT, check_is_text, reader_of_texts
from triptych.data.splits import Splits

Files = str | list[str]


class PlainText(RealCorpus):
    """Files of any size for a language model. They are read as streams and tokenized once for all runs.

    The suffix determines the format: .jsonl, .parquet, .csv and .tsv are tables of documents, one per row in the column
    ``text``. Any other file is plain text. Each file may be compressed (.gz, .zst). Several files are read in order;
    plain text continues across files, as if ``cat`` had joined them. A document ends with eos and follows the eos of
    the previous one.

    Fractions are cut from the end of the training data, in characters of plain text or in documents, in the order
    training, validation, test; in a mixture, from each corpus.

    In a mixture, each training window is drawn from one corpus in proportion to the weights. Each corpus has its own
    epochs: all of it is read before any of it repeats, and a corpus of small weight may not be read completely. The
    tokenizer is trained on all corpora, regardless of their weights.

    Args:
        dir: folder of the files.
        train: name of the training file; or several names, with * as wildcard; or a mixture, as a mapping from names to
            weights; None: only the test split is read.
        validation: names of the validation files, or a fraction of the training data; None: no validation split.
        test: names of the test files, or a fraction of the training data.
        text: column of the documents in tables.

    Raises:
        ValueError: no such file, tables and plain text in one corpus, a weight that is not positive, or fractions that
            leave no training data.
    """

    columns = ("long_text",)
    info = CorpusInfo(is_stream=True)

    def __init__(
        self,
        *,
        dir: str,
        train: Files | dict[str, float] | None,
        validation: Files | float | None,
        test: Files | float,
        text: str = "text",
    ) -> None:
        check_split_shares(train=train, validation=validation, test=test)
        self.dir, self.text = dir, text
        self._files: dict[str, list[tuple[tuple[Path, ...], float]]] = {}
        self._shares = {}
        for key, given in (("train", train), ("validation", validation), ("test", test)):
            if given is None:
                continue
            if isinstance(given, int | float):
                self._shares[key] = given
                continue
            corpora = given if isinstance(given, dict) else {"": 1.0}
            self._files[key] = []
            for name, weight in corpora.items():
                if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
                    raise ValueError(f"data.{key}.{name}={weight}: expected a weight above 0")
                names = [name] if name else [given] if isinstance(given, str) else list(given)
                self._files[key].append((self._found(f"data.{key}", names), weight))
            if not given:
                raise ValueError(f"data.{key}={given}: expected the name of a file")

    def splits(self) -> Splits:
        """Returns the three splits.

        Raises:
            ValueError: text that is not UTF-8, a row that cannot be read, or a split of fewer than two characters.
        """
        sources = {key: [self._source(*corpus) for corpus in corpora] for key, corpora in self._files.items()}
        sizes = [len(source) for source in sources.get("train", ())]
        for key in ("test", "validation"):
            if key in self._shares:
                sources[key] = []
                for i, (source, size) in enumerate(zip(sources["train"], sizes, strict=True)):
                    cut = source.stop - round(size * self._shares[key])
                    sources["train"][i] = replace(source, stop=cut)
                    sources[key].append(replace(source, start=cut))
        for key, parts in sources.items():
            for source in parts:
                if len(source) < (2 if source.column is None else 1):
                    raise ValueError(f"{source.files[0]}: {len(source)} {source.unit} are too few for the {key} split")
        return Splits(*(LongText(*sources[key]) if key in sources else () for key in ("train", "validation", "test")))

    def _found(self, key: str, names: list[str]) -> tuple[Path, ...]:
        paths = tuple(path for name in names for path in find_all(self.dir, key, name))
        for path in paths:
            check_is_text(key, path.name, "plain text, or documents in .jsonl, .parquet, .csv or .tsv",
                          reader_of_texts(self.dir, path.name), {*NO_TEXT} - {*FORMATS})  # fmt: skip
        kinds = {format_of(path.name) in FORMATS: path.name for path in paths}
        if len(kinds) > 1:
            raise ValueError(f"{key}: {kinds[True]} is a table and {kinds[False]} plain text; expected one kind")
        if len(set(paths)) < len(paths):
            raise ValueError(f"{key}={names}: expected each file once")
        return paths

    def _source(self, files: tuple[Path, ...], weight: float) -> Source:
        column = self.text if format_of(files[0].name) in FORMATS else None
        return Source(files, column, 0, sum(contents_of(path, column)["size"] for path in files), weight)
