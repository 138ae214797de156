"""What ``test_fake_gpu.py`` runs in a process of its own: the tasks on a device that is not the CPU."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from omegaconf import DictConfig
from torch.utils._pytree import tree_leaves

import tiny
from cases import by_day
from command_line import complete
from fake_gpu import HERE, NAME, Device, Missing, Mixed, StandIn, StandInAccelerator, on_fake_gpu, strategy, twins
from triptych.assembly.loaders import make_data_module
from triptych.assembly.make_task import make_module, make_task
from triptych.assembly.read_data import train_tokenizer
from triptych.config import build
from triptych.config.run_settings import RunSettings
from triptych.data import DataModule, Splits
from triptych.evaluate import measure
from triptych.models.generation import BeamSearch, LogitsProcessors, NextToken, Sampling, beam_search, generate
from triptych.nn import AttentionMask, attend
from triptych.report.samples import attention_record, prediction_latency, samples
from triptych.tasks import exact_sums as exact
from triptych.tasks.exact_sums import ExactMean, ExactSum, PairStatistic
from triptych.train import load_tested_weights
from triptych.training import TrainingModule
from triptych.training.checkpoint_file import copied, write_checkpoint
from triptych.training.failures import is_loss_of_a_peer
from triptych.training.nonfinite import NonFiniteError

FEW = ["data.num_train=40", "data.num_validation=8", "data.num_test=8"]
CELLS = {
    "dates/translation": ["task.num_beams=2", "block/position@model.decoder.position=relative_bias"],
    "dates/translation model=decoder_only": ["batch.packing=true", "block/position=rotary"],
    "dates/translation model=prefix_lm": [],
    "dates/pairs model=full": ["block/position=learned"],
    "dates/similarity": ["batch.packing=true", "block.num_token_types=2"],
    "dates/language_modeling": ["block.attention.sliding_windows=[4,null]", "block.attention.num_kv_heads=1"],
    "dates/language_modeling model=full": [],
    "dates/question_answering": ["batch.packing=true"],
    "dates/tagging model=decoder_only": [],
    "dates/language_modeling task=infilling": ["tokenizer.num_sentinels=3", "batch.packing=true"],
    "dates/translation task=text_to_text": [],
    "dates/chat": ["batch.packing=true", "block.dropout=0", "block.tie_word_embeddings=false"],
    "dates/denoising": [],
    "dates/denoising model=full": [],
    "digits/encoder_only": [],
    "tones/transcription": FEW,
    "matching/drawn": [  # the labels, digits, are not in its vocabulary: all would be equally likely
        *FEW, "data.num_train=80", "optimizer=adamw", "optimizer.lr=1e-3", "data.max_digits=1", "data.languages=[en]",
        "image_embedding.image_size=[12,24]", "task.classes=[zero,one,two,three,four,five,six,seven,eight,nine]",
    ],
}  # fmt: skip
DATES = [*FEW, "data.languages=[de,en,ja]"]
WITHOUT_FLOAT64 = [*CELLS][3:10]
QUIET = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    "use_distributed_sampler": False, "max_epochs": -1, "max_steps": 2, "val_check_interval": 2,
    "check_val_every_n_epoch": None, "num_sanity_val_steps": 0, "limit_val_batches": 1, "limit_test_batches": 1,
    "gradient_clip_val": 1.0,
}  # fmt: skip
Chosen = Callable[..., DictConfig]


def made(config: DictConfig) -> tuple[TrainingModule, DataModule, Splits]:
    """What trains the task of a configuration, and its data."""
    corpus = build(config, "data")
    splits = corpus.splits()
    info = replace(corpus.info, has_pairs=splits.train[0].text_pair is not None)
    tokenizer = train_tokenizer(config, splits)
    complete(config, tokenizer, info)
    task = make_task(RunSettings.of(config), tokenizer, info)
    task.max_new_tokens = 4
    return make_module(RunSettings.of(config), task), make_data_module(RunSettings.of(config), task, splits), splits


def configured(chosen: Chosen, experiment: str) -> DictConfig:
    """Nothing of it learns from rounding errors, as AdamW does where the gradient is 0."""
    still = ["block.bias=false", "optimizer.eps=1.0e-4"]
    given = [*tiny.NETWORK, *still, "batch.global_size=8", "batch.eval_batch_size=8", *CELLS[experiment]]
    return chosen(*f"experiment={experiment}".split(), *given, *(DATES if experiment.startswith("dates") else []))


def run(
    config: DictConfig, ranks: AbstractContextManager[None], **place: Any
) -> tuple[dict[str, float], dict[str, torch.Tensor], list[Any], Any]:
    """The metrics after two updates, the weights, what is answered, and where the network looks."""
    module, data, splits = made(config)
    task, trainer = module.task, L.Trainer(**QUIET, **place)
    trainer.fit(module, data)
    with ranks:
        metrics = measure(trainer, module, data)
    module.to(trainer.strategy.root_device)
    weights = {name: weight.cpu() for name, weight in task.network.state_dict().items()}
    assert prediction_latency(task, splits, 1) > 0
    return metrics, weights, samples(task, splits, 2), attention_record(task, splits, 1)


def plain(value: Any) -> Any:
    """Nested containers of numbers as pytest compares them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return pytest.approx(value, rel=1e-3, abs=1.01) if isinstance(value, int | float) else value


@pytest.mark.parametrize("experiment", by_day(CELLS, [*CELLS][:16:4]))
def test_a_task_trains_and_is_measured_as_on_the_cpu(experiment: str, chosen: Chosen) -> None:
    """A twin has the same examples, so the means are those of one process; but not where all pairs count together."""
    ranks = nullcontext() if experiment.startswith("matching") else twins()
    config = configured(chosen, experiment)
    expected, weights, answers, seen = run(config.copy(), nullcontext(), accelerator="cpu")
    with on_fake_gpu():
        found = run(config.copy(), ranks, accelerator=StandInAccelerator(), strategy=strategy())
    assert found[0] == pytest.approx(expected, rel=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(found[1][name], weight, rtol=1e-3, atol=1e-5)
    assert found[2] == answers
    assert found[3] == plain(seen)  # thousandths


@pytest.mark.parametrize("experiment", by_day(WITHOUT_FLOAT64, ["dates/similarity"]))
def test_a_device_without_float64_is_enough(experiment: str, chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's GPUs are such ones."""
    monkeypatch.setattr(exact, "WITHOUT_FLOAT64", (NAME,))
    config = configured(chosen, experiment)
    module, data, _ = made(config)
    expected = measure(L.Trainer(**QUIET, accelerator="cpu"), module, data)
    with on_fake_gpu(lacks=[torch.float64]):
        found = measure(L.Trainer(**QUIET, accelerator=StandInAccelerator(), strategy=strategy()), module, data)
    assert found == pytest.approx(expected, rel=1e-4)


class Waits(L.Callback):
    """Notes what the CPU waits for from the beginning of the second update to the end of the third, nothing of which is
    logged."""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 1:
            Device.active.waits.clear()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 3:
            self.waits = Counter(Device.active.waits)


@pytest.mark.parametrize("experiment", by_day(CELLS, [*CELLS][1::6]))
def test_a_step_waits_for_nothing(experiment: str, chosen: Chosen) -> None:
    waits = Waits()
    with on_fake_gpu():
        module, data, _ = made(configured(chosen, experiment))
        settings = {**QUIET, "max_steps": 4, "val_check_interval": 4, "callbacks": [waits]}
        L.Trainer(**settings, accelerator=StandInAccelerator(), strategy=strategy()).fit(module, data)
    assert waits.waits == {}


@pytest.mark.parametrize("skips", [False, True])
def test_a_step_that_is_not_finite_is_found_one_later(skips: bool, chosen: Chosen) -> None:
    """The device leaves it out by itself."""
    weights, config = [], configured(chosen, "dates/tagging model=decoder_only")
    with on_fake_gpu():
        module, data, _ = made(config)
        module.on_nonfinite.skips, network = skips, module.network
        module.task.forward = spoil(module, update=2)  # type: ignore[method-assign]
        trainer = L.Trainer(
            **{**QUIET, "max_steps": 4, "val_check_interval": 4, "callbacks": [Weights(network, weights)]},
            accelerator=StandInAccelerator(), strategy=strategy(),
        )  # fmt: skip
        if skips:
            trainer.fit(module, data)
        else:
            with pytest.raises(NonFiniteError, match="step 2: the loss is nan and"):
                trainer.fit(module, data)
    assert len(weights) == (4 if skips else 2)
    assert all(map(torch.equal, weights[0], weights[1]))
    assert module.on_nonfinite.skipped == skips
    if skips:
        assert all(row.isfinite().all() for row in weights[3])
        assert not any(map(torch.equal, weights[2], weights[3]))


def spoil(module: TrainingModule, update: int) -> Callable[..., torch.Tensor]:
    """The task's forward, whose loss is infinite in one update."""
    forward = module.task.forward

    def spoilt(*batch: Any) -> torch.Tensor:
        return forward(*batch) * (float("inf") if module.trainer.global_step + 1 == update else 1.0)

    return spoilt


class Weights(L.Callback):
    """Copies the matrices after each update."""

    def __init__(self, network: torch.nn.Module, found: list[list[torch.Tensor]]) -> None:
        self.network, self.found = network, found

    def on_train_batch_end(self, *_: Any) -> None:
        self.found.append([weight.detach().cpu() for weight in self.network.parameters() if weight.ndim > 1])


def test_what_is_summed_goes_to_the_device() -> None:
    with on_fake_gpu():
        one, mean, pairs = (
            metric.to(HERE) for metric in (ExactSum(), ExactMean(), PairStatistic(lambda x, y: (x * y).sum()))
        )
        for term in (torch.tensor(2.5), torch.tensor(0.5, device=HERE), 4):
            one.update(term)
            mean.update(term, torch.tensor(2) if term == 4 else 3)
        pairs.update(torch.tensor([1.0, 2.0]), torch.tensor([True, False], device=HERE))
        for metric in (one, mean, pairs):
            assert all(isinstance(term, StandIn) for term in metric.terms)
        with twins():
            assert float(one.compute()) == 14
            assert float(mean.compute()) == 14 / 16
            assert float(pairs.compute()) == 2


class Watching(SingleDeviceStrategy):
    """Notes where the checkpoint is that it is given."""

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        self.devices = {x.device.type for x in tree_leaves(dict(checkpoint)) if isinstance(x, torch.Tensor)}
        super().load_model_state_dict(checkpoint, strict)


def test_the_best_weights_are_read_into_main_memory(chosen: Chosen, tmp_path: Path) -> None:
    """The optimizer's state beside them would not fit onto a device that holds a share of it."""
    config = configured(chosen, "dates/tagging model=decoder_only")
    with on_fake_gpu():
        module, data, _ = made(config)
        trainer = L.Trainer(**QUIET, accelerator=StandInAccelerator(), strategy=Watching(device=HERE))
        trainer.fit(module.to(HERE), data)
        state = copied({"state_dict": module.state_dict(), "optimizer_states": [trainer.optimizers[0].state_dict()]})
        write_checkpoint(state, tmp_path / "best.ckpt")
        torch.nn.init.zeros_(module.to(HERE).network.head.output.weight)
        load_tested_weights(trainer, "best", tmp_path / "best.ckpt")
        measure(trainer, module, data)
        assert trainer.strategy.devices == {"cpu"}
        for name, weight in module.state_dict().items():
            assert torch.equal(weight.cpu(), state["state_dict"][name])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("length", [40, 150])
def test_no_kernel_of_a_device_gets_a_row_that_sees_nothing(
    length: int, window: int | None, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not see anything gets zeros, as on the CPU, and no gradient."""
    kernel, masks = torch.nn.functional.scaled_dot_product_attention, []

    def watched(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        masks.append(options["attn_mask"])
        return kernel(*tensors, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    real = torch.arange(length) >= torch.tensor([[0], [9], [length]])
    q, k, v = torch.randn(3, 3, 2, length, 4).unbind()
    found = []
    with on_fake_gpu():
        for device in (torch.device("cpu"), HERE):
            attention_mask = AttentionMask.of(
                num_queries=length, num_keys=length, causal=causal, key_mask=real.to(device), device=device,
                window=window,
            )  # fmt: skip
            tensors = [x.to(device).requires_grad_() for x in (q, k, v)]
            y = attend(*tensors, attention_mask)
            found.append([x.cpu() for x in (y, *torch.autograd.grad(y.square().sum(), tensors))])
        on_cpu, on_device = (mask.cpu().any(-1) for mask in masks)
    torch.testing.assert_close(*found)
    assert not on_cpu.all()
    assert on_device.all()


def test_a_tensor_that_the_processes_cannot_share_is_no_lost_process() -> None:
    """A group for CUDA alone, as NCCL's is."""
    torch.distributed.init_process_group("cuda:gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="device type cpu") as caught:
            torch.distributed.all_gather([torch.zeros(1)], torch.zeros(1))
    finally:
        torch.distributed.destroy_process_group()
    assert not is_loss_of_a_peer(caught.value)


class Endless(NextToken):
    """Writes one token again and again."""

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.full((len(tokens),), 3, device=HERE), 7).float()

    def select(self, rows: torch.Tensor) -> None:
        assert not isinstance(rows, StandIn)  # what the CPU has decided


RULES = LogitsProcessors(bad_words_ids=[[1, 4]], min_new_tokens=3, no_repeat_ngram_size=12, forced_eos_token_id=3)


@pytest.mark.parametrize("logits_processors", [None, RULES], ids=["free", "constrained"])
@pytest.mark.parametrize(
    "decode",
    [
        lambda *given, **rules: generate(*given, **rules, sampling=Sampling()),
        lambda *given, **rules: generate(*given, **rules, sampling=Sampling(1.0, top_k=1)),
        lambda *given, **rules: beam_search(*given, **rules, search=BeamSearch(2)),
    ],
    ids=["greedy", "sampling", "beams"],
)
def test_decoding_waits_once_a_step(
    decode: Callable[..., list[Any]], logits_processors: LogitsProcessors | None
) -> None:
    """For what the device was told to copy, whatever the number of rows, and for nothing else; greedy search for the
    step before, so that the device is never without work."""
    for rows in (1, 40):
        with on_fake_gpu() as device:
            prompt = torch.zeros(rows, 1, dtype=torch.long, device=HERE)
            device.waits.clear()
            found = decode(Endless(), prompt, end=2, max_new_tokens=9, logits_processors=logits_processors)
        assert [row if isinstance(row, list) and isinstance(row[0], int) else row[0].tokens for row in found] == [
            [3] * 9
        ] * rows
        assert device.looks - 9 in (0, 1)  # beam search looks at the prompt
        assert device.waits == {}


class Scripted(NextToken):
    """Writes the given texts, on the device; at a text that has left it must not be asked."""

    def __init__(self, texts: torch.Tensor) -> None:
        self.texts, self.step = texts, -1

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        assert len(tokens) == len(self.texts)
        self.step += 1
        return torch.nn.functional.one_hot(self.texts[:, self.step], 7).float().to(HERE)

    def select(self, rows: torch.Tensor) -> None:
        self.texts = self.texts[rows]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_a_row_ends_where_it_does_on_the_cpu(temperature: float, seed: int) -> None:
    """Though greedy search is a step ahead of what is known."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(5, (6, 8), generator=generator)
    limits = torch.randint(1, 9, (6,), generator=generator).tolist()
    expected = [
        list(itertools.takewhile(lambda token: token, row[:limit]))
        for row, limit in zip(texts.tolist(), limits, strict=True)
    ]
    with on_fake_gpu():
        prompt = torch.ones(6, 1, dtype=torch.long, device=HERE)
        found = generate(Scripted(texts), prompt, end=0, max_new_tokens=limits, sampling=Sampling(temperature))
    assert found == expected


def test_the_stand_in_finds_a_tensor_of_the_cpu() -> None:
    with on_fake_gpu(lacks=[torch.float64]) as device:
        x = torch.arange(6, device=HERE)
        for planted in (lambda: x + torch.ones(6), lambda: x[torch.tensor([1, 2])], lambda: torch.stack((x, x.cpu()))):
            with pytest.raises(Mixed):
                planted()
        with pytest.raises(Missing):
            x.double()
        device.waits.clear()
        assert (x * 2 + torch.tensor(1))[3].item() == 7
        assert x[x > 3].tolist() == [4, 5]
        assert device.waits == {"_local_scalar_dense": 1, "index": 1, "tolist": 1}
    with twins(), pytest.raises(Mixed), on_fake_gpu():
        torch.distributed.all_gather([torch.zeros(1)] * 2, torch.zeros(1))
