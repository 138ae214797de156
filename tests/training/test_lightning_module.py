"""``TrainingModule``: what it registers, and which predictions of a test it keeps."""

from collections.abc import Mapping
from typing import Any

import lightning as L
import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchmetrics import Metric

from predicting import predict
from small_models import build
from triptych.data import Batch, Characters, CorpusInfo, Example, collate
from triptych.tasks import Predictions, TaskContext, TestPrediction, Translation
from triptych.training import TrainingModule

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

TOKENIZER = Characters().train(["abcd "])
EXAMPLES = [Example(text, target=text[::-1]) for text in ("ab", "cd", "bc")]
QUIET: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False, "use_distributed_sampler": False,
}  # fmt: skip


@pytest.fixture
def task() -> Translation:
    network = build("full", vocab_size=TOKENIZER.vocab_size, max_length=12)
    context = TaskContext(network=network, tokenizer=TOKENIZER, corpus=CorpusInfo(), seed=0, max_length=12)
    return Translation(
        context, label_smoothing=0.0, max_new_tokens=3, num_beams=1, length_penalty=1.0, early_stopping=False,
        bleu_tokenizer="13a",
    )  # fmt: skip


def batches(task: Translation, *, numbered: bool = True) -> DataLoader[Any]:
    """One of two examples, and one of one."""
    items, indices = task.encode(EXAMPLES), np.arange(len(EXAMPLES))
    parts = (slice(0, 2), slice(2, 3))
    some: Any = [collate(items[part], indices=indices[part] if numbered else None) for part in parts]
    return DataLoader(some, batch_size=None)


def test_keeps_the_task_outside_of_the_modules(task: Translation) -> None:
    """So a checkpoint has the weights of the network, by the names that they have had from the first version on."""
    weights = TrainingModule(task).state_dict()
    assert {*weights} == {f"network.{name}" for name in task.network.state_dict()}


def test_records_the_prediction_for_each_example_of_a_test(task: Translation) -> None:
    module = TrainingModule(task)
    L.Trainer(**QUIET).test(module, batches(task), verbose=False)
    outputs = predict(task, [example.text for example in EXAMPLES])
    found = sorted(module.test_predictions, key=lambda prediction: prediction.index)
    assert [(one.index, one.output) for one in found] == list(enumerate(outputs))
    assert all({*one.numbers} == {"chrf"} for one in found)
    L.Trainer(**QUIET).test(module, batches(task), verbose=False)
    assert len(module.test_predictions) == len(EXAMPLES)  # those of the last test
    L.Trainer(**QUIET).test(module, batches(task, numbered=False), verbose=False)
    assert module.test_predictions == []  # it is not known for which examples they are


def test_forgets_what_waits_where_a_test_was_interrupted(task: Translation) -> None:
    module = TrainingModule(task)
    metrics = module.metrics_of("test")
    for batch in batches(task).dataset:
        assert task.evaluate(batch, metrics, "test") is None  # it waits for more
    for metric in metrics.values():
        metric.reset()
    (values,) = L.Trainer(**QUIET).test(module, batches(task), verbose=False)
    assert len(module.test_predictions) == len(EXAMPLES)
    assert values["test/exact_match"] in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)


def test_a_task_may_score_without_a_prediction(task: Translation, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(batch: Batch, metrics: Mapping[str, Metric], stage: str) -> Predictions:
        return Predictions([None] * len(batch.examples))

    monkeypatch.setattr(task, "evaluate", evaluate)
    module = TrainingModule(task)
    L.Trainer(**QUIET).test(module, batches(task), verbose=False)
    assert module.test_predictions == [TestPrediction(i, None, {}) for i in range(3)]
