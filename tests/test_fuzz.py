"""Draws of random configurations that always stay the same; `make fuzz` makes others."""

from pathlib import Path

import pytest

from cases import by_day
from fuzz import DRAWN_GROUPS, NOT_DRAWN_GROUPS, alone, corpora, describe, look, needs_files
from fuzz_files import WRITERS
from triptych.cli.completion import groups
from triptych.config.diagnose import choices_of

NIGHTLY = 200


def check(seed: int, folder: Path) -> None:
    """A draw is refused in a line or two, or everything holds."""
    with alone() as chosen:
        made, outcome = look(chosen, seed, folder)
    assert not outcome.faults, describe(seed, made, outcome)


@pytest.mark.parametrize("seed", by_day(range(1, 9), range(1, 9, 2)))
def test_what_is_promised_holds_of_any_configuration(seed: int, tmp_path: Path) -> None:
    """It is refused before the data are read, or trains, resumes, predicts, evaluates and exports."""
    check(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1001, 1001 + NIGHTLY))
def test_what_is_promised_holds_of_many_configurations(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def test_every_group_is_drawn_or_left_out_with_a_reason() -> None:
    assert {*groups(())} == DRAWN_GROUPS | {*NOT_DRAWN_GROUPS}


def test_every_corpus_that_reads_files_is_given_some() -> None:
    assert {name for name in choices_of("data", []) if needs_files(name)} <= {*WRITERS}
    assert {*WRITERS} <= {*corpora()}
