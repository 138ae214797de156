"""What the configuration alone shows to be wrong is said all at once."""

import pickle
from pathlib import Path

import pytest

from command_line import composed
from commands import run
from triptych.assembly.early_checks import check_batch, check_training
from triptych.config.errors import ConfigError, ConfigErrors, messages_of


def messages(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_training(composed("experiment=dates/translation", *overrides))
    return messages_of(caught.value)


def test_all_mistakes_are_listed() -> None:
    wrong = ("seed=-1", "shape.d_model=0", "shape.num_layers=0", "batch.global_size=0", "batch.num_workers=-1")
    found = messages(*wrong, "trainer.max_steps=0", "+trainer.max_epochs=3", "trainer.gradient_clip_val=-1")
    assert [message.partition(":")[0] for message in found] == [
        "shape.d_model=0", "shape.num_layers=0", "seed=-1", "trainer.max_epochs=3", "trainer.max_steps=0",
        "trainer.gradient_clip_val=-1", "batch.global_size=0", "batch.num_workers=-1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "mistake",
    [
        "block.dropout=2.0",  # which two checks look at
        "batch.bpe_dropout=1.0",
        "trainer.accumulate_grad_batches=abc",  # which others count with
        "trainer.max_steps=0",
        "seed=-1",
    ],
)
def test_one_mistake_has_one_message(mistake: str) -> None:
    (message,) = messages(mistake, "test_weights=best")
    assert message.startswith(f"{mistake}: expected")


def test_what_another_mistake_broke_is_not_listed() -> None:
    assert len(messages("shape.max_length=0", "batch.eval_stride=4")) == 1


def test_a_fault_of_ours_is_no_mistake_of_the_user() -> None:
    config = composed("experiment=dates/translation")
    config.trainer.accumulate_grad_batches = "abc"
    with pytest.raises(TypeError):
        check_batch(config)


def test_a_launcher_brings_them_home() -> None:
    again = pickle.loads(pickle.dumps(ConfigErrors("a", "b")))
    assert (str(again), messages_of(again)) == ("a\nb", ["a", "b"])


def test_each_has_a_line(tmp_path: Path) -> None:
    finished = run("train", "experiment=dates/translation", "seed=-1", "batch.global_size=0", cwd=tmp_path)
    assert finished.returncode == 1
    assert finished.stderr.splitlines() == [
        "error: seed=-1: expected 0 or more",
        "error: batch.global_size=0: expected at least 1",
    ]
