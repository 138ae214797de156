"""Studies without trainings: a trial's run is a summary.json with a value that is a function of its parameters."""

import json
import math
import multiprocessing
import re
import resource
from collections.abc import Callable
from itertools import chain
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, distribution_to_json
from optuna.trial import FrozenTrial, TrialState

from browser import Browser, needs_browser
from triptych.config import ConfigError, RunError
from triptych.launch.sweep import PRUNING, Job
from triptych.search.optuna_study import Identity, OptunaStudy, SearchSettings, Trial, outcome
from triptych.search.page import report
from triptych.search.trials import locks_of, open_storage, storage_errors

SPACE = {
    "block/norm": CategoricalDistribution(["layer_norm", "rms_norm"]),
    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "shape.num_layers": IntDistribution(1, 6),
}
SETTINGS = SearchSettings(
    params=None, n_trials=12, metric="val/loss", direction="minimize", sampler="tpe", seed=1, seeds=None,
    pruner="none", startup_trials=5, warmup_steps=0, n_jobs=1, storage=None,
)  # fmt: skip
IDENTITY = Identity(
    searched={name: distribution_to_json(distribution) for name, distribution in SPACE.items()},
    metric="val/loss",
    direction="minimize",
    seeds=None,
    configuration="0",
    overrides=["a=1"],
)


def with_settings(**changes: object) -> SearchSettings:
    return SearchSettings(**{**vars(SETTINGS), **changes})


def study_in(folder: Path, own: SearchSettings = SETTINGS, name: str = "study", suffix: str = "journal") -> OptunaStudy:
    return OptunaStudy(name, open_storage(folder / f"optuna.{suffix}"), locks_of(folder / "x"), SPACE, IDENTITY, own)


def loss(params: dict[str, object]) -> float:
    layers = params["shape.num_layers"]
    assert isinstance(layers, int)
    norm = 0.1 if params["block/norm"] == "rms_norm" else 0.0
    return (math.log10(float(str(params["optimizer.lr"]))) + 2.5) ** 2 + (layers - 3) ** 2 / 9 + norm


def job_in(directory: Path) -> Job:
    return Job([f"{PRUNING}{{}}"], directory, OmegaConf.create())


def job_of(folder: Path, trial: Trial) -> Job:
    """A run that is done: pruned where the loss is bad, failed where it is worse."""
    job = job_in(folder / f"run-{trial.number}")
    job.directory.mkdir(exist_ok=True)
    value = loss(dict(trial.params))
    if value < 2:
        (job.directory / "summary.json").write_text(json.dumps({"metrics": {"val/loss": value}}))
    elif value < 2.5:
        (job.directory / "pruned.json").write_text("{}")
    return job


def search(folder: Path, own: SearchSettings, until: int = 10**9, name: str = "study") -> bool:
    """Works on a study as the sweeper does, until it is done, or is killed before it tells so many trials."""
    study, reported = study_in(folder, own, name), 0
    while True:
        mine, waiting = study.take()
        if not mine:
            assert not waiting
            return True
        for trial in mine:
            if reported == until:
                for held in mine:
                    held.lock.release()  # as the system does
                return False
            study.tell(trial, [job_of(folder, trial)])
            reported += 1


def record(folder: Path) -> list[tuple[object, ...]]:
    return [(t.number, t.params, t.value, t.state) for t in study_in(folder).trials]


@pytest.fixture
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("search")


UNDISTURBED: dict[tuple[str, int], list[tuple[object, ...]]] = {}


@pytest.mark.parametrize(("sampler", "n_jobs"), [("tpe", 1), ("tpe", 4), ("gp", 1), ("qmc", 3), ("random", 1)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=3)
@given(kills=st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_a_search_that_is_killed_resumes_as_if_it_had_not_been(
    sampler: str, n_jobs: int, kills: list[int], folders: Callable[[], Path]
) -> None:
    own = with_settings(sampler=sampler, n_jobs=n_jobs)
    if (sampler, n_jobs) not in UNDISTURBED:
        folder = folders()
        assert search(folder, own)
        UNDISTURBED[sampler, n_jobs] = record(folder)
    folder = folders()
    for kill in kills:
        search(folder, own, kill)
    assert search(folder, own)
    assert record(folder) == UNDISTURBED[sampler, n_jobs]
    assert len(record(folder)) == own.n_trials


def test_trials_are_what_optuna_draws_from_the_same_past(folders: Callable[[], Path]) -> None:
    """The sampler learns: with the past, other parameters than without, and better ones."""
    own, folder = with_settings(n_trials=40), folders()
    search(folder, own)
    trials = study_in(folder).trials
    early, late = ([loss(trial.params) for trial in part] for part in (trials[:10], trials[-10:]))
    assert sum(late) < 0.5 * sum(early)
    assert len({str(trial.params) for trial in trials}) > 35


def test_studies_begin_with_the_same_draws(folders: Callable[[], Path]) -> None:
    folder = folders()
    own = with_settings(n_trials=3)
    draws = []
    for name in ("full", "decoder_only"):
        study = study_in(folder, own, name)
        for _ in range(3):
            mine, _ = study.take()
            study.tell(mine[0], [job_of(folder, mine[0])])
        draws.append([trial.params for trial in study.trials])
    assert draws[0] == draws[1]
    assert draws[0][0] != draws[0][1]


def test_more_trials_are_those_that_a_longer_search_has(folders: Callable[[], Path]) -> None:
    short, long = folders(), folders()
    for n_trials in (2, 9):
        search(short, with_settings(n_trials=n_trials))
    search(long, with_settings(n_trials=9))
    assert record(short) == record(long)


def test_a_trial_belongs_to_one_worker_while_that_one_lives(folders: Callable[[], Path]) -> None:
    folder = folders()
    own = with_settings(n_trials=2)
    one, other, third = (study_in(folder, own) for _ in range(3))
    (first,), _ = one.take()
    (second,), _ = other.take()
    assert (first.number, second.number) == (0, 1)
    assert third.take() == ([], 0)  # all are in good hands
    first.lock.release()  # the first worker dies
    (adopted,), waiting = third.take()
    assert (adopted.number, adopted.params, waiting) == (0, first.params, 0)
    third.tell(adopted, [job_of(folder, adopted)])
    other.tell(second, [job_of(folder, second)])
    assert all(trial.state.is_finished() for trial in third.trials)
    assert third.take() == ([], 0)


def test_equal_parameters_are_not_run_at_the_same_time(
    folders: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folders()
    own = with_settings(n_trials=6, n_jobs=6, sampler="random")
    space = {"block/norm": CategoricalDistribution(["layer_norm", "rms_norm"])}
    study = OptunaStudy("study", open_storage(folder / "optuna.journal"), locks_of(folder / "x"), space, IDENTITY, own)
    rounds = []
    while True:
        mine, waiting = study.take()
        if not mine:
            break
        rounds.append([trial.number for trial in mine])
        norms = [trial.params["block/norm"] for trial in mine]
        assert len(norms) == len(set(norms))
        for trial in mine:
            path = folder / f"{trial.params['block/norm']}"
            path.mkdir(exist_ok=True)
            (path / "summary.json").write_text('{"metrics": {"val/loss": 1}}')
            study.tell(trial, [job_in(path)])
    assert waiting == 0
    first = {}
    for number, params in ((trial.number, trial.params["block/norm"]) for trial in study.trials):
        first.setdefault(params, number)
    same = {trial.number: first[trial.params["block/norm"]] for trial in study.trials}
    said = re.findall(r"trial (\d+) of study: complete(?:, as trial (\d+))?, val", capsys.readouterr().out)
    assert {int(number): int(earlier or number) for number, earlier in said} == same
    assert len(rounds) > 1
    assert sorted(chain(*rounds)) == list(range(6))


def work(folder: Path, suffix: str, reported: "SimpleQueue[int]") -> None:
    study = study_in(folder, with_settings(n_trials=8, sampler="random"), suffix=suffix)
    while any(found := study.take()):
        for trial in found[0]:
            study.tell(trial, [job_of(folder, trial)])
            reported.put(trial.number)


@pytest.mark.parametrize("suffix", ["journal", "db"])
def test_workers_share_the_total(suffix: str, folders: Callable[[], Path]) -> None:
    folder = folders()
    processes = multiprocessing.get_context("fork")
    reported: SimpleQueue[int] = processes.SimpleQueue()
    workers = [processes.Process(target=work, args=(folder, suffix, reported)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert sorted(reported.get() for _ in range(8)) == list(range(8))
    assert reported.empty()
    trials = optuna.load_study(study_name="study", storage=open_storage(folder / f"optuna.{suffix}")).trials
    assert [trial.number for trial in trials] == list(range(8))
    assert all(trial.state.is_finished() for trial in trials)


def finished(study: OptunaStudy) -> FrozenTrial:
    (trial,), _ = study.take()
    study.tell(trial, [job_of(study._locks, trial)])
    return study.trials[-1]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"metric": "val/accuracy"}, "hydra.sweeper.metric=val/loss, and this one val/accuracy"),
        ({"seeds": [1, 2]}, "hydra.sweeper.seeds=None, and this one"),
        ({"configuration": "1", "overrides": ["a=2"]}, "it has a=1, and this one a=2"),
        ({"searched": {}}, r"it searches block/norm in choice\(layer_norm,rms_norm\), and this one in nothing"),
        (
            {"searched": {**IDENTITY.searched, "optimizer.lr": distribution_to_json(FloatDistribution(1, 2))}},
            r"optimizer.lr in tag\(log,interval\(0.0001,0.1\)\), and this one in interval\(1.0,2.0\)",
        ),
    ],
    ids=["metric", "seeds", "configuration", "parameter", "bounds"],
)  # fmt: skip
def test_another_search_is_rejected_once_there_is_something_to_lose(
    change: dict[str, object], answer: str, folders: Callable[[], Path]
) -> None:
    folder = folders()
    storage = open_storage(folder / "optuna.journal")
    other = Identity(**{**vars(IDENTITY), **change})
    OptunaStudy("study", storage, locks_of(folder / "x"), SPACE, other, SETTINGS)
    study = OptunaStudy("study", storage, locks_of(folder / "x"), SPACE, IDENTITY, SETTINGS)  # nothing was measured yet
    while finished(study).state == TrialState.FAIL:
        continue
    OptunaStudy("study", storage, locks_of(folder / "x"), SPACE, IDENTITY, with_settings(sampler="random", n_trials=3))
    with pytest.raises(ConfigError, match=answer):
        OptunaStudy("study", storage, locks_of(folder / "x"), SPACE, other, SETTINGS)


def test_another_search_that_is_at_work_is_rejected(folders: Callable[[], Path]) -> None:
    folder = folders()
    storage, locks = open_storage(folder / "optuna.journal"), locks_of(folder / "x")
    other = Identity(**{**vars(IDENTITY), "metric": "val/accuracy"})
    worker = OptunaStudy("study", storage, locks, SPACE, IDENTITY, SETTINGS)
    (trial,), _ = worker.take()
    with pytest.raises(
        ConfigError, match=r"contains another search, study, which is running now: .*val/accuracy; choose"
    ):
        OptunaStudy("study", storage, locks, SPACE, other, SETTINGS)
    worker.tell(trial, [job_of(folder, trial)])  # it was not disturbed
    assert worker.trials[0].state.is_finished()


def test_another_search_whose_worker_died_is_replaced(folders: Callable[[], Path]) -> None:
    folder = folders()
    storage, locks = open_storage(folder / "optuna.journal"), locks_of(folder / "x")
    (trial,), _ = OptunaStudy("study", storage, locks, SPACE, IDENTITY, SETTINGS).take()
    trial.lock.release()  # as the system does
    other = Identity(**{**vars(IDENTITY), "configuration": "1"})
    assert OptunaStudy("study", storage, locks, SPACE, other, SETTINGS).trials == []


def run_with(folder: Path, name: str, **metrics: float) -> Job:
    (folder / name).mkdir()
    measured = {key.replace("_", "/"): value for key, value in metrics.items()}
    (folder / name / "summary.json").write_text(json.dumps({"metrics": measured}))
    return job_in(folder / name)


def test_the_value_is_the_mean_over_the_seeds(folders: Callable[[], Path]) -> None:
    folder = folders()
    jobs = [run_with(folder, str(i), val_loss=value, test_loss=0.0) for i, value in enumerate([1.0, 2.0, 6.0])]
    assert outcome(jobs, "val/loss") == (TrialState.COMPLETE, 3.0)
    failed = job_in(folder / "none")
    assert outcome([*jobs, failed], "val/loss") == (TrialState.FAIL, None)
    assert outcome([*jobs, run_with(folder, "nan", val_loss=math.nan)], "val/loss") == (TrialState.FAIL, None)
    (folder / "2" / "pruned.json").touch()
    assert outcome(jobs, "val/loss") == (TrialState.PRUNED, None)
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.metric=val/los: .*did you mean val/loss"):
        outcome(jobs[:1], "val/los")


@pytest.mark.parametrize("suffix", ["journal", "db"])
def test_a_file_that_is_no_storage_is_rejected(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_text("{no storage\n" * 100)
    with pytest.raises(ConfigError, match=f"hydra.sweeper.storage={path}: "):
        open_storage(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), zeros=st.sampled_from([0, 300]))
def test_a_search_resumes_as_undisturbed_after_its_last_record_was_torn(
    share: float, zeros: int, folders: Callable[[], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """By a process that was killed, or by a power failure, after which a file may end in zeros."""
    own = with_settings(n_trials=3, sampler="random")
    folder = folders()
    search(folder, own)
    undisturbed, journal = record(folder), folder / "optuna.journal"
    content = journal.read_bytes()
    torn = content[: int(share * len(content))]
    journal.write_bytes((torn if torn[-1:] != b"\n" else torn[:-1]) + bytes(zeros))
    caplog.clear()
    assert search(folder, own)
    assert record(folder) == undisturbed
    warnings = [message for message in caplog.messages if message.startswith(f"{journal}: the last record")]
    assert len(warnings) == bool(torn or zeros)
    lines = journal.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") and json.loads(line) for line in lines)


@pytest.mark.parametrize("suffix", ["journal", "db"])
def test_a_search_on_a_full_disk_ends_in_a_line_and_can_be_resumed(suffix: str, folders: Callable[[], Path]) -> None:
    folder, own = folders(), with_settings(n_trials=6, sampler="random")
    whole = folders()
    search(whole, own)
    file = folder / f"optuna.{suffix}"
    study = study_in(folder, own, suffix=suffix)
    (trial,), _ = study.take()
    job = job_of(folder, trial)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = file.stat().st_size + 10 if suffix == "journal" else 100  # of SQLite's rollback journal
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    answer = f"^hydra.sweeper.storage={file} cannot be written .*; the same command resumes the search$"
    try:
        with pytest.raises(RunError, match=answer), storage_errors(file):
            study.tell(trial, [job])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        trial.lock.release()
    study = study_in(folder, own, suffix=suffix)
    while any(found := study.take()):
        for trial in found[0]:
            study.tell(trial, [job_of(folder, trial)])
    assert [(t.params, t.value) for t in study.trials] == [(params, value) for _, params, value, _ in record(whole)]


def test_a_text_that_is_no_journal_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    path.write_text("my notes")
    with pytest.raises(ConfigError, match=f"hydra.sweeper.storage={path}: expected an Optuna journal"):
        open_storage(path)
    assert path.read_text() == "my notes"


def page_in(tmp_path: Path) -> Path:
    """The page of two studies, one of them without any value."""
    search(tmp_path, with_settings(n_trials=12))
    name = "study <two>-with-a-name-that-is-wider-than-the-screen-of-a-phone"
    studies = [study_in(tmp_path), study_in(tmp_path, name=name)]
    report(
        studies,
        tmp_path / "search.html",
        {"study": "triptych train -m optimizer.lr=1"},
        ["triptych train -m optimizer.lr=1 seed=2,3,4"],
    )
    return tmp_path / "search.html"


def test_the_table_and_the_page_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_in(tmp_path)
    trials = record(page.parent)
    best, number = min((value, number) for number, _, value, state in trials if state == TrialState.COMPLETE)
    said = capsys.readouterr().out
    text = page.read_text()
    assert f"{best:.6g}" in said
    assert f"{best:.6g}" in text
    commands = f"triptych train -m optimizer.lr=1\ntriptych compare {page.parent}/run-{number} --output "
    assert f"{commands}{page.parent}/report.html\n" in said
    assert f"{commands}{page.parent}/report.html<" in text
    rows = re.findall(r"<tr><td>(\d+)</td><td>(\w+)</td>.*?</tr>", text)
    assert rows[0] == (str(number), "best")
    assert sorted(int(row[0]) for row in rows) == list(range(len(trials)))
    links = re.findall(r'<a href="([^"]+)/">', text)
    assert sorted(links) == sorted(path.name for path in page.parent.glob("run-*"))
    assert "study &lt;two&gt;" in text
    assert "study <two>" not in text
    assert len(text) < 8e6
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_draws_it(tmp_path: Path, browser: Browser, width: int) -> None:
    browser.open(page_in(tmp_path).as_uri(), width=width)
    drawn = browser.dom
    importance, each = "Importance for loss on the validation set", "Each trial's loss on the validation set"
    for text in ("Parallel coordinates", importance, each, "optimizer.lr", "pruned"):
        assert text in drawn
    assert browser.complaints == browser.cut_texts() == []
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert len(re.findall(r'<div class="chart[^"]*"[^>]*><div class="plot-container', drawn)) == 4


def note_architecture(run: Path, architecture: str) -> None:
    """In the record of a trial, if it has one."""
    for file in (run / "summary.json", run / "pruned.json"):
        if file.exists():
            file.write_text(json.dumps({**json.loads(file.read_text()), "architecture": architecture}))


def figures_in(page: Path) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text())
    return [figure for switch in found for figure in json.loads(switch).values()]


def test_a_study_has_the_colour_of_its_architecture(tmp_path: Path) -> None:
    """The one that it has on the other pages."""
    names = ("decoder_only", "full", "encoder_only")
    studies = []
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        search(folder, with_settings(n_trials=3), name=name)
        for run in folder.glob("run-*"):
            note_architecture(run, name)
        studies.append(study_in(folder, name=name))
    report(studies, tmp_path / "search.html", {}, [])
    figure, *_ = figures_in(tmp_path / "search.html")
    colours = [(trace["name"], trace["marker"]["color"]) for trace in figure["data"] if trace["mode"] == "markers"]
    assert colours == [(name, f"var(--{name})") for name in names]
    assert figure["layout"]["showlegend"]


@pytest.mark.parametrize("models", [["full"], ["full", "decoder_only", "prefix_lm"]], ids=["one", "three"])
def test_each_trial_of_a_search_over_models_has_the_colour_of_its_model(models: list[str], tmp_path: Path) -> None:
    study = study_in(tmp_path, with_settings(n_trials=12))
    while mine := study.take()[0]:
        (trial,) = mine
        job = job_of(tmp_path, trial)
        note_architecture(job.directory, models[trial.number % len(models)])
        for step in (20, 10):
            study.optuna._storage.set_trial_intermediate_value(study.trials[-1]._trial_id, step, float(trial.number))
        study.tell(trial, [job])
    report([study], tmp_path / "search.html", {}, [])
    history, *others = figures_in(tmp_path / "search.html")
    points, complete, recorded = [], [], []
    for trace in history["data"]:
        if trace["mode"] == "markers":
            points += [(x, y, trace["marker"]["color"]) for x, y in zip(trace["x"], trace["y"], strict=True)]
    for trial in study.trials:
        colour = f"var(--{models[trial.number % len(models)]})"
        if trial.state == TrialState.COMPLETE:
            complete.append((trial.number, trial.value, colour))
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            recorded.append((f"trial {trial.number}", [10, 20], [float(trial.number)] * 2, colour))
    assert sorted(points) == complete
    assert history["layout"]["showlegend"] == (len(models) > 1)
    (curves,) = (figure for figure in others if "until it ended" in figure["title"])
    drawn = [(t["name"], t["x"], t["y"], t["line"]["color"]) for t in curves["data"] if t["x"]]
    assert [curve for curve in drawn if curve in recorded] == recorded
    assert len(drawn) == 12
    assert curves["layout"]["showlegend"]
    legend = {t["legendgroup"]: t["name"] for t in curves["data"] if t.get("showlegend", True)}
    assert all(group == name for group, name in legend.items())
    assert {t["legendgroup"] for t in curves["data"]} == set(legend)
    assert study.best is not None
    assert any(name.startswith(f"best, trial {study.best.number}") for name in legend)
