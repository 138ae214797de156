"""``triptych list``: what there is."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import DictConfig

from cases import by_day
from triptych.cli.listing import COLUMNS, FIRST, KINDS, describe_choice
from triptych.config.diagnose import choices_of


class TestList:
    def test_the_overview_is_short(self, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """At most 40 lines of 100 characters; each kind with its number of choices."""
        monkeypatch.setenv("COLUMNS", "100")
        status, said, _ = answer("list")
        assert status == 0
        lines = said.splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 100
        for kind, group in KINDS.items():
            assert [kind, str(len(choices_of(group, [])))] in [line.split()[:2] for line in lines]
        assert {name for name in choices_of("experiment", []) if name in said.split()} == {*FIRST}
        assert len(FIRST) == 10

    def test_a_kind_may_be_named_like_its_group(self, answer: Any) -> None:
        assert answer("list", "experiment", "sst2") == answer("list", "experiments", "sst2")

    @pytest.mark.parametrize("kind", KINDS)
    def test_everything_is_there_and_says_what_it_is(self, kind: str) -> None:
        rows = describe_choice(kind, [])
        assert sorted(rows) == choices_of(KINDS[kind], [])
        for name, cells in rows.items():
            wanted = [cell for cell, column in zip(cells, COLUMNS[kind], strict=True) if column != "answer"]
            assert all(wanted), name

    @pytest.mark.parametrize("every", by_day([1, 3], [3]))
    def test_models_stand_by_family_with_their_architectures_and_sizes(
        self, every: int, chosen: Callable[..., DictConfig]
    ) -> None:
        rows = describe_choice("models", [])
        classes = {
            **{"full": "EncoderDecoder", "encoder_only": "EncoderOnly", "decoder_only": "DecoderOnly"},
            "dual_decoder": "DualDecoder",
        }
        for name in [name for name in rows if name.endswith("style")][::every]:
            assert chosen(f"model={name}").model._target_ == f"triptych.models.{classes[rows[name][0]]}"
        llamas = [name for name in rows if name.startswith("llama/")]
        assert llamas[2:6] == ["llama/3.2-1b", "llama/7b", "llama/3.1-8b", "llama/13b"]
        assert rows["llama/7b"][:2] == ("decoder_only", "6,738,415,616")
        assert rows["full"][:2] == rows["bart/style"][:2] == ("full", "any")
        assert [*rows].index("llama/65b") == [*rows].index("llama/7b") + 4

    def test_a_word_leaves_out_the_others(self, answer: Any) -> None:
        status, said, _ = answer("list", "experiments", "SST2")
        shown = re.findall(r"[\w]+/[\w]+(?= +│)", said)
        assert status == 0
        assert {"sst2/full", "sst2/tuning"} <= {*shown}
        assert "dates/translation" not in said
        assert "accuracy 79.9 %" in said

    def test_a_word_that_nothing_has(self, answer: Any) -> None:
        assert answer("list", "sst3") == (
            1,
            "",
            "error: triptych list sst3: no entries contain this word; did you mean sst2?\n",
        )

    def test_a_group_is_shown_elsewhere(self, answer: Any) -> None:
        _, said, _ = answer("list", "optimizer")
        assert said.endswith("The choices of optimizer: triptych show optimizer\n")
        _, _, said = answer("list", "block/attention")
        assert said.endswith("no entries contain this word; its choices: triptych show block/attention\n")

    def test_a_word_that_another_kind_has(self, answer: Any) -> None:
        status, _, said = answer("list", "experiments", "parallel")
        assert status == 1
        assert said.endswith(": no experiments contain this word; corpora: parallel_text\n")
        _, _, said = answer("list", "models", "max_steps")
        assert said.endswith("; keys: scheduler.max_steps, trainer.max_steps\n")
