"""The JSON schema of experiments."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from triptych.cli.json_schema import make_schema

CONF = Path(__file__).parents[2] / "conf"


class TestSchema:
    @pytest.fixture(scope="class")
    def check(self) -> Any:
        schema = make_schema([])
        jsonschema.Draft202012Validator.check_schema(schema)
        return jsonschema.Draft202012Validator(schema)

    def test_every_experiment_fits(self, check: Any) -> None:
        for file in (CONF / "experiment").rglob("*.yaml"):
            found = [
                (file.stem, [*error.path], error.message)
                for error in check.iter_errors(yaml.safe_load(file.read_text()))
            ]
            assert not found

    @pytest.mark.parametrize(
        "content",
        [
            {"optimizer": {"lrr": 1.0}}, {"shape": {"d_model": "wide"}}, {"defaults": [{"override /model": "ful"}]},
            {"sede": 1}, {"trainer": {"max_steps": [1]}}, {"block": {"position": {"thetaa": 1.0}}},
        ],
    )  # fmt: skip
    def test_mistakes_do_not(self, check: Any, content: dict[str, Any]) -> None:
        assert not check.is_valid(content)
