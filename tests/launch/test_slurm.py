"""The batch script of a sweep, run by bash; what a real scheduler makes of it is tested among the faults."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from triptych.config import ConfigError
from triptych.config.hydra_guard import check_shell
from triptych.launch.slurm import SlurmJobRunner
from triptych.launch.sweep import Job

DEFAULTS: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).parents[2] / "conf/hydra/launcher/slurm.yaml"))
SETTINGS = {name: value for name, value in DEFAULTS.items() if not name.startswith("_")}


def launcher(**settings: Any) -> SlurmJobRunner:
    return SlurmJobRunner(**{**SETTINGS, **settings})


def run(script: str, index: int, **environment: str) -> list[str]:
    """What srun gets, in a task of the array."""
    functions = "srun() { printf '%s\\0' \"$@\"; }\nscontrol() { echo n7; echo n8; }\n"
    own = {**os.environ, **environment, "SLURM_ARRAY_TASK_ID": str(index), "SLURM_JOB_NODELIST": "n[7-8]"}
    finished = subprocess.run(["bash", "-c", functions + script], env=own, capture_output=True, check=True)
    return finished.stdout.decode().split("\0")[:-1]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.lists(st.lists(TEXT, min_size=1, max_size=4), min_size=1, max_size=3))
def test_each_task_gets_its_overrides_as_they_are(overrides: list[list[str]]) -> None:
    jobs = [Job(own, Path(f"runs/{i}"), OmegaConf.create()) for i, own in enumerate(overrides)]
    script = launcher().script(jobs, "name", Path("logs"), ["python", "-m", "triptych", "train"])
    for index, own in enumerate(overrides):
        *_, train, python = ["", *run(script, index)[:6]]
        assert (train, python) == ("triptych", "train")
        assert run(script, index)[6:] == [*own, f"run_dir=runs/{index}"]


def test_the_options() -> None:
    jobs = [Job([f"seed={i}"], Path(f"runs/{i}"), OmegaConf.create()) for i in range(3)]
    settings = {"nodes": 2, "mem_gb": 8, "additional_parameters": {"constraint": "a100|h100", "exclusive": None}}
    script = launcher(**settings, setup=["export GREETING='good day'"]).script(jobs, "name", Path("logs"), ["env"])
    lines = script.splitlines()
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH ")}
    assert options == {
        *("job-name=name", "array=0-2%256", "output=logs/%x_%a.log", "open-mode=append", "requeue"),
        *("nodes=2", "ntasks-per-node=1", "cpus-per-task=1", "mem=8G", "signal=USR1@120"),
        *("constraint=a100|h100", "exclusive"),
    }
    shown = script + 'printf "%s\\0" "$MASTER_ADDR" "$GREETING"'
    assert run(shown.replace("export MASTER_ADDR", "unset MASTER_ADDR; export MASTER_ADDR"), 0)[-2:] == [
        "n7",
        "good day",
    ]
    assert run(shown, 0, MASTER_ADDR="10.0.0.1")[-2] == "10.0.0.1"


@pytest.mark.parametrize(("given", "threads"), [({}, "3"), ({"OMP_NUM_THREADS": "2"}, "2")], ids=["none", "two"])
def test_a_process_has_a_thread_for_each_of_its_cpus(given: dict[str, str], threads: str) -> None:
    """Torch would take all CPUs of the machine, where the cluster does not bind it to its own."""
    script = launcher(cpus_per_task=3).script(
        [Job([], Path("run"), OmegaConf.create())], "name", Path("logs"), ["true"]
    )
    own = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | {"SLURM_ARRAY_TASK_ID": "0", **given}
    script = "srun() { echo $OMP_NUM_THREADS; }\n" + script
    finished = subprocess.run(["bash", "-c", script], env=own, capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == threads


LINES = {
    "true": 0, "export HOST=$(hostname)": 0, "if false; then exit 9; fi": 0, "trap 'rm -f nothing' TERM": 0,
    "false || true": 0, "false": 1, "module load cuda": 127, "(exit 3)": 3, "exit 5": 5,
}  # fmt: skip
"""Lines of a set-up, and the exit status of a job that ends there; 0: it does not end there."""


@given(st.lists(st.sampled_from(sorted(LINES)), min_size=1, max_size=4))
def test_a_job_whose_set_up_fails_does_not_train(setup: list[str]) -> None:
    script = launcher(setup=setup).script([Job([], Path("run"), OmegaConf.create())], "name", Path("logs"), ["true"])
    script = "srun() { echo trained; }\n" + script
    own = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    finished = subprocess.run(["bash", "-c", script], env=own, capture_output=True, text=True, check=False)
    status = next((LINES[line] for line in setup if LINES[line]), 0)
    assert finished.returncode == status
    assert finished.stdout == ("" if status else "trained\n")
    last = finished.stderr.splitlines()[-1:]
    assert last == ([f"error: hydra.launcher.setup ended the job with exit status {status}"] if status else [])


def test_a_job_whose_set_up_ends_it_well_has_failed_too() -> None:
    script = launcher(setup=["exit"]).script([Job([], Path("run"), OmegaConf.create())], "name", Path("logs"), ["true"])
    own = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    finished = subprocess.run(["bash", "-c", script], env=own, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr == "error: hydra.launcher.setup ended the job with exit status 0\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"partition": "a\nrm -rf x"},
        {"partition": "a b"},
        {"nodes": 0},
        {"nodes": "two"},
        {"gpus_per_node": -1},
        {"timeout_min": 3},  # and the warning two minutes before the end, or three
        {"setup": "module load cuda"},
        {"additional_parameters": {"wrap": "true"}},
        {"additional_parameters": {"comment": "it's"}},
        {"additional_parameters": {"x\ny": 1}},
        {"additional_parameters": {"nodes": 3}},
    ],
    ids=repr,
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.launcher"):
        launcher(**settings)


@pytest.mark.parametrize("folder", ["a b", "a\nb", "a%b", "a'b"], ids=repr)
def test_folders_that_cannot_be(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweep\.dir"):
        launcher().script([Job([], Path("run"), OmegaConf.create())], "name", Path(folder) / "slurm", ["true"])


@pytest.mark.parametrize(
    ("trainer", "settings", "answer"),
    [
        ({"devices": 1, "num_nodes": 1}, {}, None),
        ({"devices": 4, "num_nodes": 1}, {}, None),  # one process starts the others
        ({"devices": "auto", "num_nodes": 2}, {"nodes": 2, "tasks_per_node": 4, "gpus_per_node": 4}, None),
        ({"devices": [0, 1], "num_nodes": 1}, {"tasks_per_node": 2}, None),
        ({"devices": "0,1", "num_nodes": 1}, {"tasks_per_node": 2}, None),
        ({"devices": "auto", "num_nodes": 1}, {"tasks_per_node": 2, "gpus_per_node": 4}, "trainer.devices=auto"),
        ({"devices": 2, "num_nodes": 1}, {"tasks_per_node": 4}, "trainer.devices=2"),
        ({"devices": 2, "num_nodes": 2}, {"nodes": 2}, "trainer.devices=2"),
        ({"devices": 1, "num_nodes": 2}, {}, "trainer.num_nodes=2"),
        ({"devices": 1, "num_nodes": 1}, {"nodes": 2}, "trainer.num_nodes=1"),
        ({"devices": 2, "num_nodes": 1, "accelerator": "gpu"}, {"gpus_per_node": 2}, None),
        ({"devices": 1, "num_nodes": 1, "accelerator": "gpu"}, {"additional_parameters": {"gres": "gpu:1"}}, None),
        ({"devices": 1, "num_nodes": 1, "accelerator": "cpu"}, {"gpus_per_node": 2}, None),
        ({"devices": 2, "num_nodes": 1, "accelerator": "gpu"}, {}, "gpus_per_node is null; expected 2"),
        ({"devices": 1, "num_nodes": 1}, {"gpus_per_node": 2}, "gpus_per_node=2"),
        ({"devices": 2, "num_nodes": 1}, {"tasks_per_node": 2, "gpus_per_node": 1}, "gpus_per_node=1"),
    ],
    ids=repr,
)
def test_layouts(trainer: dict[str, Any], settings: dict[str, Any], answer: str | None) -> None:
    check = launcher(**settings).check_layout
    if answer is None:
        check(OmegaConf.create({"accelerator": "auto", **trainer}))
    else:
        with pytest.raises(ConfigError, match=answer):
            check(OmegaConf.create({"accelerator": "auto", **trainer}))


def test_only_the_command_line_speaks_to_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    node: dict[str, object] = {"setup": ["true"], "additional_parameters": {"gres": "gpu", "chdir": "x"}}
    said = ["hydra.launcher.setup=[true]", *(f"+hydra.launcher.additional_parameters.{k}=x" for k in ("gres", "chdir"))]
    monkeypatch.delenv("TRIPTYCH_ALLOW", raising=False)
    check_shell(node, said)
    check_shell({"setup": [], "additional_parameters": {}}, [])
    for missing in said:
        with pytest.raises(ConfigError, match="not allowed in a file"):
            check_shell(node, [override for override in said if override != missing])
    monkeypatch.setenv("TRIPTYCH_ALLOW", "recording, hydra.launcher")
    check_shell(node, [])
