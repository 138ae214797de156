"""How scores cut texts into words, and which writing they leave whole or leave out."""

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
"""Scripts that put no blanks between words, by their names in Unicode."""
LONGEST = 8
"""More letters of these scripts in one token are several words."""
SHARE = 0.02
"""A smaller share of the references is a matter of names and quotations."""


@dataclass(frozen=True, slots=True)
class WordSplitter:
    """What cuts the texts of a score into words.

    Attributes:
        score: its title.
        name: of the splitter, as the configuration has it.
        split: a text to its words.
        advice: what to do where it does not fit.
        choices: the settings that may be used in place of ``name``, and how they split; those that fit are advised.
    """

    score: str
    name: str
    split: Split
    advice: str
    choices: Mapping[str, Split] = field(default_factory=dict)


def scripts_not_split(split: Split, text: str) -> set[str]:
    """The scripts, by their names in Unicode, of words that are left whole together, or whose letters are left out."""
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
    """The scripts not split in each such reference; empty where they are few (see ``SHARE``)."""
    found = [scripts for reference in references if (scripts := scripts_not_split(split, reference))]
    return found if len(found) > SHARE * len(references) else []


@cache
def script_of(letter: str) -> str:
    """The script of a letter, by its name in Unicode: ``LATIN``, ``CJK``."""
    return unicodedata.name(letter, "").partition(" ")[0]


def warn_of_scripts(splitters: Sequence[WordSplitter], references: Sequence[str]) -> None:
    """Says which scripts the scores cannot split, where the right answers have them."""
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
