"""Several processes compute what one computes: losses, gradients, the metrics of an evaluation; shares of the weights
(FSDP) and copies of them (DDP) alike.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from omegaconf import OmegaConf
from safetensors.torch import load_file, load_model

import tiny
from cases import by_day
from commands import Command
from triptych.assembly.restore import load, restore
from triptych.config import ConfigError, PredictConfig, build
from triptych.config.run_settings import RunSettings
from triptych.evaluate import evaluation
from triptych.nn.network import weights_sha256
from triptych.predict import predict
from triptych.training import TrainingModule, read_checkpoint

COMMON = [
    *tiny.NETWORK, "block.dropout=0", "batch.global_size=24", "batch.packing=false", "batch.eval_batch_size=20",
    "scheduler.warmup_steps=5", "trainer.max_steps=25", "trainer.val_check_interval=25", "callbacks=default",
    "callbacks.progress.refresh_rate=0", "logger=csv",
]  # fmt: skip
DATES = ["data.num_train=200", "data.num_validation=50", "data.num_test=3", "data.languages=[de,en,ja]"]
WINDOWS = ["task=language_modeling", "model=decoder_only", "data=plain_text", "data.dir=.", "data.train=text.txt"]
ACCUMULATED = ["trainer.accumulate_grad_batches=3", "trainer.val_check_interval=60"]
BY_TOKENS = ["batch.global_size=null", "batch.max_tokens=70"]
LAYOUTS = {
    "padded": ["experiment=dates/language_modeling", "model=full", *DATES],
    "windows": [*WINDOWS, "shape.max_length=16"],
    "accumulated": ["experiment=dates/tagging", *DATES, *ACCUMULATED, *BY_TOKENS],
    "written": ["experiment=dates/translation", *DATES],
    "infilled": ["experiment=dates/language_modeling", *DATES, "task=infilling", "tokenizer.num_sentinels=3"],
    "talked": ["experiment=dates/chat", *DATES],
    "heard": ["experiment=tones/transcription", *DATES[:3]],
    "seen": ["experiment=captions/drawn", *DATES[:3]],
    "matched": ["experiment=matching/drawn", "optimizer=adamw", *DATES[:3]],
    "classified": ["experiment=dates/classification", "model=decoder_only", *DATES, *ACCUMULATED],
    "scored": ["experiment=dates/similarity", "model=decoder_only", *DATES],
    "asked": [
        "experiment=dates/question_answering", "model=full", *DATES, "shape.max_length=30", "batch.too_long=truncate",
    ],
}  # fmt: skip
"""Examples have unequal numbers of labels in the first and the third, whose steps have fewer examples than parts, or
more. Of 50 examples one rank evaluates 20, the other
30; of 3, one all."""
COPIED = ["padded", "windows", "accumulated", "infilled", "talked", "heard", "seen", "matched"]
TOGETHER = {"padded": ["batch.packing=true"], "classified": ["batch.packing=true"]}
"""What several processes have besides: a packed batch gives what a padded one gives."""
SHARED = ["trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2"]


def layouts(name: str) -> tuple[list[str], list[str]]:
    """Of one process, and of several."""
    return LAYOUTS[name], [*LAYOUTS[name], *TOGETHER.get(name, [])]


class Run:
    """What a training has left: what each rank saw, and its record."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.directory = folder / "run"
        self.losses = sum(self.seen("losses", rank) for rank in range(ranks)) / ranks
        self.summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())

    def seen(self, what: str, rank: int = 0) -> Any:
        """What a rank's recording has kept."""
        return torch.load(self.directory.parent / f"{what}-{rank}.pt", weights_only=True)

    @property
    def checkpoint(self) -> dict[str, Any]:
        """The newest."""
        return read_checkpoint(self.directory / "checkpoints" / "last.ckpt")


class Trainings:
    """Trainings, each in a folder of its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)])
        own = {
            "PYTHONPATH": path,
            "TRIPTYCH_ALLOW": "recording_callback.",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        self.environment = {**os.environ, **own}

    def run(self, name: str, ranks: int, *overrides: str) -> Run:
        """Trains, once."""
        folder = self.folder / name
        if folder.exists():
            return Run(folder, ranks)
        folder.mkdir()
        recording = [
            "+callbacks.recording._target_=recording_callback.RecordingCallback",
            f"+callbacks.recording.folder={folder}",
        ]
        place = [f"trainer={'cpu' if ranks == 1 else 'ddp_cpu'}", "trainer.accelerator=cpu", f"trainer.devices={ranks}"]
        if ranks > 1:
            place.append("trainer.strategy.timeout=120")
        arguments = ["train", *COMMON, *place, *overrides, *recording, f"run_dir={folder}/run"]
        logs = [folder / f"rank-{rank}" for rank in range(ranks)]
        shared = {"WORLD_SIZE": f"{ranks}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{find_free_network_port()}"}
        processes = []
        for rank, log in enumerate(logs):
            log.touch()
            of_rank = {**shared, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "NODE_RANK": "0"} if ranks > 1 else {}
            files = (Path(os.devnull), log, log)
            environment = self.environment | of_rank
            processes.append(Command(*arguments, cwd=self.folder, environment=environment, files=files))
        statuses = [process.wait(300) for process in processes]
        assert statuses == [0] * ranks, "".join(log.read_text() for log in logs)
        return Run(folder, ranks)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    folder = tmp_path_factory.mktemp("trainings")
    (folder / "text.txt").write_text(" ".join(f"{n} times {n} is {n * n}." for n in range(100)))
    return Trainings(folder)


Pair = tuple[Run, Run]


@pytest.fixture(scope="module", params=by_day(COPIED, ["accumulated", "matched"]))
def double(request: pytest.FixtureRequest, trainings: Trainings) -> Pair:
    """25 steps in float64, on one process and on two."""
    one, two = (
        trainings.run(f"{request.param}-{n}", n, *layout, "trainer.precision=64-true")
        for n, layout in enumerate(layouts(request.param), start=1)
    )
    return one, two


def test_the_losses_are_those_of_one_process(double: Pair) -> None:
    one, two = double
    assert len(one.losses) == len(two.losses) in (25, 75)
    assert one.losses[-1] < 0.9 * one.losses[0]  # it has learned
    steps = [run.losses.view(25, -1).sum(1) for run in double]
    torch.testing.assert_close(steps[1], steps[0], rtol=0, atol=1e-12)


def test_the_first_gradient_is_that_of_one_process(double: Pair) -> None:
    check_gradients(*double, atol=1e-12)


def check_gradients(one: Run, other: Run, *, atol: float) -> None:
    """Relative to the largest entry."""
    expected, found = (run.seen("gradient") for run in (one, other))
    largest = max(float(entries.abs().max()) for entries in expected.values())
    assert found.keys() == expected.keys()
    for name, entries in expected.items():
        torch.testing.assert_close(found[name], entries, rtol=0, atol=atol * largest, msg=name)


def test_the_metrics_are_exactly_those_of_one_process(
    double: Pair, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same weights."""
    _, two = double
    monkeypatch.chdir(trainings.folder)
    config, task = restore(two.directory)
    assert evaluation(RunSettings.of(config), TrainingModule(task), is_same_data=True) == two.summary["metrics"]


@pytest.mark.parametrize("name", by_day(["scored", "asked"], ["asked"]))
def test_so_are_those_of_pairs_which_predict_reads_too(name: str, trainings: Trainings) -> None:
    """With other sizes of batches, counts are the same and losses nearly."""
    run = trainings.run(name, 2, *LAYOUTS[name], "trainer.max_steps=10", "trainer.val_check_interval=10")
    config, task = restore(run.directory)
    assert evaluation(RunSettings.of(config), TrainingModule(task), is_same_data=True) == run.summary["metrics"]
    for size in (1, 7, 64):
        config.batch.eval_batch_size = size
        metrics = evaluation(RunSettings.of(config), TrainingModule(task), is_same_data=True)
        # abs: of answers that are nearly right, the error is small beside what float32 rounds
        assert metrics == pytest.approx(run.summary["metrics"], rel=1e-6, abs=1e-8)
        assert metrics.get("test/exact_match") == run.summary["metrics"].get("test/exact_match")
    too_long = run.summary["too_long"]
    assert too_long["policy"] == config.batch.too_long
    assert (too_long["train"] > 0) == (too_long["validation"] > 0) == (name == "asked")

    folder = run.directory.parent
    (folder / "in.tsv").write_text("day\t3. März 1999\nyear\t1999年3月3日\n")
    settings = PredictConfig(checkpoint=str(run.directory), input=f"{folder}/in.tsv", output=f"{folder}/out.txt")
    predict(OmegaConf.structured(settings))
    said = load(run.directory).predict([("day", "3. März 1999"), ("year", "1999年3月3日")])
    expected = [f"{answer:.6g}" if name == "scored" else answer for answer in said]
    assert (folder / "out.txt").read_text().splitlines() == expected
    (folder / "in.tsv").write_text("day\t3. März 1999\n3. März 1999\n")
    with pytest.raises(ConfigError, match=r"in\.tsv, line 2: no tab; expected a pair of texts"):
        predict(OmegaConf.structured(settings))


def shared(trainings: Trainings, name: str) -> Pair:
    """25 steps in float32, on one process and on two that share the weights."""
    alone, together = layouts(name)
    return trainings.run(f"{name}-whole", 1, *alone), trainings.run(f"{name}-shared", 2, *together, *SHARED)


@pytest.fixture(scope="module", params=by_day(["written", "classified", "matched"], ["written"]))
def shares(request: pytest.FixtureRequest, trainings: Trainings) -> Pair:
    """The same, of each of these layouts."""
    return shared(trainings, request.param)


class TestShares:
    """FSDP."""

    def test_losses_and_gradients_are_those_of_one_process(self, shares: Pair) -> None:
        one, two = (run.losses.view(25, -1).sum(1) for run in shares)
        torch.testing.assert_close(two, one, rtol=1e-5, atol=0)
        check_gradients(*shares, atol=1e-6)

    def test_each_process_holds_a_part(self, shares: Pair) -> None:
        one, two = shares
        assert all(int(two.seen("held", rank)) < 0.6 * int(one.seen("held")) for rank in (0, 1))

    def test_the_record_is_of_the_whole_network(self, shares: Pair) -> None:
        _, two = shares
        config, task = restore(two.directory)
        module = TrainingModule(task)
        assert evaluation(RunSettings.of(config), module, is_same_data=True) == two.summary["metrics"]
        counts = module.matrix_metrics.get("test/confusion_matrix")
        assert counts is None or two.summary["confusion_matrix"]["counts"] == counts
        assert weights_sha256(task.network) == two.summary["weights_sha256"]
        load_model(task.network, two.directory / "weights.safetensors")
        assert weights_sha256(task.network) == two.summary["weights_sha256"]

    def test_a_checkpoint_is_that_of_one_process(self, shares: Pair) -> None:
        """Names, shapes and settings; the numbers are compared by those who go on with them."""
        one, two = (run.checkpoint for run in shares)
        assert one.keys() == two.keys()
        shapes = [{name: tensor.shape for name, tensor in content["state_dict"].items()} for content in (one, two)]
        assert shapes[0] == shapes[1]
        expected, found = (content["optimizer_states"][0] for content in (one, two))
        assert found["param_groups"] == expected["param_groups"]
        assert found["state"].keys() == expected["state"].keys()
        for number, values in expected["state"].items():
            for name, value in values.items():
                torch.testing.assert_close(found["state"][number][name], value, rtol=1e-3, atol=1e-6)

    @pytest.mark.parametrize(
        ("begun", "strategy", "ranks"),
        [(1, [], 1), (1, SHARED, 2), (0, SHARED, 2)],
        ids=["by one", "by shares", "from one by shares"],
    )
    def test_a_run_resumes_with_other_processes(
        self, begun: int, strategy: list[str], ranks: int, trainings: Trainings, request: pytest.FixtureRequest
    ) -> None:
        start = shared(trainings, "written")
        more = [*LAYOUTS["written"], "trainer.max_steps=35"]
        expected = trainings.run("written-35", 1, *more, f"resume={start[0].directory}")
        name = request.node.callspec.id
        found = trainings.run(name, ranks, *more, *strategy, f"resume={start[begun].directory}")
        assert len(found.losses) == 10
        torch.testing.assert_close(found.losses, expected.losses, rtol=1e-5, atol=0)
        assert found.summary["metrics"] == pytest.approx(expected.summary["metrics"], rel=1e-5)


every_optimizer = pytest.mark.parametrize(
    "name", by_day(["muon", "schedule_free_adamw", "adafactor", "sgd"], ["schedule_free_adamw"])
)


def with_optimizer(name: str) -> list[str]:
    """Ten steps, with a validation and a checkpoint after five."""
    return [*LAYOUTS["written"], "trainer.max_steps=10", "trainer.val_check_interval=5", f"optimizer={name}"]


class TestOptimizers:
    def alone(self, trainings: Trainings, name: str) -> Run:
        """In float64, on one process."""
        return trainings.run(f"{name}-1", 1, *with_optimizer(name), "trainer.precision=64-true")

    @every_optimizer
    def test_two_processes_train_what_one_trains(self, name: str, trainings: Trainings) -> None:
        one = self.alone(trainings, name)
        two = trainings.run(f"{name}-2", 2, *with_optimizer(name), "trainer.precision=64-true")
        torch.testing.assert_close(two.losses, one.losses, rtol=0, atol=1e-12)
        for name, weights in two.seen("weights").items():
            if not name.endswith(".k.bias"):  # whose gradient is 0, but for rounding, which Adafactor makes large
                torch.testing.assert_close(weights, one.seen("weights")[name], rtol=0, atol=1e-10)

    @every_optimizer
    def test_a_run_resumes_to_the_last_bit(self, name: str, trainings: Trainings) -> None:
        alone = self.alone(trainings, name)
        start = f"resume={alone.directory}/checkpoints/step-00000005.ckpt"
        again = trainings.run(f"{name}-again", 1, *with_optimizer(name), "trainer.precision=64-true", start)
        assert torch.equal(again.losses, alone.losses[5:])
        assert again.summary["weights_sha256"] == alone.summary["weights_sha256"]
        assert again.summary["metrics"] == alone.summary["metrics"]
        assert weights_sha256(load(alone.directory).network) == alone.summary["weights_sha256"]

    def test_the_average_is_what_is_tested_and_saved(self, trainings: Trainings) -> None:
        """x of y = (1 - beta1) z + beta1 x, by the state of the optimizer."""
        one = trainings.run("schedule_free_adamw-whole", 1, *with_optimizer("schedule_free_adamw"))
        checkpoint = one.checkpoint
        config, task = restore(one.directory)
        assert evaluation(RunSettings.of(config), TrainingModule(task), is_same_data=True) == one.summary["metrics"]
        assert weights_sha256(task.network) == one.summary["weights_sha256"]
        numbers = [id(p) for group in build(config, "optimizer")(task.network).param_groups for p in group["params"]]
        saved = load_file(one.directory / "weights.safetensors")
        for name, parameter in task.network.named_parameters():
            z = checkpoint["optimizer_states"][0]["state"][numbers.index(id(parameter))]["z"]
            y = checkpoint["current_model_state"][f"network.{name}"]
            torch.testing.assert_close(parameter.detach(), (y - 0.1 * z) / 0.9, rtol=0, atol=1e-6)
            assert torch.equal(saved[name], parameter)
            assert not torch.equal(parameter, y)

    @pytest.mark.parametrize("name", by_day(["schedule_free_adamw", "sgd"], ["schedule_free_adamw"]))
    def test_shares_train_what_one_process_trains(self, name: str, trainings: Trainings) -> None:
        """FSDP, which has no float64."""
        settings = with_optimizer(name)
        one = trainings.run(f"{name}-whole", 1, *settings)
        two = trainings.run(f"{name}-shared", 2, *settings, *SHARED)
        torch.testing.assert_close(two.losses, one.losses, rtol=1e-5, atol=0)
        config, task = restore(two.directory)
        assert evaluation(RunSettings.of(config), TrainingModule(task), is_same_data=True) == two.summary["metrics"]
        assert weights_sha256(task.network) == two.summary["weights_sha256"]
        start = f"resume={two.directory}/checkpoints/step-00000005.ckpt"
        again = trainings.run(f"{name}-shared-again", 2, *settings, *SHARED, start)
        assert again.summary["weights_sha256"] == two.summary["weights_sha256"]
