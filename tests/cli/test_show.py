"""``triptych show``: what a setting means, and where it was set."""

import re
from pathlib import Path
from typing import Any

from command_line import composed
from triptych.cli.show import explain_key as describe_key
from triptych.config.diagnose import keys_of

CONF = Path(__file__).parents[2] / "conf"


class TestShow:
    def test_a_default_of_lightning_is_not_ours(self, answer: Any) -> None:
        _, said, _ = answer("show", "trainer.max_steps")
        assert "Stop training after this number of steps." in said
        assert "Disabled" not in said
        _, said, _ = answer("show", "trainer.log_every_n_steps")
        assert "How often to log within steps." in said
        assert "Default" not in said

    def test_a_group_without_a_choice_has_values(self, answer: Any) -> None:
        _, said, _ = answer("show", "shape", "shape.d_ff=64")
        assert re.search(r"chosen +none of these: shape.d_model=128 .* shape.d_ff=64 ", said)
        _, said, _ = answer("show", "shape", "shape=tiny")
        assert re.search(r"chosen +tiny *\n", said)

    def test_where_a_key_was_set(self, answer: Any) -> None:
        status, said, _ = answer("show", "optimizer.lr", "experiment=sst2/full", "optimizer.lr=3e-4")
        assert status == 0
        places = re.findall(r"conf/(\S+):(\d+) ", said)
        lines = [(CONF / file).read_text().splitlines()[int(line) - 1].strip() for file, line in places]
        assert [file for file, _ in places] == ["optimizer/adamw.yaml", "experiment/sst2/full.yaml"]
        assert all(line.startswith("lr: 1.0e-3") for line in lines)
        assert said.rstrip().endswith("then by   the command line  optimizer.lr=3e-4")
        for word in ("value     0.0003", "peak learning rate", "a number"):
            assert word in said

    def test_a_key_of_the_typed_root_and_one_that_is_taken_from_it(self, answer: Any) -> None:
        _, said, _ = answer("show", "batch.too_long")
        assert "one of error, truncate, drop" in said
        _, said, _ = answer("show", "model.encoder.d_model", "shape.d_model=64")
        assert "64 (from ${shape.d_model})" in said

    def test_a_group(self, answer: Any) -> None:
        _, said, _ = answer("show", "block/position", "experiment=sst2/full")
        assert re.search(r"chosen +relative_bias *\n", said)
        assert re.search(r"rotary +Rotates queries and keys", said)

    def test_mistakes(self, answer: Any) -> None:
        _, _, said = answer("show", "optimizer.learning_rate")
        assert said == "error: optimizer.learning_rate: there is no such key; did you mean optimizer.lr?\n"
        _, _, said = answer("show", "optimizer.lr", "experiment=sst2/ful")
        assert said.startswith("error: experiment=sst2/ful: there is no such choice; ")

    def test_every_key_is_described_without_an_error(self) -> None:
        config = composed()
        keys = [key for key in keys_of("train", ()) if "/" not in key and key not in ("experiment", "debug")]
        said = {key: describe_key(config, key) for key in keys}
        assert len(said) > 150
        for key, (meaning, _) in said.items():
            assert meaning or not key.startswith(("shape.", "batch.", "block.d", "optimizer.")), key
