"""``init_from``: what a run takes from a checkpoint, what is new, what is refused, and that a kill changes nothing."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lightning as L
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

import tiny
from cases import by_day
from clock import wait_until
from command_line import complete, with_parts
from commands import Command
from small_models import randomize
from triptych.assembly.checks import check_before_data
from triptych.assembly.init_from import settings_to_adopt
from triptych.assembly.loaders import make_data_module
from triptych.assembly.make_task import check_network, make_module, make_task
from triptych.assembly.read_data import train_tokenizer
from triptych.config import ConfigError, build
from triptych.config.overrides import adopt
from triptych.config.run_settings import RunSettings
from triptych.data.tokenizers.pretrained import write_tokenizer
from triptych.planning.prepare import adopt_settings, choose
from triptych.tasks import Task
from triptych.training import CheckpointMetadata, FreezePretrained, TrainingModule
from triptych.training.checkpoint_file import write_checkpoint
from triptych.training.resume import is_finished

Choose = Callable[..., DictConfig]


@pytest.fixture
def pretrain(chosen: Choose, tmp_path: Path) -> Callable[..., Task]:
    """Writes a checkpoint with noise in every weight, where ``init_from`` of ``fine_tune`` looks."""

    def run(*overrides: str) -> Task:
        config = chosen(*tiny.TINY, *overrides)
        corpus = build(config, "data")
        tokenizer = train_tokenizer(config, corpus.splits())
        complete(config, tokenizer, corpus.info)
        task = make_task(RunSettings.of(config), tokenizer, corpus.info)
        randomize(task.network)
        checkpoint: dict[str, object] = {"state_dict": TrainingModule(task).state_dict()}
        plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
        CheckpointMetadata(plain, task).on_save_checkpoint(cast(Any, None), cast(Any, None), checkpoint)
        write_checkpoint(checkpoint, tmp_path / "pretrained.ckpt")
        return task

    return run


@pytest.fixture
def fine_tune(chosen: Choose, tmp_path: Path) -> Callable[..., tuple[DictConfig, Task, dict[str, Tensor], list[str]]]:
    """What ``train`` does before its first step: the configuration, the task, its weights before any was taken, and
    which of them are new."""

    def run(*overrides: str) -> tuple[DictConfig, Task, dict[str, Tensor], list[str]]:
        config = chosen("data=dates", *tiny.DATES, f"init_from={tmp_path / 'pretrained.ckpt'}", *overrides)
        settings, pretrained = settings_to_adopt(config)
        assert pretrained is not None
        adopt(config, settings)
        check_before_data(with_parts(config))
        pretrained.check(check_network(config))
        corpus = build(config, "data")
        complete(config, pretrained.tokenizer, corpus.info)
        task = make_task(RunSettings.of(config), pretrained.tokenizer, corpus.info)
        fresh = {name: tensor.clone() for name, tensor in task.network.state_dict().items()}
        return config, task, fresh, pretrained.load_into(task)

    return run


CASES = [
    ("task=denoising model=bert/style", "task=classification", False),
    ("task=denoising model=bert/style", "task=tagging", False),
    ("task=denoising model=encoder_only", "task=denoising", True),
    ("task=language_modeling model=gpt2/style", "task=classification", False),
    ("task=language_modeling model=llama/style", "task=translation", True),
    ("task=denoising model=bart/style", "task=classification", False),
    ("task=denoising model=t5/v1_1-style", "task=translation", True),
    ("task=denoising model=t5/style", "task=translation", True),
    ("task=denoising model=t5gemma/style", "task=translation", True),
    ("task=classification model=bert/style", "task=classification", True),
    ("task=classification model=bert/style", "task=classification data.languages=[de,en,fr]", False),
    ("task=classification model=bert/style", "task=tagging", False),
]


@pytest.mark.parametrize(
    ("before", "after", "with_head"), by_day(CASES, CASES[1:11:2]), ids=[f"{b} {a}" for b, a, _ in CASES]
)
def test_what_is_taken_and_what_is_new(
    before: str,
    after: str,
    with_head: bool,
    pretrain: Callable[..., Task],
    fine_tune: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = pretrain(*before.split()).network.state_dict()
    with caplog.at_level("INFO", "triptych"):
        config, task, fresh, _ = fine_tune(*after.split())
    own = task.network.state_dict()
    is_tied = config.model.tie_word_embeddings
    for name, tensor in own.items():
        taken = with_head or not name.startswith("head.") or (is_tied and name == "head.output.weight")
        assert torch.equal(tensor, (theirs if taken else fresh)[name]), name
    parameters = dict(task.network.named_parameters())  # a tied matrix once
    new = [name for name in parameters if name.startswith("head.") and not with_head]
    taken = [parameter for name, parameter in parameters.items() if name not in new]
    (said,) = caplog.messages
    assert f"loaded {len(taken)} tensors ({sum(p.numel() for p in taken):,} parameters)" in said
    assert said.endswith(f"; new: {', '.join(new) or 'none'}")


class TestSettings:
    def test_are_the_checkpoints(self, pretrain: Callable[..., Task], fine_tune: Callable[..., Any]) -> None:
        """Those of single stacks too, whatever the experiment says; the head is that of the task."""
        tokenizer = pretrain(
            "task=denoising", "model=bart/style", "model.decoder.num_layers=2", "model.encoder.dropout=0.25",
            "tokenizer=bpe", "tokenizer.vocab_size=300",
        ).tokenizer  # fmt: skip
        config, task, _, _ = fine_tune("experiment=dates/classification", "model=full", "data.languages=[de,en,ja]")
        assert task.tokenizer.to_json() == tokenizer.to_json()
        assert config.tokenizer.vocab_size == config.shape.vocab_size == 300
        assert (config.shape.d_model, config.shape.d_ff, config.block.position.first) == (16, 32, 2)
        assert config.block.dropout == 0.1  # the experiment has 0.0
        assert (config.model.encoder.num_layers, config.model.decoder.num_layers) == (1, 2)
        assert (config.model.encoder.dropout, config.model.decoder.dropout) == (0.25, 0.1)
        head = config.model.head
        assert (head.num_outputs, head.pooling, head.transform, head.bias) == (3, "last", "tanh", "trained")
        assert config.model.tie_word_embeddings is False

    def test_a_tokenizer_of_files_is_inside(
        self, pretrain: Callable[..., Task], fine_tune: Callable[..., Any], tmp_path: Path
    ) -> None:
        overrides = ["task=denoising", "model=encoder_only"]
        folder = tmp_path / "folder"
        folder.mkdir()
        write_tokenizer(pretrain(*overrides).tokenizer, folder, model_max_length=128)
        tokenizer = pretrain(*overrides, "tokenizer=pretrained", f"tokenizer.dir={folder}").tokenizer
        folder.rename(tmp_path / "away")
        _, task, _, _ = fine_tune("task=classification")
        assert task.tokenizer.to_json() == tokenizer.to_json()

    def test_what_the_command_line_says_wins(
        self, pretrain: Callable[..., Task], fine_tune: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        theirs = pretrain("task=denoising", "model=roberta/style").network.state_dict()
        with caplog.at_level("INFO", "triptych"):
            config, task, _, _ = fine_tune(
                "task=classification", "block.dropout=0.3", "block.attention.dropout=0.5",
                "shape.max_length=100", "heads.classes.transform=none",
            )  # fmt: skip
        assert (config.model.encoder.dropout, config.block.attention.dropout) == (0.3, 0.5)
        assert (config.model.head.transform, config.model.head.bias) == ("none", "trained")
        positions = task.network.state_dict()["encoder.position.table"]
        assert torch.equal(positions, theirs["encoder.position.table"][:102])  # RoBERTa's begin at row 2
        assert caplog.messages[1:] == ["init_from: encoder.position.table: the first 102 of 130 rows"]

    def test_another_function_than_was_trained_is_said(
        self, pretrain: Callable[..., Task], fine_tune: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        pretrain("task=denoising", "model=bert/style")
        fine_tune("task=classification", "block.feed_forward.activation=relu", "block.dropout=0.3")
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1
        assert warnings[0].startswith("block.feed_forward.activation=relu, but init_from=")
        assert warnings[0].endswith("was trained with gelu")

    def test_of_a_chosen_model_are_its_own(self, pretrain: Callable[..., Task], fine_tune: Callable[..., Any]) -> None:
        pretrain("task=denoising", "model=bert/style")
        config, _, _, _ = fine_tune("task=classification", "model=bert/style", *tiny.NETWORK, "block.dropout=0.0")
        assert (config.block.dropout, config.block.attention.dropout) == (0.0, 0.1)
        assert config.shape.vocab_size is not None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["experiment=dates/translation"],
            "init_from=.* is encoder_only, but experiment=dates/translation is full; add model=encoder_only, or "
            "model=full to use the weights of another architecture",
        ),
        (
            ["model=decoder_only", "model.decoder.num_layers=2"],
            r"init_from=.* has a different network: "
            r"decoder.layers.1.self_attention.q.weight is missing in the checkpoint and .*",
        ),
        (["task=captioning"], "task=captioning on model=encoder_only: .*"),
        (["tokenizer=bytes"], "tokenizer: the tokenizer of init_from=.* is used. Remove the tokenizer settings"),
        (
            ["shape.d_ff=48"],
            r"init_from=.* has a different network: "
            r"encoder.layers.0.feed_forward.up.weight is \(32, 16\) in the checkpoint and \(48, 16\) in this run, "
            r"encoder.layers.0.feed_forward.up.bias is \(32,\) in the checkpoint and \(48,\) in this run, "
            r"encoder.layers.0.feed_forward.down.weight is \(16, 32\) in the checkpoint and \(16, 48\) in this run",
        ),
        (
            ["shape=tiny", "shape.num_layers=2"],
            r"init_from=.* has a different network: "
            r"embedding.tokens.weight is \(\d+, 16\) in the checkpoint and \(\d+, 64\) in this run, .* "
            r"and \d+ more",
        ),
        (
            ["shape.max_length=129"],
            r".*: encoder.position.table is \(128, 16\) in the checkpoint and \(129, 16\) in this run",
        ),
        (
            ["block.embed_norm=false", "block/feed_forward=gated_mlp"],
            r".*: encoder.embed_norm.weight is \(16,\) in the checkpoint and missing in this run, .*, "
            r"encoder.layers.0.feed_forward.gate.weight is missing in the checkpoint and \(32, 16\) in this run, .*",
        ),
        (["init_from=nothing.ckpt"], "init_from=nothing.ckpt: no such file; expected a run directory or a checkpoint"),
        (["init_from={folder}/text.ckpt"], "init_from=.*text.ckpt is damaged: it is no archive of torch's"),
        (["init_from={folder}/weights.ckpt"], "init_from=.*weights.ckpt: not a Triptych checkpoint"),
    ],
)
def test_refusals(
    overrides: list[str], message: str, pretrain: Callable[..., Task], fine_tune: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "text.ckpt").write_text("weights")
    write_checkpoint({"state_dict": {}}, tmp_path / "weights.ckpt")
    pretrain("task=denoising", "model=bert/style")
    with pytest.raises(ConfigError) as error:
        fine_tune("task=classification", *(override.format(folder=tmp_path) for override in overrides))
    assert re.fullmatch(message, str(error.value)), error.value


ADAPTED = [
    ("decoder_only", "task=tagging model=encoder_only"),
    ("decoder_only", "task=translation model=prefix_lm"),
    ("decoder_only", "task=translation model=full"),
    ("encoder_only", "task=language_modeling model=decoder_only"),
    ("encoder_only", "task=translation model=full init_cross_attention=new"),
    ("full", "task=classification model=encoder_only"),
    ("full", "task=translation model=decoder_only"),
    ("prefix_lm", "task=translation model=full"),
]


@pytest.mark.parametrize(("before", "after"), by_day(ADAPTED, ADAPTED[::2]), ids=[f"{b} {a}" for b, a in ADAPTED])
def test_another_architecture_begins_with_the_stacks_that_there_are(
    before: str, after: str, pretrain: Callable[..., Task], fine_tune: Callable[..., Any], caplog: Any
) -> None:
    """Each stack is that of its name or the only one; its settings come along; cross-attention is as it shall be."""
    options = ["block/position=rotary", "block.position.theta=500", "block.feed_forward.activation=silu"]
    theirs = pretrain("task=denoising", f"model={before}", *options).network
    with caplog.at_level("INFO", "triptych"):
        config, task, fresh, new_weights = fine_tune(*after.split())
    own = task.network.state_dict()
    for name in (name for name in own if name.startswith(("encoder.", "decoder."))):
        stack, _, rest = name.partition(".")
        source = stack if hasattr(theirs, stack) else theirs.architecture[:7]
        source = "decoder" if source == "prefix_" else source
        if ".cross_" in rest and "init_cross_attention=new" in after:
            assert torch.equal(own[name], fresh[name]), name
            assert name in new_weights
        elif ".cross_" in rest:
            assert torch.equal(own[name], theirs.state_dict()[f"{source}.{rest.replace('.cross_', '.self_')}"]), name
        else:
            assert torch.equal(own[name], theirs.state_dict()[f"{source}.{rest}"]), name
    assert torch.equal(own["embedding.tokens.weight"], theirs.state_dict()["embedding.tokens.weight"])
    for stack in task.network.stacks:
        assert (stack.position.theta, stack.causal) == (
            500,
            stack is getattr(task.network, "decoder", None) and (task.architecture != "prefix_lm"),
        )
    assert config.block.feed_forward.activation == "silu"
    assert f"({before} to {task.architecture}: " in caplog.messages[-1]


SECOND_TABLE = "model/embedding@model.source_embedding=tokens"
TWO_TABLES = f"model=full {SECOND_TABLE}"
OF_TABLES = [
    ("model=full", f"task=translation {SECOND_TABLE}", {"embedding": "embedding", "source_embedding": "embedding"}),
    (
        "model=decoder_only",
        f"task=translation {TWO_TABLES}",
        {"embedding": "embedding", "source_embedding": "embedding"},
    ),
    (TWO_TABLES, "task=classification model=encoder_only", {"embedding": "source_embedding"}),
    (TWO_TABLES, "task=language_modeling model=decoder_only", {"embedding": "embedding"}),
    (TWO_TABLES, "task=translation", {"embedding": "embedding", "source_embedding": "source_embedding"}),
]


@pytest.mark.parametrize(("before", "after", "sources"), OF_TABLES, ids=[f"{b} {a}" for b, a, _ in OF_TABLES])
def test_a_stack_reads_the_table_that_it_had(
    before: str, after: str, sources: dict[str, str], pretrain: Callable[..., Task], fine_tune: Callable[..., Any]
) -> None:
    """A second table begins as the only one that there is."""
    theirs = pretrain("task=denoising", *before.split()).network.state_dict()
    own = fine_tune(*after.split())[1].network.state_dict()
    assert {name.partition(".")[0] for name in own if "embedding" in name} == {*sources}
    for table, source in sources.items():
        assert torch.equal(own[f"{table}.tokens.weight"], theirs[f"{source}.tokens.weight"]), table


def test_a_table_is_not_lost(pretrain: Callable[..., Task], fine_tune: Callable[..., Any]) -> None:
    pretrain("task=denoising", *TWO_TABLES.split())
    with pytest.raises(
        ConfigError, match=r"source_embedding.tokens.weight is \(.*, 16\) in the checkpoint and missing in this run"
    ):
        fine_tune("task=translation", "model.source_embedding=null")


def test_distances_of_a_causal_stack_are_no_others(
    pretrain: Callable[..., Task], fine_tune: Callable[..., Any]
) -> None:
    """Their buckets are other ones, so the table is new; between stacks of one kind it is taken."""
    theirs = pretrain("task=denoising", "model=encoder_only", "block/position=relative_bias").network.state_dict()
    _, task, fresh, new_weights = fine_tune("task=translation", "model=full")
    own, name = task.network.state_dict(), "position.table.weight"
    assert torch.equal(own[f"encoder.{name}"], theirs[f"encoder.{name}"])
    assert torch.equal(own[f"decoder.{name}"], fresh[f"decoder.{name}"])
    assert f"decoder.{name}" in new_weights


def test_a_decoder_that_has_become_an_encoder_gives_its_states_with_its_mask(
    pretrain: Callable[..., Task], fine_tune: Callable[..., Any]
) -> None:
    decoder = pretrain("task=language_modeling", "model=decoder_only").network.decoder
    _, task, _, _ = fine_tune("task=tagging", "model=encoder_only")
    x = torch.randn(2, 9, decoder.d_model)
    encoder = task.network.encoder.eval()
    assert not torch.equal(encoder(x), decoder(x))
    encoder.causal = True
    assert torch.equal(encoder(x), decoder(x))


def test_new_weights_are_trained_first(pretrain: Callable[..., Task], fine_tune: Callable[..., Any]) -> None:
    """And what was taken stays as it is meanwhile, to the last bit; a run that goes on knows what is new."""
    pretrain("task=language_modeling", "model=decoder_only")
    config, task, _, new_weights = fine_tune(
        "task=translation", "model=full", "init_cross_attention=new", "batch.global_size=20"
    )
    data = make_data_module(RunSettings.of(config), task, build(config, "data").splits())
    seen: list[dict[str, Tensor]] = []

    class Seen(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            seen.append({name: p.detach().clone() for name, p in task.network.named_parameters()})

    first = FreezePretrained(num_steps=2)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=-1, max_steps=3, logger=False, enable_checkpointing=False, limit_val_batches=0,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, callbacks=[first, Seen()],
    )  # fmt: skip
    before = {name: p.detach().clone() for name, p in task.network.named_parameters()}
    trainer.fit(make_module(RunSettings.of(config), task, new_weights=new_weights), data)
    assert {*new_weights} >= {name for name in before if ".cross_" in name}
    for name, weight in before.items():
        is_new = name in new_weights
        assert torch.equal(seen[1][name], weight) != is_new or ".k.bias" in name, name  # no gradient reaches that
        assert not torch.equal(seen[2][name], weight) or ".k.bias" in name, name
    again = FreezePretrained(num_steps=2)
    again.load_state_dict(first.state_dict())
    assert again.state_dict() == {"new": sorted(new_weights)}
    with pytest.raises(ValueError, match=r"callbacks\.freeze_pretrained\.num_steps=0: expected at least 1"):
        FreezePretrained(num_steps=0)


def test_an_experiment_of_fine_tuning_keeps_its_own_settings(
    pretrain: Callable[..., Task], chosen: Choose, tmp_path: Path
) -> None:
    """imdb/fine_tuning names a checkpoint itself, so its max_length and dropout are meant; sst2's are meant for another
    network."""
    pretrain("task=denoising", "model=encoder_only", "block/position=rotary", "block.dropout=0.05")
    for experiment, dropout in (("imdb/fine_tuning", 0.2), ("sst2/encoder_only", 0.05)):
        config = chosen(f"experiment={experiment}", f"init_from={tmp_path / 'pretrained.ckpt'}")
        settings, _ = settings_to_adopt(config)
        adopt(config, settings)
        assert (config.shape.d_model, config.block.position) == (settings.shape.d_model, settings.block.position)
        assert "theta" in config.block.position
        assert config.block.dropout == dropout
        assert config.shape.max_length == (512 if "imdb" in experiment else settings.shape.max_length)


def test_an_output_layer_of_its_own_is_not_lost(pretrain: Callable[..., Task], fine_tune: Callable[..., Any]) -> None:
    pretrain("task=denoising", "model=full", "block.tie_word_embeddings=false")
    with pytest.raises(
        ConfigError, match=r"has a separate output layer; expected block\.tie_word_embeddings=false to keep it"
    ):
        fine_tune("task=translation", "block.tie_word_embeddings=true")


def test_a_run_ends_the_same_after_a_kill(pretrain: Callable[..., Task], chosen: Choose, tmp_path: Path) -> None:
    """And without the checkpoint that it began with, once it has others."""
    pretrain("task=denoising", "model=bert/style")
    overrides = [
        *tiny.DATES, "experiment=dates/classification", "init_from=pretrained.ckpt", "batch.global_size=20",
        "callbacks.progress.refresh_rate=0", "logger=csv", "trainer.accelerator=cpu", "scheduler.warmup_steps=1",
        "trainer.max_steps=40", "trainer.val_check_interval=20", "callbacks.checkpoints.every_n_steps=3",
    ]  # fmt: skip

    def start(run_dir: str) -> Command:
        output = tmp_path / f"{run_dir}.txt"
        output.write_text("")
        files = (Path(os.devnull), output, output)
        return Command("train", *overrides, f"run_dir={run_dir}", cwd=tmp_path, environment={**os.environ}, files=files)

    def finish(run_dir: str) -> tuple[str, dict[str, Any]]:
        assert start(run_dir).wait(300) == 0, (tmp_path / f"{run_dir}.txt").read_text()
        return (tmp_path / f"{run_dir}.txt").read_text(), json.loads((tmp_path / run_dir / "summary.json").read_text())

    said, alone = finish("alone")
    assert "init_from=pretrained.ckpt: " in said
    assert "new: head.dense.weight, head.dense.bias, head.output.weight, head.output.bias" in " ".join(said.split())
    killed = start("killed")

    def is_there() -> bool:
        assert killed.poll() is None
        return any((tmp_path / "killed").glob("checkpoints/step-*.ckpt"))

    wait_until(is_there, 200, "a checkpoint", pause=0.002)
    killed.kill()
    killed.wait(60)
    assert not (tmp_path / "killed" / "summary.json").exists()
    (tmp_path / "pretrained.ckpt").unlink()
    said, resumed = finish("killed")
    assert "resuming from" in said
    assert " taken" not in said
    for key in ("weights_sha256", "metrics", "init_from", "steps"):
        assert alone[key] == resumed[key], key
    assert alone["init_from"] == "pretrained.ckpt"

    for run_dir, is_other in (("alone", False), ("killed", True)):
        config = chosen(*overrides, f"run_dir={tmp_path / run_dir}", *(["block.dropout=0.3"] if is_other else []))
        plain = choose(config, adopt_settings(config)).plain
        if is_other:
            with pytest.raises(ConfigError, match=r"holds a finished run with block\.dropout=0\.1"):
                is_finished(config, plain)
        else:
            assert is_finished(config, plain)


def test_an_option_alone_is_of_the_trained_part(
    pretrain: Callable[..., Task], fine_tune: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    theirs = pretrain("task=denoising", "block/feed_forward=gated_mlp").network.state_dict()
    with caplog.at_level("INFO", "triptych"):
        config, task, _, _ = fine_tune("task=classification", "block.feed_forward.dropout=0.3")
    assert config.block.feed_forward._target_ == "triptych.nn.GatedFeedForward"
    assert config.model.encoder.feed_forward.dropout == 0.3
    gate = "encoder.layers.0.feed_forward.gate.weight"
    assert torch.equal(task.network.state_dict()[gate], theirs[gate])
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
