"""How scores split texts into words, and a warning about scripts that they do not split."""

import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

Split: TypeAlias = Callable[[str], Sequence[str]]

log = logging.getLogger("triptych")

WITHOUT_BLANKS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts without spaces between words, by their Unicode names."""
LONGEST = 8
"""A token with more letters of these scripts counts as several words."""
SHARE = 0.02
"""Minimum fraction of affected references for a warning; fewer are likely names and quotations."""


@dataclass(frozen=True, slots=True)
class WordSplitter:
    """A function that splits the texts of a score into words.

    Attributes:
        score: title of the score.
        name: setting of the splitter in the configuration.
        split: splits a text into words.
        advice: advice if it does not split a script.
        choices: alternative settings and their functions; those that split the script are recommended.
    """

    score: str
    name: str
    split: Split
    advice: str
    choices: Mapping[str, Split] = field(default_factory=dict)


def scripts_not_split(split: Split, text: str) -> set[str]:
    """Returns the scripts, by Unicode name, whose words are not separated or whose letters are dropped."""
    if text.isascii():
        return set()
    words = split(text)
    found = {script_of(letter) for letter in text if letter.isalpha()}
    found -= {script_of(letter) for word in words for letter in word if letter.isalpha()}
    for word in words:
        scripts = [name for letter in word if letter.isalpha() and (name := script_of(letter)) in WITHOUT_BLANKS]
        if len(scripts) > (LONGEST if len(words) > 1 else 1):
            found.update(scripts)
    return found


def references_not_split(split: Split, references: Sequence[str]) -> list[set[str]]:
    """Returns the scripts not split in each affected reference; empty if these are few (see ``SHARE``)."""
    found = [scripts for reference in references if (scripts := scripts_not_split(split, reference))]
    return found if len(found) > SHARE * len(references) else []


@cache
def script_of(letter: str) -> str:
    """Returns the script of a letter from its Unicode name, such as ``LATIN`` or ``CJK``."""
    return unicodedata.name(letter, "").partition(" ")[0]


def warn_of_scripts(splitters: Sequence[WordSplitter], references: Sequence[str]) -> None:
    """Logs a warning about scripts in the references that the scores do not split."""
    for splitter in splitters:
        if found := references_not_split(splitter.split, references):
            fit = [name for name, split in splitter.choices.items() if not references_not_split(split, references)]
            names = Counter(name for scripts in found for name in scripts)
            log.warning(
                "%s: %s of %s test references have words in %s, which %s does not split, so the score says little; %s",
                splitter.score, f"{len(found):,}", f"{len(references):,}",
                " and ".join(name if name == "CJK" else name.title() for name, _ in names.most_common(3)),
                splitter.name, f"use {' or '.join(fit)}; {splitter.advice}" if fit else splitter.advice,
            )  # fmt: skip
