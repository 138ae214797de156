"""Conversations in tables."""

from collections.abc import Iterator

from triptych.data.corpora.table import RowCorpus
from triptych.data.example import Place
from triptych.data.readers.columns import Columns
from triptych.data.readers.files import check_files, find
from triptych.data.readers.tables import NAMES_ITS_COLUMNS, Row, table_rows


class Conversations(RowCorpus[str]):
    """A table whose rows have a conversation each: a list of messages with ``role`` (system, user or assistant) and
    ``content``, which ends with an answer of the assistant. Its name says what it is: .jsonl (an object a line) or
    .parquet.

    A training reads whole conversations; in the validation and in the test split each answer is an example of its own,
    with all that was said before it.

    Args:
        dir: folder of the tables.
        train: name of the table of the training examples; None: only the test is read.
        validation: likewise, or a share of the training examples; None: there are none.
        test: likewise, or a share of the training examples.
        messages: column of the conversations.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: no such table, or shares that leave nothing to train on.
    """

    columns = ("messages", "text", "target")

    def __init__(
        self,
        *,
        dir: str,
        train: str | None,
        validation: str | float | None,
        test: str | float,
        messages: str,
        split_seed: int,
    ) -> None:
        check_files(dir, NAMES_ITS_COLUMNS, train=train, validation=validation, test=test)
        super().__init__(dir, Columns(messages=messages), train, validation, test, split_seed)

    def rows(self, source: str) -> Iterator[tuple[Place, Row]]:
        """See ``RowCorpus``."""
        yield from table_rows(find(self.dir, "data", source), self.reader, None)
