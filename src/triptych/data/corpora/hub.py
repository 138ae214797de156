"""Datasets of the Hugging Face Hub."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

from triptych.config import suggestion
from triptych.data.corpora.audio_files import AudioRows
from triptych.data.corpora.file_rows import FileRows
from triptych.data.corpora.image_files import ImageRows
from triptych.data.corpora.row_corpus import RowCorpus
from triptych.data.example import SourceLocation, at
from triptych.data.readers.columns import Columns, outermost
from triptych.data.readers.tables import Row

PATIENCE = 10.0
"""Timeout of the first request to the Hub in seconds."""


@dataclass(kw_only=True)
class HubRows(RowCorpus[str]):
    """A dataset of the Hugging Face Hub, or a local folder in the same format: .parquet, .jsonl, .csv or .txt files, or
    the output of ``save_to_disk``. No code of the dataset is executed.

    Classes are identified by their names. Downloads stay in the cache of ``datasets``; with HF_HUB_OFFLINE=1 in the
    environment they are read without a network.

    The requested columns of .csv and .tsv files are read as text, unless the dataset declares their types: 01 is not 1,
    and NA is a text.

    Attributes:
        name: name on the Hub, or a local folder.
        config: configuration of the dataset; None: the only one.
        split_names: names of the training, validation and test splits; a number is a fraction of the training split.
        streaming: whether to read rows while they are downloaded, so that only ``limit`` rows are downloaded.
        limit: maximum number of rows per split; None: all.
        split_seed: seed that draws the fractions.

    Raises:
        ValueError: not three splits, fractions that leave no training data, or no such folder.
    """

    name: str
    config: str | None
    split_names: list[str | float]
    streaming: bool
    limit: int | None
    split_seed: int

    def __post_init__(self) -> None:
        names, limit = self.split_names, self.limit
        shares = [share for share in names[1:] if not isinstance(share, str)]
        if len(names) != 3 or not isinstance(names[0], str):
            raise ValueError(f"data.split_names={names}: expected [TRAIN,VALIDATION,TEST], or fractions of TRAIN")
        if any(not 0 < share < 1 for share in shares) or sum(shares) >= 1:
            raise ValueError(f"data.split_names={names}: expected fractions above 0 that leave some training data")
        if limit is not None and limit < 1:
            raise ValueError(f"data.limit={limit}: expected at least 1")
        if self.name.startswith((".", "/")) and not Path(self.name).is_dir():
            raise ValueError(f"data.name={self.name}: no such folder ({Path(self.name).resolve()})")
        self.dir, self.train, self.validation, self.test = self.name, names[0], names[1], names[2]

    def rows(self, source: str) -> Iterator[tuple[SourceLocation, Row]]:
        """Yields the rows of a split, with their numbers from 1 as places."""
        if source not in self._sets:
            known = suggestion(source, list(self._sets))
            if source != self.train:
                others = (self.validation, self.test)
                names = [0.1 if isinstance(name, str) and name not in self._sets else name for name in others]
                shares = f"data.split_names=[{self.train},{names[0]},{names[1]}]"
                known += f" (or a number, a fraction of {self.train}: {shares})"
            raise ValueError(f"data.split_names: {source} is not a split of data.name={self.dir}{known}")
        place = Path(self.dir, source)
        rows, features = self._table(source)
        read = iter(islice(rows, self.limit))
        for number in count(1):
            try:
                row = next(read)
            except StopIteration:
                return
            except Exception as error:  # each format raises its own
                raise ValueError(f"{place}, row {number}: {_first_line(error)}") from None
            here = (place, f"row {number}")
            try:
                yield here, {name: _named(value, features.get(name)) for name, value in row.items()}
            except IndexError as error:
                raise ValueError(f"{at(here)}: {error}") from None

    def _table(self, source: str) -> tuple[Any, Mapping[str, Any]]:
        """The needed columns of a split, and the features of all."""
        rows = self._sets[source].with_format(None)  # plain values in any case
        features: Mapping[str, Any] = rows.features or {}
        if features:
            self.reader.check(features, str(Path(self.dir, source)))
            rows = rows.select_columns(list({outermost(column, features) for _, column in self.reader.items}))
        return rows, features

    @cached_property
    def _sets(self) -> Mapping[str, Any]:
        """The splits by name."""
        import datasets  # type: ignore[import-untyped]  # slow import (3 s)

        folder = Path(self.dir)
        name = str(folder.resolve()) if folder.is_dir() else _on_the_hub(self.dir)
        try:
            if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
                saved = datasets.load_from_disk(name)
                return saved if isinstance(saved, dict) else {"train": saved}
            return dict(datasets.load_dataset(name, self.config, streaming=self.streaming, **self._csv_options(name)))
        except Exception as error:  # errors of datasets, pyarrow, the network, ...
            config = "" if self.config is None else f" data.config={self.config}"
            said = _first_line(error.__cause__ or error)
            if "torchcodec" in said:  # datasets requires it for files that it should not open
                said = "audio files are only supported in Parquet; use data=audio_files with a table of the files"
            raise ValueError(f"data.name={self.dir}{config}: {said}") from None

    def _csv_options(self, name: str) -> dict[str, Any]:
        """Returns arguments of ``load_dataset`` for CSV files whose types the dataset does not declare. With them the
        needed columns are read as text; otherwise pandas infers types."""
        from datasets import Features, Value, load_dataset, load_dataset_builder
        from datasets.packaged_modules.csv.csv import CsvConfig  # type: ignore[import-untyped]
        from datasets.packaged_modules.folder_based_builder.folder_based_builder import (  # type: ignore[import-untyped]
            FolderBasedBuilderConfig,
        )

        builder = load_dataset_builder(name, self.config)
        is_csv = isinstance(builder.config, CsvConfig)
        files = [Path(file).name for of_split in (builder.config.data_files or {}).values() for file in of_split]
        has_csv = isinstance(builder.config, FolderBasedBuilderConfig) and "metadata.csv" in files
        if builder.info.features is not None or not (is_csv or has_csv):
            return {}
        few = {"nrows": 1} if is_csv else {}
        rows = next(iter(load_dataset(name, self.config, streaming=True, **few).values()))
        found: Mapping[str, Any] = rows.features or dict.fromkeys(next(iter(rows), {}), Value("string"))
        needed = {outermost(column, found) for _, column in self.reader.items}
        if not needed <= found.keys():
            return {}  # a column is missing, and an error will list all columns
        features = {column: found[column] for column in needed}
        texts = {column: Value("string") for column, feature in features.items() if isinstance(feature, Value)}
        return {"features": Features(features | texts), **({"keep_default_na": False} if is_csv else {})}


@dataclass(kw_only=True)
class Hub(HubRows):
    """A text dataset (see ``HubRows``). The settings map fields of ``Example`` to columns; a task needs some of them.

    Attributes:
        text: column of the texts, or of the questions.
        target: column of the translations.
        label: column of the labels.
        text_pair: column of the second texts, or of the contexts of the questions.
        score: column of the scores.
        words: column with a list of words, which then form the text.
        tags: column with a list of one tag per word.
        answers: column of the answers.
        messages: column of conversations, instead of text and target.
    """

    columns = ("text", "target", "label", "text_pair", "score", "words", "tags", "answers", "messages")

    text: str | None
    target: str | None
    label: str | None
    text_pair: str | None
    score: str | None
    words: str | None
    tags: str | None
    answers: str | None
    messages: str | None = None

    @cached_property
    def reader(self) -> Columns:
        if self.words is None and self.messages is None:
            return super().reader
        return replace(super().reader, text=None)


class _HubFiles(HubRows, FileRows):
    """A dataset of files, which ``datasets`` does not decode."""

    feature: ClassVar[str]
    """The class of ``datasets`` that decodes such files."""

    def row_reader(self, source: str) -> Callable[[int], Row] | None:
        if self.streaming:
            return None
        rows, features = self._table(source)
        return lambda index: {name: _named(value, features.get(name)) for name, value in rows[index].items()}

    @cached_property
    def _sets(self) -> Mapping[str, Any]:
        import datasets

        column, files = getattr(self, self.columns[0]), getattr(datasets, self.feature)(decode=False)
        return {
            name: rows.cast_column(column, files) if column in (rows.features or ()) else rows
            for name, rows in super()._sets.items()
        }


@dataclass(kw_only=True)
class HubAudio(AudioRows, _HubFiles):
    """An audio dataset (see ``HubRows`` and ``AudioRows``), decoded by soundfile."""

    feature = "Audio"


@dataclass(kw_only=True)
class HubImages(ImageRows, _HubFiles):
    """An image dataset (see ``HubRows`` and ``ImageRows``), decoded by pillow."""

    feature = "Image"


def _on_the_hub(name: str) -> str:
    """Returns the full name of a dataset on the Hub. Without a network ``datasets`` would retry for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return name
    try:
        return HfApi().dataset_info(name, timeout=PATIENCE).id
    except (RepositoryNotFoundError, HFValidationError):
        raise ValueError(
            f"data.name={name}: no such folder, and no such dataset on the Hub; a private one needs HF_TOKEN"
        ) from None
    except Exception as error:  # depends on the HTTP library
        raise ValueError(
            f"data.name={name}: no such folder, and the Hub cannot be reached ({_first_line(error)}); expected a "
            "network, a local folder, or HF_HUB_OFFLINE=1 in the environment to read earlier downloads"
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _named(value: Any, feature: Any) -> Any:
    """Replaces class numbers by class names.

    Raises:
        IndexError: a class without a name; -1 is a class that is not public.
    """
    from datasets import ClassLabel, LargeList, List

    if value is None or feature is None:
        return value
    if isinstance(feature, ClassLabel):
        if not 0 <= value < len(feature.names):
            raise IndexError(f"class {value}; expected 0 to {len(feature.names) - 1}, {', '.join(feature.names)}")
        return feature.names[value]
    if isinstance(feature, List | LargeList):
        return [_named(item, feature.feature) for item in value]
    if isinstance(feature, dict):
        return {name: _named(item, feature[name]) for name, item in value.items()}
    return value
