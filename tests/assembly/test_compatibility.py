"""A training on data that nothing names says so, and what reads the user's files for its task."""

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from command_line import composed
from triptych import tasks
from triptych.assembly.compatibility import corpus_of_files, warn_of_default_data

OF_FILES = {
    "captioning": "image_files", "chat": "conversations", "classification": "labelled_text",
    "denoising": "text_lines", "image_generation": "image_files", "image_text_matching": "image_files",
    "infilling": "text_lines", "language_modeling": "plain_text", "question_answering": "question_answering",
    "similarity": "labelled_text", "tagging": "tagged_text", "text_to_text": "parallel_text",
    "transcription": "audio_files", "translation": "parallel_text",
}  # fmt: skip
KINDS = {
    kind.name: kind for kind in vars(tasks).values() if isinstance(kind, type) and issubclass(kind, tasks.Task)
    if hasattr(kind, "name")
}  # fmt: skip


def test_each_task_has_a_corpus_that_reads_files() -> None:
    assert {name: corpus_of_files(kind) for name, kind in KINDS.items()} == OF_FILES


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["task=translation"], "parallel_text"),
        (["task=translation", "data.num_train=3"], "parallel_text"),
        (["task=classification", "model=encoder_only"], "labelled_text"),
        (["task=translation", "data=dates"], None),
        (["experiment=dates/translation"], None),
    ],
)
def test_a_run_on_the_default_data_says_so(
    overrides: list[str], named: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hydra = OmegaConf.create({"overrides": {"task": overrides}})
    monkeypatch.setattr(HydraConfig, "get", lambda: hydra)
    warn_of_default_data(composed(*overrides))
    said = f"data is not set: using the synthetic data=dates. To use your own files, set data, such as data={named}"
    assert caplog.messages == ([] if named is None else [said])
