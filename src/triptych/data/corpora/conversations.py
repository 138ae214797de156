"""Conversations in tables."""

from dataclasses import dataclass
from functools import cached_property

from triptych.data.corpora.table import TableCorpus
from triptych.data.readers.columns import Columns
from triptych.data.readers.tables import NAMES_ITS_COLUMNS


@dataclass(kw_only=True)
class Conversations(TableCorpus):
    """A table whose rows have a conversation each: a list of messages with ``role`` (system, user or assistant) and
    ``content``, which ends with an answer of the assistant. Its name says what it is: .jsonl (an object a line) or
    .parquet.

    A training reads whole conversations; in the validation and in the test split each answer is an example of its own,
    with all that was said before it.

    Attributes:
        messages: column of the conversations.
    """

    formats = NAMES_ITS_COLUMNS
    columns = ("messages", "text", "target")

    messages: str

    @cached_property
    def reader(self) -> Columns:
        return Columns(messages=self.messages)
