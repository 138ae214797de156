"""``triptych doctor`` as a user calls it: several commands in one process, which imports torch once."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from hydra import compose
from omegaconf import DictConfig, OmegaConf

import tiny
from clock import check_within
from command_line import complete, with_parts
from commands import Finished, answers_to
from triptych.assembly.checks import check_before_data
from triptych.assembly.make_task import make_task
from triptych.assembly.read_data import train_tokenizer
from triptych.config import ConfigError, build
from triptych.config.run_settings import RunSettings
from triptych.launch.sweep import job_directory
from triptych.models.flops import count_parameters, forward_flops
from triptych.planning import batch_shapes
from triptych.planning.batch_shapes import inspect_data
from triptych.planning.check_results import check_allocation, check_memory, check_run_dir, size
from triptych.planning.doctor import processes_of
from triptych.planning.forecast import UTILISATION, computed_seconds, make_forecast
from triptych.planning.gpus import GPUS
from triptych.training.optimizers import optimizer_flops

JOB = ["experiment=dates/translation", *tiny.TINY, "trainer.max_steps=6", "trainer.val_check_interval=3"]
JOB += ["scheduler.warmup_steps=2"]
ILL = ["task=translation", "model=full", "trainer=ddp_cpu", "batch.global_size=21", "run_dir=file/run", "seed=-1"]
ILL += ["scheduler.warmup_steps=9999"]
LARGE = ["data=plain_text", "data.dir=.", "data.train=text.txt", "task=language_modeling", "tokenizer=bytes"]
LARGE += ["trainer.precision=bf16-mixed", "device=h100"]
FILES = [*tiny.NETWORK, *JOB[-3:], "model=decoder_only", *LARGE[:-2], "logger=csv"]
SWEEP = [*JOB, "hydra/launcher=slurm", "run_dir=sweep"]
RUN = [*JOB, "run_dir=run", "logger=csv", "trainer.accelerator=cpu"]
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "text.txt").write_text("Once upon a time. " * 100)
    (folder / "file").write_text("")
    return folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Finished]:
    online = ["logger.wandb.offline=false", "trainer.accelerator=cpu"]
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "plan": (JOB, {}),
        "ill": ([*ILL, "data=plain_text", "data.dir=nowhere", "data.train=text.txt"], {}),
        "key": ([*JOB, *online, "device=t4", "trainer.precision=bf16-mixed"], {"WANDB_API_KEY": KEY}),
        "no key": ([*JOB, *online, "device=a100-40gb", "trainer.accelerator=gpu"], {}),
        "gpt3": (["model=gpt3/6.7b", *LARGE, "shape.vocab_size=50257", "trainer.devices=8", "trainer.num_nodes=4"], {}),
        "files": ([*FILES, "trainer.accelerator=cpu"], {}),
        "no file": (["model=gpt2/small", *LARGE, "data.train=other.txt"], {}),
        "typo": ([*JOB, "shape.dmodel=3"], {}),
        "own typo": ([*JOB, "devise=h100"], {}),
        "device": ([*JOB, "device=h1000"], {}),
        "sweep": (["-m", *SWEEP, "seed=1,2", "hydra.launcher.partition=gpu", "device=l4"], {}),
        "other nodes": (["-m", *SWEEP, "trainer.num_nodes=2"], {}),
        "help": (["--help"], {}),
    }
    given = [["doctor", *arguments] for arguments, _ in commands.values()]
    resumed = [
        ["train", *RUN], ["doctor", *RUN], ["unlink", "run/summary.json"], ["doctor", *RUN],
        ["doctor", *RUN, "optimizer.lr=1.0e-4"],
    ]  # fmt: skip
    found = answers_to([*given, *resumed], folder, *(variables for _, variables in commands.values()))
    return dict(zip([*commands, "trained", "finished", "goes on", "other"], found, strict=True))


class TestPlan:
    def test_the_parameters_are_those_of_the_network(
        self, answers: dict[str, Finished], chosen: Callable[..., DictConfig]
    ) -> None:
        config = chosen(*JOB)
        corpus = build(config, "data")
        tokenizer = train_tokenizer(config, corpus.splits())
        complete(config, tokenizer, corpus.info)
        network = make_task(RunSettings.of(config), tokenizer, corpus.info).network
        total, rest = count_parameters(network)
        plan = answers["plan"]
        assert f"parameters {total:,} ({rest:,} outside of the embeddings)" in plan.words
        for part in ("embedding", "encoder", "decoder", "head"):  # nothing is tied here
            assert f"{part} {sum(p.numel() for p in getattr(network, part).parameters()):,}" in plan.words

    def test_is_in_order(self, answers: dict[str, Finished]) -> None:
        plan = answers["plan"]
        assert (plan.returncode, plan.stderr) == (0, "")
        assert "measured on this computer" in plan.words
        assert (plan.lines("error"), plan.lines("warning")) == (0, 0)

    def test_of_files_a_step_is_tried_out_too(self, answers: dict[str, Finished]) -> None:
        assert (answers["files"].returncode, answers["files"].stderr) == (0, "")
        assert "measured on this computer" in answers["files"].words

    def test_the_memory_is_that_of_the_longest_batch(
        self, answers: dict[str, Finished], chosen: Callable[..., DictConfig]
    ) -> None:
        """Which is no longer than the longest text, and shape.max_length is far longer."""
        config = chosen(*JOB)
        texts = build(config, "data").splits().train
        said = re.search(r"20 rows of (\d+) positions and (\d+) of the source, the longest of", answers["plan"].words)
        assert said is not None
        assert config.shape.max_length > 100
        for number, part in zip(map(int, said.groups()), ("target", "text"), strict=True):
            longest = max(len(getattr(text, part)) for text in texts) + 2  # begin and end
            assert longest / 2 < number <= longest

    @pytest.mark.parametrize("name", ["plan", "ill", "gpt3", "key"])
    def test_fits_80_columns(self, answers: dict[str, Finished], name: str) -> None:
        assert max(map(len, answers[name].stdout.splitlines())) <= 80

    def test_leaves_nothing_behind(self, answers: dict[str, Finished], folder: Path) -> None:
        assert sorted(path.name for path in folder.iterdir()) == ["file", "run", "text.txt"]  # run is a training


class TestBeyondThisMachine:
    def test_published_numbers_in_seconds(self, answers: dict[str, Finished]) -> None:
        """GPT-3 by hand: 32 layers of 12 d^2 + 13 d, two tables, a norm; d = 4096 (Brown et al. 2020, table 2.1)."""
        d, gpt3 = 4096, answers["gpt3"]
        parameters = 32 * (12 * d * d + 13 * d) + (50257 + 2048) * d + 2 * d
        assert f"{parameters:,}" in gpt3.words
        assert gpt3.returncode == 1  # its state alone is more than an H100 has
        assert f"weights, gradients and optimizer alone need {size(24 * parameters)}"[:41] in gpt3.words
        assert "does not fit" in gpt3.words
        check_within(30, gpt3.seconds)

    def test_time_is_said_to_be_computed(self, answers: dict[str, Finished]) -> None:
        assert "not measured; computed for an assumed 30 % of the peak of 32 devices" in answers["gpt3"].words

    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_recomputed_blocks_take_time(self, chosen: Callable[..., DictConfig], dropout: float) -> None:
        """All of their products but the last of each, of which only the mask of a dropout needs the result."""
        config = with_parts(chosen(*JOB, "block.activation_checkpointing=true", f"block.dropout={dropout}"))
        forecast = make_forecast(inspect_data(config, None, 1).estimate(config), 1, GPUS["h100"])
        rows, *lengths = shape = next(iter(forecast.estimate.shapes))
        forward = forward_flops(forecast.network, shape)
        shape_of_last = (rows, sum(lengths), *forecast.network.decoder.layers[0].feed_forward.up.weight.shape)
        last = 2 * len(forecast.network.decoder.layers) * prod(shape_of_last) * (not dropout)
        again = sum(flops for part, flops in forward.items() if part != "head") - last
        assert forecast.recomputed == pytest.approx(again / (3 * sum(forward.values())))
        seconds = computed_seconds(forecast, GPUS["h100"])
        without = computed_seconds(replace(forecast, recomputed=0.0), GPUS["h100"])
        assert seconds == pytest.approx((1 + forecast.recomputed) * without)

    @pytest.mark.parametrize(
        ("overrides", "key"),
        [([], "batch.global_size"), (["batch.global_size=null", "batch.max_tokens=2000"], "batch.max_tokens")],
    )
    def test_a_device_that_is_nearly_full_is_a_warning(
        self, chosen: Callable[..., DictConfig], overrides: list[str], key: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It names a key that exists."""
        config = with_parts(chosen(*JOB, *overrides))
        forecast = make_forecast(inspect_data(config, None, 1).estimate(config), 1, GPUS["h100"])
        needed = forecast.memory_on_gpus.ddp(1, forecast.estimate.rows).total
        with caplog.at_level("WARNING"):
            check_memory(forecast, replace(GPUS["h100"], memory=2 * needed), sharded=False)
            assert caplog.messages == []
            check_memory(forecast, replace(GPUS["h100"], memory=needed + 1), sharded=False)
        [warning] = caplog.messages
        assert warning.endswith(f"raise trainer.accumulate_grad_batches, or lower {key}")
        assert OmegaConf.select(config, key)

    def test_the_optimizer_computes_too(self, chosen: Callable[..., DictConfig]) -> None:
        """Its steps are counted once for all processes, and take time in each."""
        forecasts = []
        for name in ("adamw", "muon"):
            config = with_parts(chosen(*JOB, f"optimizer={name}", "trainer.max_steps=7"))
            forecasts.append(make_forecast(inspect_data(config, None, 1).estimate(config), 2, GPUS["h100"]))
        plain, muon = forecasts
        steps = 7 * optimizer_flops(muon.network, build(config, "optimizer"))
        assert muon.flops - plain.flops == pytest.approx(steps)
        plain_time, time = (computed_seconds(forecast, GPUS["h100"]) for forecast in forecasts)
        assert plain_time is not None
        assert time is not None
        peak = GPUS["h100"].single
        assert peak is not None
        assert time - plain_time == pytest.approx(steps / (UTILISATION * peak))
        assert steps > 0

    def test_a_missing_gpu_is_no_error_there(self, answers: dict[str, Finished]) -> None:
        answer = answers["no key"]
        assert answer.returncode == 0
        assert "no GPU is available" in answer.words

    def test_hardware_without_bf16(self, answers: dict[str, Finished]) -> None:
        assert "T4 16 GB has no bf16" in answers["key"].words


class TestChecks:
    def test_everything_is_said_at_once(self, answers: dict[str, Finished]) -> None:
        ill = answers["ill"]
        assert ill.returncode == 1
        for words in (
            "seed=-1: expected 0 or more",
            "task=translation: data=plain_text has no text and no target, but long_text",
            "data.dir=nowhere: no such folder",
            "batch.global_size=21 cannot be split",
            "file is a file",
            "the learning rate never reaches its peak",
        ):
            # a table may break a path, or what follows it, anywhere
            assert "".join(words.split()) in "".join(ill.words.split())
        assert (ill.lines("error"), ill.lines("warning")) == (5, 1)
        assert ill.stderr == "error: 5 errors: this run would fail\n"

    def test_a_missing_file_hides_no_plan(self, answers: dict[str, Finished]) -> None:
        answer = answers["no file"]
        assert (answer.returncode, answer.lines("error")) == (1, 1)
        assert "data.train=other.txt: no such file" in answer.words
        for words in ("parameters", "tokens", "memory of each process", "GPUs for batches"):
            assert words in answer.words

    def test_a_run_directory_that_even_root_cannot_make(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="run_dir=/proc/foo: /proc is not writable"):
            check_run_dir(Path("/proc/foo"))
        assert check_run_dir(tmp_path / "a" / "b").endswith("b, new")
        assert not list(tmp_path.iterdir())

    def test_what_fsdp_rejects_comes_before_the_advice_to_the_optimizer(
        self, chosen: Callable[..., DictConfig]
    ) -> None:
        with pytest.raises(ConfigError, match="FSDP has 32-true"):
            check_before_data(with_parts(chosen(*JOB, "trainer=fsdp", "trainer.precision=16-mixed")))

    @pytest.mark.parametrize(
        ("overrides", "warning"),
        [
            (["block.position.local_theta=1e4"], "local_theta has no effect: no layer has a window"),
            (["block.position.local_theta=1e4", "block.attention.sliding_windows=[8,null]"], ""),
            (
                ["model=decoder_only", "block.position.rotate_cross_attention=true"],
                "rotate_cross_attention=true has no effect",
            ),
            (["block.position.rotate_cross_attention=true"], ""),
            (
                ["optimizer=sgd"],
                "optimizer.lr=0.003 of experiment=dates/translation is meant for AdamW; the default of optimizer=sgd",
            ),
            (["optimizer=sgd", "optimizer.lr=1"], ""),
            (["optimizer=muon"], ""),
        ],
    )
    def test_an_option_without_effect_and_a_learning_rate_of_another_optimizer_are_named(
        self, overrides: list[str], warning: str, chosen: Callable[..., DictConfig], caplog: pytest.LogCaptureFixture
    ) -> None:
        check_before_data(with_parts(chosen(*JOB, "block/position=rotary", *overrides)))
        assert warning in caplog.text
        assert bool(caplog.text) == bool(warning)

    def test_a_precision_of_another_library_is_rejected(self, chosen: Callable[..., DictConfig]) -> None:
        with pytest.raises(ConfigError, match=r"^trainer.precision=transformer-engine: .*; expected 32-true or bf16-"):
            check_before_data(with_parts(chosen(*JOB, "trainer.precision=transformer-engine")))

    def test_the_key_of_wandb_is_found_and_not_shown(self, answers: dict[str, Finished]) -> None:
        assert "online at api.wandb.ai" in answers["key"].words
        assert KEY not in answers["key"].stdout + answers["key"].stderr
        assert "no API key" in answers["no key"].words

    def test_what_is_warned_of_is_not_ok_too(self, answers: dict[str, Finished]) -> None:
        for name, check in (("no key", "W&B"), ("key", "precision")):
            assert f"warning {check}" in answers[name].words
            assert f"ok {check}" not in answers[name].words

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("typo", "error: shape.dmodel: there is no such key; did you mean shape.d_model?"),
            ("own typo", "error: devise: there is no such key; did you mean device?"),
            ("device", "error: device=h1000: unknown; did you mean h100?"),
        ],
        ids=["a key of the training", "its own key", "a device"],
    )
    def test_typos(self, answers: dict[str, Finished], name: str, said: str) -> None:
        assert (answers[name].returncode, answers[name].stderr) == (1, said + "\n")

    def test_help(self, answers: dict[str, Finished]) -> None:
        assert "triptych doctor experiment=" in answers["help"].words


class TestSlurm:
    def test_the_script_is_shown(self, answers: dict[str, Finished], chosen: Callable[..., DictConfig]) -> None:
        """The jobs have the directories that ``triptych train -m`` gives them."""
        sweep = answers["sweep"]
        assert sweep.returncode == 0
        assert "#SBATCH --array=0-1%256\n" in sweep.stdout
        assert "#SBATCH --partition=gpu\n" in sweep.stdout
        assert "device=" not in sweep.stdout.partition("#!/bin/bash")[2]
        for seed in (1, 2):
            own = [*JOB, "run_dir=sweep", f"seed={seed}"]
            chosen(*own)
            whole = compose("train", overrides=own, return_hydra_config=True)
            assert f"seed={seed} run_dir={job_directory(whole, own)})" in sweep.stdout

    def test_the_first_job_that_is_not_done(self, tmp_path: Path, chosen: Callable[..., DictConfig]) -> None:
        """In its own directory, with both launchers; what lies in the folder around them is not its own."""
        (tmp_path / "sweep").mkdir()
        (tmp_path / "sweep" / "summary.json").touch()
        directories = []
        for seed in (1, 2):
            own = [*JOB, "run_dir=sweep", f"seed={seed}"]
            chosen(*own)
            directories.append(job_directory(compose("train", overrides=own, return_hydra_config=True), own))
        (tmp_path / directories[0]).mkdir()
        (tmp_path / directories[0] / "summary.json").touch()
        sweeps = [[*SWEEP, "seed=1,2"], [*SWEEP, "seed=1"], [*JOB, "run_dir=sweep", "seed=1,2"]]
        slurm, done, here = answers_to([["doctor", "-m", *s] for s in sweeps], tmp_path, *[{"COLUMNS": "300"}] * 3)
        for answer in (slurm, here):
            assert answer.returncode == 0
            assert "1 of 2 done" in answer.words
            assert f"run_dir {directories[1]}, new" in answer.words
            assert "resume starts at step 1" in answer.words
        assert "1 of 1 done" in done.words
        assert "already finished" in done.words

    def test_other_nodes_than_are_asked_for(self, answers: dict[str, Finished]) -> None:
        assert answers["other nodes"].returncode == 1
        assert "trainer.num_nodes=2, but hydra.launcher.nodes=1" in answers["other nodes"].words

    @pytest.mark.parametrize(
        ("given", "variables", "said"),
        [
            ("trainer.num_nodes=2 trainer.devices=2", {"NNODES": 2, "NTASKS_PER_NODE": 2, "GPUS_ON_NODE": 2}, None),
            ("trainer.devices=2", {"NNODES": 1, "NTASKS_PER_NODE": 1}, None),  # the one task starts both
            ("trainer.num_nodes=2", {"NNODES": 1}, "trainer.num_nodes=2, but job 7 has 1"),
            ("trainer.num_nodes=2 trainer.devices=2", {"NNODES": 2}, "expected sbatch --ntasks-per-node=2"),
            ("trainer.num_nodes=2 trainer.devices=2", {"NNODES": 2, "NTASKS_PER_NODE": 1}, "has 1 tasks per node"),
            ("trainer.devices=4", {"NNODES": 1, "NTASKS_PER_NODE": 4, "GPUS_ON_NODE": 2}, "has 2 GPUs per node"),
        ],
        ids=["fits", "one task", "nodes", "tasks are not given", "tasks", "GPUs"],
    )
    def test_allocation(
        self,
        chosen: Callable[..., DictConfig],
        monkeypatch: pytest.MonkeyPatch,
        given: str,
        variables: dict[str, int],
        said: str | None,
    ) -> None:
        config = chosen(*given.split())
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        for name in ("NNODES", "NTASKS_PER_NODE", "GPUS_ON_NODE"):
            monkeypatch.delenv(f"SLURM_{name}", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))
        with nullcontext() if said is None else pytest.raises(ConfigError, match=said):
            check_allocation(config, processes_of(config))


@pytest.mark.parametrize("is_small", [True, False])
def test_small_files_are_read_for_their_lengths(
    is_small: bool, chosen: Callable[..., DictConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of characters the longest of 40 lines has 9, besides what begins and ends them; else it may have 128."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("".join("x" * (n % 9 + 1) + "\n" for n in range(40)))
    monkeypatch.setattr(batch_shapes, "READ_BYTES", 1000 if is_small else 10)
    files = ["data=parallel_text", f"data.dir={tmp_path}", "data.train=[a.txt,b.txt]", "batch.global_size=16"]
    config = with_parts(chosen("task=translation", "model=full", "tokenizer=characters", "batch.packing=false", *files))
    estimate = inspect_data(config, None, 1).estimate(config)
    assert all(9 <= side <= 11 for side in estimate.longest) if is_small else estimate.longest == (128, 128)
    assert bool(estimate.sample) == is_small
    config.data.train = ["a.txt", "missing.txt"]
    assert not batch_shapes.has_small_files(config)


class TestResume:
    def test_a_finished_run(self, answers: dict[str, Finished]) -> None:
        assert answers["trained"].returncode == 0
        assert "already finished: train would do nothing" in answers["finished"].words

    def test_an_unfinished_run(self, answers: dict[str, Finished]) -> None:
        assert "resumes after step 6 of 6, from run/checkpoints/step-00000006.ckpt" in answers["goes on"].words

    def test_another_configuration(self, answers: dict[str, Finished]) -> None:
        assert answers["other"].returncode == 1
        assert "contains an unfinished run with optimizer.lr=0.003" in answers["other"].words


@pytest.mark.parametrize(
    ("text", "expected"),
    [(size(1023), "1,023 B"), (size(1536), "1.5 KiB"), (size(80 * 2**30), "80 GiB"), (size(2**50), "1,024 TiB")],
)
def test_numbers_for_people(text: str, expected: str) -> None:
    assert text == expected
