"""The prefix of a text that is given to a prefix language model.

Tested by tests/data/corpora/test_dates.py and tests/tasks/test_language_modeling.py.
"""

from zlib import crc32


def prefix_length(text: str) -> int:
    """Returns the number of characters (code points) of ``text`` that are given; the model predicts the rest.

    The length is ``1 + crc32(utf-8 bytes of text) mod (len(text) - 1)``, pseudo-uniform in ``1 .. len(text) - 1``. It
    is the same in every process, so that every architecture is scored on the same continuations. Texts shorter than 2
    have no prefix.
    """
    if len(text) < 2:
        return 0
    return 1 + crc32(text.encode()) % (len(text) - 1)
