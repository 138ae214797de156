"""Tasks in tests: how they are made and trained, what they predict, in which mode and type their network is."""

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from small_models import build
from triptych.data import CorpusInfo, EncodedExample, Example, Tokenizer, WordLevel, collate
from triptych.data.batches.batch import empty_batch
from triptych.models import DecoderOnly, EncoderDecoder, EncoderOnly, PrefixLM
from triptych.tasks import Predictor, Task, TaskContext

GREEDY: dict[str, Any] = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}
NETWORKS: dict[str, Any] = {
    "encoder_only": EncoderOnly, "full": EncoderDecoder, "decoder_only": DecoderOnly, "prefix_lm": PrefixLM
}  # fmt: skip

AnyTask = TypeVar("AnyTask", bound=Task)


def words_of(texts: Sequence[str]) -> Tokenizer:
    """A tokenizer whose tokens are the words of these texts."""
    return WordLevel(vocab_size=None, lowercase=False, split_punctuation=False, joint=True).train(texts)


def make_context(
    network: Any,
    tokenizer: Tokenizer,
    max_length: int,
    *,
    corpus: CorpusInfo | None = None,
    seed: int = 0,
    truncates: bool = True,
) -> TaskContext:
    return TaskContext(
        network=network, tokenizer=tokenizer, corpus=corpus or CorpusInfo(), seed=seed, max_length=max_length,
        truncates=truncates,
    )  # fmt: skip


def reading(architecture: str, source: nn.Module, vocab_size: int, max_length: int) -> Any:
    """A network, 32 wide, that reads what is no text by this embedding."""
    text = build(architecture, vocab_size=vocab_size, max_length=max_length, d_model=32, position="rotary")
    parts = {name: getattr(text, name) for name in ("encoder", "decoder") if hasattr(text, name)}
    if architecture == "encoder_only":
        parts["embedding"] = source
    else:
        parts |= {"embedding": text.embedding, "source_embedding": source}
    return NETWORKS[architecture](head=text.head, **parts)


def learn(
    task: Task, items: Sequence[EncodedExample], *, steps: int, lr: float = 4e-3, until: float = 0.0
) -> list[float]:
    """Trains on one batch, for so many steps or until its loss is less; gives the losses."""
    batch, optimizer, losses = collate(items), torch.optim.AdamW(task.network.parameters(), lr=lr), list[float]()
    while len(losses) < steps and (not losses or losses[-1] >= until):
        optimizer.zero_grad()
        loss = task.training_loss(batch) / batch.num_labels_in_step
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def check_empty_batch(task: Task, item: EncodedExample) -> None:
    """A process without examples adds nothing to the loss, and has gradients of zeros."""
    loss = task.training_loss(empty_batch(item, 7))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0
    assert all((p.grad is not None and not p.grad.any()) for p in task.network.parameters())


def check_unfit(task: Task, *cases: tuple[Example, str]) -> None:
    """No such example can be encoded; the error says why."""
    for example, message in cases:
        with pytest.raises(ValueError, match=message):
            task.encode([example])


def predict(task: Task, texts: Sequence[Any], **options: Any) -> list[Any]:
    return Predictor(task).predict(texts, **options)


def evaluating(task: AnyTask) -> AnyTask:
    task.network.eval()
    return task


def in_double(task: AnyTask) -> AnyTask:
    task.network.double()
    return task
