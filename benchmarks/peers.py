"""What the benchmarks on CPUs and on GPUs compare: networks of ``transformers`` and ours with the same weights, with
their losses, batches, training steps and decoding.

The networks of ``transformers`` have random weights, and ``triptych.interop`` reads them.
"""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true"}

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from triptych.data import Batch
from triptych.data.batches.batch import IGNORE_INDEX, EncodedExample
from triptych.data.batches.sampler import StepSize, TrainingSampler
from triptych.interop import read_network
from triptych.models.generation import BeamSearch, Sampling, beam_search, generate
from triptych.nn import Network, Targets
from triptych.training.optimizers import AdamW

transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, CLIP = 1e-5, (0.9, 0.98), 1e-9, 0.01, 1.0
SMOOTHING, CLASSES = 0.1, 4
PAD, START, END = 1, 0, 2
"""Tokens of the models of ``transformers``; the texts here have none of them but at their ends."""


@dataclass(frozen=True)
class NetworkSizes:
    """Of the networks of a benchmark."""

    d_model: int
    layers: int
    heads: int
    vocab: int
    length: int

    @property
    def d_ff(self) -> int:
        """Four times the width."""
        return 4 * self.d_model


# Networks, all without dropout


def make_gpt2(s: NetworkSizes) -> Any:
    """GPT-2's network."""
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=s.vocab, n_positions=s.length, n_embd=s.d_model, n_layer=s.layers, n_head=s.heads,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip


def make_bert(s: NetworkSizes) -> Any:
    """BERT's network with classes."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=s.vocab, hidden_size=s.d_model, num_hidden_layers=s.layers, num_attention_heads=s.heads,
        intermediate_size=s.d_ff, max_position_embeddings=s.length, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=PAD,
    )  # fmt: skip
    config.num_labels = CLASSES
    return transformers.BertForSequenceClassification(config)


def make_bart(s: NetworkSizes, layers: int | None = None) -> Any:
    """BART's network.

    Args:
        s: its sizes.
        layers: on each side; None: as the sizes say.
    """
    torch.manual_seed(0)
    layers = layers or s.layers
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=s.vocab, d_model=s.d_model, encoder_layers=layers, decoder_layers=layers,
            encoder_attention_heads=s.heads, decoder_attention_heads=s.heads, encoder_ffn_dim=s.d_ff,
            decoder_ffn_dim=s.d_ff, max_position_embeddings=s.length, dropout=0.0, attention_dropout=0.0,
            activation_dropout=0.0, pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
            decoder_start_token_id=START, forced_eos_token_id=None,
        )
    )  # fmt: skip


def ours_of(model: Any, task: str, device: torch.device | str = "cpu") -> Network:
    """Our network with the weights of a model of ``transformers``.

    Args:
        model: of a published family.
        task: that its head is for.
        device: of ours.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return read_network(folder, task).network.train().to(device)


# Losses


class OurNextTokenLoss:
    """Our mean loss of the next tokens in batches of one shape."""

    def __init__(self, network: Network, tokens: Tensor) -> None:
        self.network = network
        self.places = torch.arange(tokens.numel(), device=tokens.device).view_as(tokens)[:, :-1].flatten()

    def __call__(self, tokens: Tensor) -> Tensor:
        labels = tokens[:, 1:].flatten()
        total: Tensor = self.network(tokens, targets=Targets(self.places, labels, 0.0))
        return total / len(labels)


def loss_of_logits(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean loss of the next tokens."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def our_classification_loss(network: Network, batch: Batch) -> Tensor:
    """The loss of a batch, as ``triptych.tasks.Classification`` computes it."""
    logits = network(batch.inputs, batch.mask, lengths=batch.lengths)
    total = F.cross_entropy(logits.float(), batch.labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
    return total / batch.num_labels_in_step


def their_classification_loss(model: Any, batch: Batch) -> Tensor:
    """The loss of a padded batch."""
    assert batch.mask is not None
    loss: Tensor = model(input_ids=batch.inputs, attention_mask=batch.mask.long(), labels=batch.labels[:, 0]).loss
    return loss


def our_translation_loss(network: Network, batch: Batch) -> Tensor:
    """The loss of a batch, as ``triptych.tasks.Translation`` computes it."""
    total: Tensor = network(
        batch.source, batch.inputs, batch.source_mask, None, source_lengths=batch.source_lengths,
        lengths=batch.lengths, targets=Targets(batch.scored, batch.labels.flatten()[batch.scored], SMOOTHING),
    )  # fmt: skip
    return total / batch.num_labels_in_step


def their_translation_loss(model: Any, batch: Batch) -> Tensor:
    """The loss of a padded batch."""
    assert batch.source_mask is not None
    mask = batch.source_mask.long()
    logits = model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1).float(), batch.labels.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=SMOOTHING
    )


LOSSES: dict[str, tuple[Callable[[Network, Batch], Tensor], Callable[[Any, Batch], Tensor]]] = {
    "classification": (our_classification_loss, their_classification_loss),
    "translation": (our_translation_loss, their_translation_loss),
}
"""Ours and theirs, by task."""


# Training


def their_optimizer(network: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
    """The settings of ``our_optimizer`` for torch.optim.AdamW over all parameters.

    Args:
        network: whose parameters.
        fused: None: as torch chooses.
    """
    return torch.optim.AdamW(
        network.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=fused
    )


def our_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    """AdamW as ``triptych train`` makes it: fused, decay of the matrices alone."""
    beta1, beta2 = BETAS
    return AdamW(lr=LEARNING_RATE, beta1=beta1, beta2=beta2, eps=EPS, weight_decay=WEIGHT_DECAY)(network)


def training(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[Callable[[], Tensor]],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Callable[[], list[float]]:
    """A round of steps: forward and loss, backward, clipping of the norm, optimizer. Returns the losses.

    Args:
        network: to train.
        optimizer: of it.
        losses: of each step.
        dtype: bfloat16 for autocast.
        device: the type of that of the network.
    """

    def run() -> list[float]:
        found = []
        for loss_of in losses:
            with torch.autocast(device, dtype) if dtype != torch.float32 else nullcontext():
                loss = loss_of()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
            found.append(loss.detach())
        return [float(loss) for loss in found]

    return run


def batches_by_step(items: Sequence[EncodedExample], size: StepSize) -> list[list[EncodedExample]]:
    """An epoch of steps as ``triptych train`` makes them: like sizes together."""
    sampler = TrainingSampler(
        sizes=np.array([item.size for item in items]), num_scored=np.array([item.num_scored for item in items]),
        step_size=size, seed=0,
    )  # fmt: skip
    return [[items[i] for i in sampler.indices_of_step(k)] for k in range(sampler.pool_size)]


def in_turn(items: Sequence[EncodedExample], size: int) -> list[list[EncodedExample]]:
    """Batches of the items in their order."""
    return [list(items[i : i + size]) for i in range(0, len(items), size)]


# Decoding


@torch.inference_mode()
def our_greedy(network: Any, prompt: Tensor, new_tokens: int) -> list[list[int]]:
    """The new tokens of each prompt, by a decoder."""
    next_token = network.continuation(None, capacity=prompt.shape[1] + new_tokens)
    return generate(next_token, prompt, end=-1, max_new_tokens=new_tokens, sampling=Sampling())


def their_greedy(model: Any, prompt: Tensor, seen: Tensor, new_tokens: int, **options: Any) -> list[list[int]]:
    """The same by ``generate``, with further options of it; seen is its attention mask."""
    found = model.generate(
        prompt, attention_mask=seen, do_sample=False, use_cache=True, min_new_tokens=new_tokens,
        max_new_tokens=new_tokens, **options,
    )  # fmt: skip
    tokens: list[list[int]] = found[:, prompt.shape[1] :].tolist()
    return tokens


@torch.inference_mode()
def our_beams(
    network: Any, source: Tensor, mask: Tensor, prompt: Tensor, new_tokens: int, num_beams: int
) -> list[list[int]]:
    """The best answer to each source, by a full model."""
    next_token = network.continuation(source, mask, capacity=1 + new_tokens)
    found = beam_search(next_token, prompt, end=END, max_new_tokens=new_tokens, search=BeamSearch(num_beams))
    return [hypotheses[0].tokens for hypotheses in found]


def their_beams(
    model: Any, source: Tensor, seen: Tensor, new_tokens: int, num_beams: int, **options: Any
) -> list[list[int]]:
    """The same by ``generate``, with further options of it; seen is its attention mask."""
    found = model.generate(
        source, attention_mask=seen, num_beams=num_beams, do_sample=False, use_cache=True, early_stopping=False,
        length_penalty=1.0, max_new_tokens=new_tokens, **options,
    )  # fmt: skip
    rows: list[list[int]] = found[:, 1:].tolist()
    return [row[: row.index(END)] if END in row else row for row in rows]
