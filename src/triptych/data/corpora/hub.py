"""Data sets of the Hugging Face hub."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from triptych.config import suggestion
from triptych.data.corpora.audio_files import SoundRows
from triptych.data.corpora.image_files import ImageRows
from triptych.data.corpora.table import RowCorpus
from triptych.data.example import Place, at
from triptych.data.readers.columns import Columns, outermost
from triptych.data.readers.tables import Row

PATIENCE = 10.0
"""Seconds to wait for the hub's first answer."""


@dataclass(kw_only=True)
class HubRows(RowCorpus[str]):
    """A data set of the Hugging Face hub, or a local folder in its form: of .parquet, .jsonl, .csv or .txt files, or
    written by ``save_to_disk``. No code of the data set is run.

    Classes go by their names. What was read from the hub stays in the cache of ``datasets``; HF_HUB_OFFLINE=1 in the
    environment reads it from there, without a network.

    Of .csv and .tsv files, the columns that are asked for are read as they stand (01 is not 1, and NA is a text),
    unless the data set declares their types.

    Attributes:
        name: on the hub, or of a local folder.
        config: of several that the data set may have; None: the only one.
        split_names: of the training, the validation and the test split; a number is a share of the training split.
        streaming: whether the rows are read while they are downloaded, so that no more than the limit is.
        limit: the most rows to read of each split; None: all.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: not three splits, shares that leave nothing to train on, or no such folder.
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
            raise ValueError(f"data.split_names={names}: expected [TRAIN,VALIDATION,TEST], or shares of TRAIN")
        if any(not 0 < share < 1 for share in shares) or sum(shares) >= 1:
            raise ValueError(f"data.split_names={names}: expected shares above 0 that leave some to train")
        if limit is not None and limit < 1:
            raise ValueError(f"data.limit={limit}: expected at least 1")
        if self.name.startswith((".", "/")) and not Path(self.name).is_dir():
            raise ValueError(f"data.name={self.name}: no such folder ({Path(self.name).resolve()})")
        self.dir, self.train, self.validation, self.test = self.name, names[0], names[1], names[2]

    def rows(self, source: str) -> Iterator[tuple[Place, Row]]:
        """See ``RowCorpus``; a row goes by its number in the split, from 1."""
        if source not in self._sets:
            known = suggestion(source, list(self._sets))
            if source != self.train:
                others = (self.validation, self.test)
                names = [0.1 if isinstance(name, str) and name not in self._sets else name for name in others]
                shares = f"data.split_names=[{self.train},{names[0]},{names[1]}]"
                known += f" (or a number, a fraction of {self.train}: {shares})"
            raise ValueError(f"data.split_names: {source} is no split of data.name={self.dir}{known}")
        rows, place = self._sets[source].with_format(None), Path(self.dir, source)  # plain values, whatever was saved
        features: Mapping[str, Any] = rows.features or {}
        if features:
            self.reader.check(features, str(place))
            rows = rows.select_columns(list({outermost(column, features) for _, column in self.reader.items()}))
        read = iter(islice(rows, self.limit))
        number = 0
        while True:
            number += 1
            try:
                row = next(read)
            except StopIteration:
                return
            except Exception as error:  # whatever the reader of the format raises
                raise ValueError(f"{place}, row {number}: {_first_line(error)}") from None
            here = (place, f"row {number}")
            try:
                yield here, {name: _named(value, features.get(name)) for name, value in row.items()}
            except IndexError as error:
                raise ValueError(f"{at(here)}: {error}") from None

    @cached_property
    def _sets(self) -> Mapping[str, Any]:
        """The splits by their names."""
        import datasets  # type: ignore[import-untyped]  # takes three seconds

        folder = Path(self.dir)
        name = str(folder.resolve()) if folder.is_dir() else _on_the_hub(self.dir)
        try:
            if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
                saved = datasets.load_from_disk(name)
                return saved if isinstance(saved, dict) else {"train": saved}
            options = self._csv_options(name)
            return dict(datasets.load_dataset(name, self.config, streaming=self.streaming, **options))
        except Exception as error:  # datasets' own, pyarrow's, those of the network, ...
            config = "" if self.config is None else f" data.config={self.config}"
            said = _first_line(error.__cause__ or error)
            if "torchcodec" in said:  # which it wants for files that it should not open
                said = "files of sounds, and no Parquet; expected data=audio_files with the table of them"
            raise ValueError(f"data.name={self.dir}{config}: {said}") from None

    def _csv_options(self, name: str) -> dict[str, Any]:
        """Arguments of ``load_dataset`` for CSV files whose types the data set does not declare: the needed columns are
        read as they stand. Without these arguments pandas guesses."""
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
        needed = {outermost(column, found) for _, column in self.reader.items()}
        if not needed <= found.keys():
            return {}  # one is missing, and all that there are will be named
        features = {column: found[column] for column in needed}
        texts = {column: Value("string") for column, feature in features.items() if isinstance(feature, Value)}
        return {"features": Features(features | texts), **({"keep_default_na": False} if is_csv else {})}


@dataclass(kw_only=True)
class Hub(HubRows):
    """A data set of texts: see ``HubRows``. The columns have the names of the fields of ``Example``: a task needs some
    of them.

    Attributes:
        text: column of the texts, or of the questions.
        target: column of their translations.
        label: column of the labels.
        pair: column of the second texts, or of the texts that answer the questions.
        score: column of the scores.
        words: column of lists of words; the text is then these.
        tags: column of lists with a tag for each word.
        answers: column of the answers.
        messages: column of conversations, in place of text and target.
    """

    columns = ("text", "target", "label", "pair", "score", "words", "tags", "answers", "messages")

    text: str | None
    target: str | None
    label: str | None
    pair: str | None
    score: str | None
    words: str | None
    tags: str | None
    answers: str | None
    messages: str | None = None

    @cached_property
    def reader(self) -> Columns:
        columns = {name: getattr(self, name) for name in self.columns}
        if self.words is not None or self.messages is not None:
            columns["text"] = None
        return Columns(**columns)


class _HubFiles(HubRows):
    """A data set of files, which are decoded by whom they are asked."""

    feature: ClassVar[str]
    """The class of ``datasets`` that decodes such files."""

    @cached_property
    def _sets(self) -> Mapping[str, Any]:
        """See ``HubRows``; not decoded."""
        import datasets

        column, files = getattr(self, self.columns[0]), getattr(datasets, self.feature)(decode=False)
        return {
            name: rows.cast_column(column, files) if column in (rows.features or ()) else rows
            for name, rows in super()._sets.items()
        }


@dataclass(kw_only=True)
class HubAudio(SoundRows, _HubFiles):
    """A data set of sounds: see ``HubRows`` and ``SoundRows``. They are decoded by soundfile."""

    feature = "Audio"


@dataclass(kw_only=True)
class HubImages(ImageRows, _HubFiles):
    """A data set of images: see ``HubRows`` and ``ImageRows``. They are decoded by pillow."""

    feature = "Image"


def _on_the_hub(name: str) -> str:
    """The whole name of a data set, if the hub has it. (Without a network ``datasets`` would try for half a minute.)"""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return name
    try:
        return HfApi().dataset_info(name, timeout=PATIENCE).id
    except (RepositoryNotFoundError, HFValidationError):
        raise ValueError(
            f"data.name={name}: no such folder, and no such data set on the hub, or not without HF_TOKEN"
        ) from None
    except Exception as error:  # of the HTTP library, which changes
        raise ValueError(
            f"data.name={name}: no such folder, and the hub cannot be reached ({_first_line(error)}); expected a "
            "network, a local folder, or HF_HUB_OFFLINE=1 in the environment, to read what was downloaded before"
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _named(value: Any, feature: Any) -> Any:
    """A value of the hub with the names of classes in place of their numbers.

    Raises:
        IndexError: a class without a name; -1 stands for one that is not public.
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
