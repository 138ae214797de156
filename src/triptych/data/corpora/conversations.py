"""Conversations in tables."""

from dataclasses import dataclass

from triptych.data.corpora.row_corpus import TableCorpus
from triptych.data.readers.tables import NAMES_ITS_COLUMNS


@dataclass(kw_only=True)
class Conversations(TableCorpus):
    """A table with one conversation per row: a list of messages with ``role`` (system, user or assistant) and
    ``content``, which ends with a message of the assistant. The format is .jsonl (one object per line) or .parquet.

    Training uses whole conversations. In the validation and test splits, each message of the assistant is a separate
    example, with all previous messages as input.

    Attributes:
        messages: column of the conversations.
    """

    formats = NAMES_ITS_COLUMNS
    columns = ("messages", "text", "target")

    messages: str
