"""Studies: what their files may say, which trainings they are, and one from its file to its page."""

import json
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml

import tiny
from cases import by_day
from commands import run
from triptych.cli import folders, main
from triptych.config import ConfigError
from triptych.config.overrides import check_chosen
from triptych.launch.sweep import split_sweep
from triptych.studies.plan import check_variants, plan_study
from triptych.studies.study import find_studies, read_study, values_of

ARMS = {"first": "model=full", "second": "model=decoder_only optimizer.lr=1e-3,2e-3", "third": "init_from={first}"}
CLAIM = {"statement": "So it is", "rationale": "of that", "better": ["first", "second"]}
STUDY = {
    "question": "Which?", "runtime_note": "1 min", "common": "task=translation seed=1,2", "variants": ARMS,
    "claims": [CLAIM],
}  # fmt: skip


def write(folder: Path, **changes: object) -> Path:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({**STUDY, **changes}))
    return file


def test_each_arm_is_a_sweep(tmp_path: Path) -> None:
    jobs = plan_study(read_study(str(write(tmp_path))), ["logger=csv"]).jobs
    assert [[str(job.directory) for job in of_arm] for of_arm in jobs.values()] == [
        [f"outputs/studies/mine/first/seed-{seed}--logger-csv" for seed in (1, 2)],
        [
            f"outputs/studies/mine/second/seed-{seed}--optimizer.lr-{lr}--logger-csv"
            for seed in (1, 2)
            for lr in ("0.001", "0.002")
        ],
        [f"outputs/studies/mine/third/seed-{seed}--logger-csv" for seed in (1, 2)],
    ]
    assert jobs["second"][1].overrides == [
        "task=translation", "seed=1", "model=decoder_only", "optimizer.lr=0.002", "logger=csv",
    ]  # fmt: skip


def test_an_arm_begins_from_the_run_of_its_seed(tmp_path: Path) -> None:
    study = read_study(str(write(tmp_path)))
    assert study.needs("third") == {"first"}
    found = plan_study(study, []).jobs
    for begun, before in zip(found["third"], found["first"], strict=True):
        assert f"init_from={before.directory}" in begun.overrides
    more = plan_study(study, ["seed=range(1,4)"]).jobs[
        "third"
    ]  # what comes last counts, and the directories are the same
    assert [str(job.directory) for job in more] == [f"outputs/studies/mine/third/seed-{seed}" for seed in (1, 2, 3)]


def test_the_page_is_named_after_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for seeds: the page has all that there are."""
    pages = []
    monkeypatch.setattr(folders, "check_writable", lambda key, path: pages.append(str(path)))
    for typed in (["seed=1"], ["trainer.max_steps=1", "seed=1"]):
        folders.run_study([str(write(tmp_path)), "--print-overrides", *typed])
    assert pages == ["outputs/studies/mine/report.html", "outputs/studies/mine/report--trainer.max_steps-1.html"]


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"arm": {}}, "mine.yaml: arm: there is no such key"),
        ({"claims": [CLAIM | {"scores": "loss"}]}, "mine.yaml: scores: there is no such key; did you mean score?"),
        ({"claims": [CLAIM | {"better": ["first", "secnd"]}]}, "secnd is not a variant; did you mean second?"),
        (
            {"claims": [CLAIM | {"equivalent": ["first", "second"]}]},
            "expected two variants, as better: [A, B] or equivalent: [A, B]",
        ),
        ({"claims": [CLAIM | {"better": ["first"]}]}, "expected two variants"),
        ({"claims": [CLAIM | {"better": ["first", "first"]}]}, "expected two variants"),
        (
            {"claims": [CLAIM | {"margin": 0.1}]},
            "margin=0.1: expected more than 0 with equivalent, and no margin without it",
        ),
        (
            {"claims": [CLAIM | {"better": [], "equivalent": ["first", "second"], "margin": -1}]},
            "margin=-1.0: expected more",
        ),
        ({"claims": [CLAIM | {"min_difference": 0}]}, "min_difference=0.0: expected more than 0, and better with it"),
        ({"claims": [CLAIM | {"cost_unit": "elapsed_s"}]}, "cost_unit=elapsed_s: expected target_score: SCORE with it"),
        ({"claims": []}, "expected at least one variant and one claim"),
        ({"common": "seed=1,2 init_from={first}"}, "common: {first} is not another variant"),
        ({"variants": {"a/b": "model=full"}}, "variants.a/b: expected a name of letters, digits and _, and no run_dir"),
        (
            {"claims": [CLAIM | {"cost_unit": "hours"}]},
            "cost_unit=hours: expected one of steps, train_flops, elapsed_s",
        ),
        (
            {"claims": [CLAIM | {"extrapolate": "length", "target_score": 0.5}]},
            "extrapolate and target_score: expected one of them",
        ),
        (
            {"claims": [CLAIM | {"difficulty": {"gap": 4}, "target_score": 0.5}]},
            "difficulty and target_score: expected one of them",
        ),
        (
            {"variants": {**ARMS, "third": "init_from={frist}"}},
            "third: {frist} is not another variant; did you mean first?",
        ),
        ({"claims": [{"statement": "x", "better": ["first", "second"]}]}, "rationale"),
        ({"claims": "none"}, "mine.yaml"),
        (
            {"variants": {"first": "init_from={second}", "second": "init_from={first}"}},
            "variants start from each other: ",
        ),
        ({"answer": [{"text": "So it is.", "claims": [2]}]}, "answer: claims: 2: expected a number from 1 to 1"),
    ],
)
def test_what_a_study_may_not_say(changes: dict[str, object], answer: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_study(str(write(tmp_path, **changes)))
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"study recal: no such study; expected a name or a YAML file; did you mean recall\?"
    ):
        read_study("recal")
    with pytest.raises(ConfigError, match=r"recall\.yaml: Triptych has a study recall, "):
        read_study(str(write(tmp_path).rename(tmp_path / "recall.yaml")))
    with pytest.raises(ConfigError, match=r"no\.yaml: .*No such file"):
        read_study(str(tmp_path / "no.yaml"))
    with pytest.raises(ConfigError, match="variant first: no seed; expected one in common, such as seed=1,2,3"):
        plan_study(read_study(str(write(tmp_path, common="task=translation"))), [])
    with pytest.raises(ConfigError, match=r"variant first: .*interval"):
        plan_study(read_study(str(write(tmp_path, common="seed=interval(1,2)"))), [])


@pytest.mark.parametrize("name", find_studies())
def test_what_comes_with_triptych(name: str) -> None:
    """Its file is read, and each arm has three seeds at least."""
    study = read_study(name)
    assert len({values_of(job)["seed"] for job in split_sweep(shlex.split(study.common))}) >= 3
    for job in plan_study(study, []).startable:
        check_chosen(job.overrides)
    assert {arm for claim in study.claims for arm in claim.variants} <= {*study.variants}
    assert study.claims


@pytest.mark.parametrize("name", by_day(find_studies(), ["demo", "adapt"]))
def test_the_settings_of_a_study_exist(name: str) -> None:
    check_variants(read_study(name), [])


@pytest.mark.parametrize("place", ["common", "tune"])
def test_a_wrong_setting_is_found_before_training(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"common": "experiment=synthetic/copy seed=1", "tune": "seed=9"}
    texts[place] += " shape.d_fff=1,2"
    file, said = str(write(tmp_path, **texts)), r"variant first: shape.d_fff: .* did you mean shape.d_ff"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        check_variants(read_study(file), [])
    with pytest.raises(ConfigError, match=said):
        folders.run_study([file, "--print-overrides"])


SMALL = [
    *tiny.NETWORK, "logger=csv", "trainer.max_steps=4", "trainer.val_check_interval=2", "batch.global_size=20",
    "data.num_train=100", "data.num_validation=20", "data.num_test=60", "callbacks.progress.refresh_rate=0",
]  # fmt: skip


def test_from_a_file_to_a_page(tmp_path: Path) -> None:
    """Two architectures, one of them from the weights of the other; the same command trains nothing again."""
    arms = {"decoder": "model=decoder_only", "full": "model=full init_from={decoder} trainer.max_steps=6"}
    claims = [
        {
            "statement": "Full is better",
            "rationale": "it is larger",
            "better": ["full", "decoder"],
            "extrapolate": "length",
        },
        {"statement": "Both copy half", "rationale": "it is easy", "better": ["full", "decoder"], "target_score": 0.5},
        {"statement": "They are alike", "rationale": "both are new", "equivalent": ["full", "decoder"], "margin": 0.5},
    ]
    claims[1]["blind"] = True
    common = " ".join(["experiment=synthetic/copy", "seed=1,2", *SMALL])
    write(tmp_path, variants=arms, claims=claims, common=common)
    finished = run("study", "mine.yaml", "--jobs", "2", cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.splitlines()[:4] == [
        "Which?",
        "4 runs to train, 2 at a time (measured: 1 min)",
        "the page will be outputs/studies/mine/report.html; Ctrl-C stops, and `triptych study mine.yaml --jobs 2` "
        "resumes",
        "job 1 of 2: decoder seed=1",
    ]
    folder = tmp_path / "outputs" / "studies" / "mine"
    for seed in (1, 2):
        record = json.loads((folder / "full" / f"seed-{seed}" / "summary.json").read_text())
        assert record["init_from"] == f"outputs/studies/mine/decoder/seed-{seed}"
    record = json.loads((folder / "report.findings.json").read_text())
    findings = record["findings"]
    assert [(run["variant"], run["seed"]) for run in record["runs"]] == [
        (variant, seed) for variant in ("full", "decoder") for seed in (1, 2)
    ]
    last = json.loads((folder / "full" / "seed-1" / "summary.json").read_text())
    assert {key: last[key] for key in record["runs"][0] if key in last} == {
        key: value for key, value in record["runs"][0].items() if key not in ("variant", "settings", "curves")
    }
    assert record["runs"][0]["settings"]["init_from"].endswith("decoder/seed-1")
    assert record["runs"][0]["curves"]["val/exact_match"][0] == [1, 3, 5, 6]
    assert [finding["outcome"] for finding in findings] == ["inconclusive"] * 3
    assert findings[1]["shown"] == dict.fromkeys(("full", "decoder"), "not reached within 4 (0 of 2 runs reached it)")
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for claim in claims:
        assert claim["statement"] in page
        known = " (predicted blind)" if "blind" in claim else ""
        assert f"| {claim['statement']} | {claim['rationale']}{known} |" in text
    again = run("study", "mine.yaml", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("done already") == 4
    assert "runs to train" not in again.stdout

    lines = run("study", "mine.yaml", "--print-overrides", "trainer.max_steps=1", cwd=tmp_path).stdout.splitlines()
    assert len(lines) == 2  # what begins from them comes when they are done
    assert lines[0].startswith("experiment=synthetic/copy seed=1")
    assert lines[0].endswith("run_dir=outputs/studies/mine/decoder/seed-1--trainer.max_steps-1")
    assert "positions" in run("study", cwd=tmp_path).stdout
    wrong = run("study", "positons", cwd=tmp_path)
    assert wrong.returncode == 1
    assert (
        wrong.stderr
        == "error: study positons: no such study; expected a name or a YAML file; did you mean positions?\n"
    )


def test_a_tuned_study_from_its_file_to_its_page(tmp_path: Path) -> None:
    """Trials first; a killed one resumes; the page says what was tried and what was chosen."""
    variants = {"decoder": "model=decoder_only", "full": "model=full"}
    claims = [{"statement": "So it is", "rationale": "of that", "better": ["full", "decoder"]}]
    common = " ".join(["experiment=synthetic/copy", "seed=1", *SMALL])
    tune = "optimizer.lr=1e-3,1e-2 optimizer.weight_decay=0 seed=101"
    write(tmp_path, variants=variants, claims=claims, common=common, tune=tune)
    lines = run("study", "mine.yaml", "--print-overrides", cwd=tmp_path).stdout.splitlines()
    assert [line.rpartition("=")[2].rpartition("/")[2] for line in lines] == [
        f"seed-101--optimizer.lr-{rate}--optimizer.weight_decay-0" for _ in variants for rate in ("0.001", "0.01")
    ]
    finished = run("study", "mine.yaml", cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "4 trials to train, 2 at a time (measured: 1 min)" in finished.stdout
    text = (tmp_path / "outputs" / "studies" / "mine" / "report.md").read_text()
    for variant in variants:
        (line,) = [line for line in text.splitlines() if line.startswith(f"- {variant}: optimizer.lr=")]
        assert " is the best of 4 trials of " in line  # two values are both at an edge, so there are two more
        assert line in f"- {finished.stdout}".replace("\n", "\n- ")
    record = json.loads((tmp_path / "outputs" / "studies" / "mine" / "report.findings.json").read_text())
    assert [trial["optimizer.lr"] for trial in record["tunings"]["full"]["trials"]] == ["0.001", "0.01", "0.1", "1"]
    page = (tmp_path / "outputs" / "studies" / "mine" / "report.html").read_text()
    assert page.count("Tuned: optimizer.lr") == 1
    assert len(run("study", "mine.yaml", "--print-overrides", cwd=tmp_path).stdout.split()) == 0


def test_the_demo_explains_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["triptych", "demo", "--help"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().out
    assert said.startswith("usage: triptych demo [-h]")
    assert "name" not in said


REWORDED = {"adapt", "mask_or_stack"}
"""Studies whose predictions were reworded after their runs."""
ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "docs" / "studies").glob("*.json"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_predictions_are_older_than_the_first_run(record: Path) -> None:
    """By the history of the repository; a copy without history shows nothing."""
    if record.stem in REWORDED or record.stem not in find_studies() or not (ROOT / ".git").exists():
        return
    began = min(datetime.fromisoformat(run["began"]) for run in json.loads(record.read_text(encoding="utf-8"))["runs"])
    for one in read_study(record.stem).claims:
        search = ["git", "log", "--reverse", "--format=%aI", f"-S{one.statement}", "--", "conf/study"]
        found = subprocess.run(search, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        assert found, f"{one.statement}: not in the history on one line"
        assert datetime.fromisoformat(found[0]) < began, one.statement
