"""Which value of a monitored metric is best."""

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import EarlyStopping
from omegaconf import DictConfig
from torchmetrics import Metric

import tiny
from cases import by_day
from command_line import complete
from triptych.assembly.make_task import make_task
from triptych.assembly.monitors import choose_modes
from triptych.assembly.read_data import read_corpus, train_tokenizer
from triptych.config import ConfigError, build
from triptych.config.run_settings import RunSettings
from triptych.search.sweeper import direction_of
from triptych.tasks import Task
from triptych.train import train
from triptych.training import CheckpointSaver, TrainingModule, read_checkpoint

FEW = ["data.num_train=40", "data.num_validation=8", "data.num_test=8"]
TASKS = {
    "classification": ["experiment=dates/classification"],
    "chat": ["experiment=dates/chat"],
    "denoising": ["experiment=dates/denoising"],
    "language_modeling": ["experiment=dates/language_modeling"],
    "question_answering": ["experiment=dates/question_answering"],
    "similarity": ["experiment=dates/similarity"],
    "tagging": ["experiment=dates/tagging"],
    "text_to_text": ["task=text_to_text", "data=dates"],
    "translation": ["experiment=dates/translation"],
    "infilling": ["task=infilling", "data=dates", "model=decoder_only", "tokenizer.num_sentinels=3"],
    "captioning": ["experiment=captions/drawn"],
    "image_generation": ["experiment=generation/drawn"],
    "image_text_matching": ["experiment=matching/drawn"],
    "transcription": ["experiment=tones/transcription"],
}
Choose = Callable[..., DictConfig]


def task_of(config: DictConfig) -> Task:
    _, splits, info = read_corpus(config, "data")
    tokenizer = train_tokenizer(config, splits)
    complete(config, tokenizer, info)
    return make_task(RunSettings.of(config), tokenizer, info)


@pytest.mark.parametrize("name", by_day(TASKS, [*TASKS][::3]))
def test_every_metric_of_a_validation_states_its_mode(name: str, chosen: Choose) -> None:
    task = task_of(chosen(*TASKS[name], *FEW, *tiny.NETWORK))
    module, modes = TrainingModule(task), task.all_metric_modes()
    assert set(module.metric_names("val")) <= set(modes)
    numbers = dict.fromkeys([f"test/{metric}" for metric in modes], 1.0)
    for score in task.comparison_metrics(task.architecture, numbers, {}):  # by which a page compares
        mode = modes.get(score.key.removeprefix("test/"))
        assert mode in (None, "max" if score.higher_is_better else "min")
    for metric_name, metric in module.metrics_of("test").items():  # as torchmetrics states it
        if isinstance(metric, Metric) and metric.higher_is_better is not None and modes[metric_name] is not None:
            assert modes[metric_name] == ("max" if metric.higher_is_better else "min")
    assert {f"conf/task/{task}.yaml" for task in TASKS} == {f"conf/task/{p.name}" for p in conf_of_tasks()}


@cache
def conf_of_tasks() -> list[Path]:
    return list((Path(__file__).parents[2] / "conf" / "task").glob("*.yaml"))


def callbacks(*overrides: str) -> list[str]:
    return ["callbacks=[default,early_stopping]", *(f"callbacks.{override}" for override in overrides)]


def test_the_mode_is_that_of_the_metric(chosen: Choose) -> None:
    given = callbacks("checkpoints.monitor=val/accuracy", "early_stopping.monitor=val/calibration_error")
    own = ["+callbacks.mine._target_=lightning.pytorch.callbacks.EarlyStopping", "+callbacks.mine.monitor=val/macro_f1"]
    config = chosen("experiment=dates/classification", *given, *own)
    choose_modes(config)
    built = {name: build(config, f"callbacks.{name}") for name in ("checkpoints", "early_stopping", "mine")}
    assert isinstance(built["checkpoints"], CheckpointSaver)
    assert all(isinstance(built[name], EarlyStopping) for name in ("early_stopping", "mine"))
    assert {name: callback.mode for name, callback in built.items()} == {
        "checkpoints": "max", "early_stopping": "min", "mine": "max",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("checkpoints.mode=max", "callbacks.checkpoints.mode=max: the lowest val/loss is best; expected min or null"),
        ("early_stopping.monitor=train/loss", "early_stopping.monitor=train/loss: expected a validation metric; "
         "did you mean val/loss?"),
        ("early_stopping.monitor=val/matthews", "for your own metric, set callbacks.early_stopping.mode=min or max"),
        ("early_stopping.monitor=val/confusion_matrix", "early_stopping.mode=null: Classification defines no mode"),
    ],
)  # fmt: skip
def test_a_contradiction_and_an_unknown_mode_are_errors(override: str, answer: str, chosen: Choose) -> None:
    with pytest.raises(ConfigError) as error:
        choose_modes(chosen("experiment=dates/classification", *callbacks(override)))
    assert answer in str(error.value)


def test_of_a_metric_of_their_own_users_give_the_mode(chosen: Choose) -> None:
    given = callbacks("checkpoints.monitor=val/matthews", "checkpoints.mode=max")
    config = chosen("experiment=dates/classification", *given)
    choose_modes(config)
    assert config.callbacks.checkpoints.mode == "max"


@pytest.mark.parametrize(
    ("metric", "given", "direction"),
    [("val/loss", None, "minimize"), ("val/accuracy", None, "maximize"), ("val/accuracy", "maximize", "maximize"),
     ("val/accuracy", "minimize", None), ("val/loss", "maximize", None)],
)  # fmt: skip
def test_a_search_goes_in_the_direction_of_the_metric(
    metric: str, given: str | None, direction: str | None, chosen: Choose
) -> None:
    config = chosen("experiment=dates/classification")
    settings = SimpleNamespace(metric=metric, direction=given)
    if direction is None:
        with pytest.raises(ConfigError, match=f"hydra.sweeper.direction={given}: the .* {metric} is best"):
            direction_of(settings, config)
    else:
        assert direction_of(settings, config) == direction


def test_the_best_checkpoint_has_the_best_value_of_its_own_metric(chosen: Choose, tmp_path: Path) -> None:
    def finish(name: str, *overrides: str) -> tuple[int, list[tuple[float, int]]]:
        steps = ["trainer.max_steps=12", "trainer.val_check_interval=3", "logger=csv", "optimizer.lr=0.1",
                 "scheduler=constant", "scheduler.warmup_steps=1"]  # fmt: skip
        train(chosen(*tiny.dates("classification_encoder_only"), *tiny.TINY, *steps, f"run_dir={tmp_path / name}",
                     "callbacks.checkpoints.monitor=val/accuracy", *overrides))  # fmt: skip
        rows = csv.DictReader((tmp_path / name / "metrics.csv").open())
        values = [(float(row["val/accuracy"]), int(row["step"]) + 1) for row in rows if row["val/accuracy"]]
        return read_checkpoint(tmp_path / name / "checkpoints" / "best.ckpt")["global_step"], values

    best, values = finish("run")
    assert best == next(step for value, step in values if value == max(values)[0])
    assert best != next(step for value, step in values if value == min(values)[0])
    again = [f"resume={tmp_path / 'run'}", "trainer.max_steps=15", "callbacks.checkpoints.monitor=val/loss"]
    assert finish("again", *again)[0] == 15  # the only validation: the best accuracy is no loss
