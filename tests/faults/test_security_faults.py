"""Faults 21, 22 and 24: code in checkpoints, in configurations and in dependencies is not executed."""

import ast
import contextlib
import http.server
import importlib.metadata
import json
import os
import pickle
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf
from packaging.requirements import Requirement
from packaging.version import Version

import triptych
from commands import finish
from triptych.config import ConfigError, build, check

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
SMALL = ["shape=tiny", "shape.num_layers=1", "logger=csv", "trainer.max_steps=2", "trainer.val_check_interval=2"]
SMALL += [
    "data.num_train=40", "data.num_validation=4", "data.num_test=4", "batch.global_size=4", "trainer.accelerator=cpu",
]  # fmt: skip
SMALL += ["shape.max_length=128", "run_dir=run"]

# The command, several times in one process. After each: was the marker made? Where it is told to, without our guard.
DRIVER = """
import contextlib, io, json, shutil, sys
from pathlib import Path
import triptych
import triptych.config.hydra_guard
from triptych.cli import main

commands, guarded = json.load(sys.stdin)
if not guarded:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    triptych.config.hydra_guard.GuardedLoader = ConfigLoaderImpl
marker = Path("executed")
answers = []
for arguments in commands:
    with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["triptych", *arguments]
        try:
            if arguments[0] == "load":
                status = triptych.load(arguments[1]) is None
            else:
                status = main()
        except BaseException as error:
            status, _ = 1, print(f"error: {error!r}", file=sys.stderr)
    answers.append([status, stderr.getvalue(), marker.exists()])
    if marker.is_dir():
        marker.rmdir()
    marker.unlink(missing_ok=True)
print(json.dumps(answers))
"""
Answers = list[tuple[int, str, bool]]


def answers_to(commands: Sequence[Sequence[str]], cwd: Path, *, guarded: bool = True, **environment: str) -> Answers:
    """Of each command: the exit status, the standard error, and whether what it should not execute was executed."""
    hidden = ("HYDRA_FULL_ERROR", "TRIPTYCH_ALLOW")
    own = {k: v for k, v in os.environ.items() if k not in hidden}
    finished = finish(
        cwd=cwd,
        environment={**own, "OMP_NUM_THREADS": "1", **environment},
        program=DRIVER,
        stdin=json.dumps([commands, guarded]),
    )
    assert finished.returncode == 0, finished.stderr
    return [tuple(answer) for answer in json.loads(finished.stdout.splitlines()[-1])]


class Payload:
    """A pickle of it makes the folder when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of an honest checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    command = ["train", "experiment=dates/classification", "data.languages=[de,en]", *SMALL]
    ((status, stderr, _),) = answers_to([command], folder)
    assert status == 0, stderr
    content = torch.load(next(iter(folder.glob("run/checkpoints/*.ckpt"))), weights_only=True)
    assert isinstance(content, dict)
    return content


class TestCheckpoints:
    """Fault 21."""

    FORMS = ("whole", "inside", "legacy", "pickle")

    @pytest.fixture
    def folder(self, tmp_path: Path, trained: dict[str, Any]) -> Path:
        """evil-*.ckpt make the folder executed if they are ever unpickled."""
        evil = Payload(tmp_path / "executed")
        inside = {**trained, "triptych": {**trained["triptych"], "config": evil}}
        torch.save(evil, tmp_path / "evil-whole.ckpt")
        torch.save(inside, tmp_path / "evil-inside.ckpt")
        torch.save(inside, tmp_path / "evil-legacy.ckpt", _use_new_zipfile_serialization=False)
        (tmp_path / "evil-pickle.ckpt").write_bytes(pickle.dumps(evil))
        (tmp_path / "in.txt").write_text("3. März 1999\n")
        return tmp_path

    @pytest.fixture
    def server(self, folder: Path) -> Iterator[tuple[str, list[str]]]:
        """The folder by http, and what was asked for."""
        asked: list[str] = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(folder))

            def log_message(self, format: str, *arguments: Any) -> None:
                asked.append(self.path)

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}", asked
            server.shutdown()

    @staticmethod
    def commands(checkpoint: str) -> list[list[str]]:
        return [
            ["evaluate", f"checkpoint={checkpoint}"],
            ["predict", f"checkpoint={checkpoint}", "input=in.txt"],
            ["load", checkpoint],
        ]

    @pytest.mark.parametrize("forced", [False, True], ids=["", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])
    def test_fault_21_is_data(self, folder: Path, server: tuple[str, list[str]], forced: bool) -> None:
        """By path and by URL, with evaluate, predict and load."""
        address, asked = server
        environment = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"} if forced else {}
        files = [f"evil-{form}.ckpt" for form in self.FORMS]
        commands = [command for file in files for command in self.commands(file)]
        commands += self.commands(f"{address}/evil-whole.ckpt")
        for command, (status, stderr, executed) in zip(
            commands, answers_to(commands, folder, **environment), strict=True
        ):
            assert not executed, command
            assert status == 1
            assert "Traceback" not in stderr
            assert "checkpoint=" in stderr.splitlines()[-1]
            if address in command[1]:
                assert "expected a file or a run directory" in stderr.splitlines()[-1]
        assert not asked

    def test_fault_21_train_resume_is_data(self, folder: Path, server: tuple[str, list[str]]) -> None:
        """Also in the run directory itself, where nobody has named it."""
        address, asked = server
        places = [*(f"evil-{form}.ckpt" for form in self.FORMS), f"{address}/evil-whole.ckpt", "auto"]
        planted = folder / "run-5" / "checkpoints" / "step-00000001.ckpt"
        planted.parent.mkdir(parents=True)
        planted.write_bytes((folder / "evil-inside.ckpt").read_bytes())
        own = ["train", "experiment=dates/classification", "data.languages=[de,en]"]
        own += [word for word in SMALL if not word.startswith("run_dir=")]
        commands = [[*own, f"resume={place}", f"run_dir=run-{number}"] for number, place in enumerate(places)]
        answers = answers_to(commands, folder, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")
        for place, (status, stderr, executed) in zip(places, answers, strict=True):
            assert not executed, place
            assert status == 1
            assert "Traceback" not in stderr
            assert (planted.name if place == "auto" else place) in stderr.splitlines()[-1]
        assert not asked

    def test_fault_21_the_payload_works(
        self, folder: Path, server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each form is executed by a loader that allows it, so the test above can fail."""
        marker = folder / "executed"
        for form in self.FORMS:
            with contextlib.suppress(RuntimeError):  # it is no checkpoint
                torch.load(folder / f"evil-{form}.ckpt", weights_only=False)
            assert marker.exists(), form
            marker.rmdir()
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        with pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
            torch.load(folder / "evil-whole.ckpt")
        assert marker.exists()


M, P = "MARKER", "PAYLOAD"  # stand for the path of the marker, and of a pickle that makes it
TARGETS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "os.system": ([f"mkdir {M}"], {}),
    "os.mkdir": ([M], {}),
    "logging.os.system": ([f"mkdir {M}"], {}),
    "subprocess.run": ([["mkdir", M]], {}),
    "subprocess.Popen": ([["mkdir", M]], {}),
    "builtins.eval": ([f"__import__('os').mkdir('{M}')"], {}),
    "builtins.exec": ([f"__import__('os').mkdir('{M}')"], {}),
    "torch.load": ([P], {"weights_only": False}),
    "numpy.load": ([P], {"allow_pickle": True}),
    "pathlib.Path.write_text": ([Path(M), "x"], {}),
    "shutil.copy": ([P, M], {}),
    "logging.FileHandler": ([M], {}),
    "runpy.run_path": ([f"{P}.py"], {}),
    "hydra.utils.instantiate": ([{"_target_": "torch.load", "f": P, "weights_only": False}], {}),
    # by the names of allowed packages
    "lightning.pytorch.callbacks.model_checkpoint.os.system": ([f"mkdir {M}"], {}),
    "lightning.pytorch.callbacks.model_checkpoint.shutil.copy": ([P, M], {}),
    "lightning.pytorch.callbacks.model_checkpoint.Path.write_text": ([Path(M), "x"], {}),
    "lightning.pytorch.strategies.fsdp.torch.load": ([P], {"weights_only": False}),
    "triptych.report.summary.subprocess.run": ([["mkdir", M]], {}),
    "triptych.assembly.make_task.torch.load": ([P], {"weights_only": False}),
    # what allowed packages hold themselves
    "lightning.pytorch.cli.instantiate_class": (
        [(), {"class_path": "logging.FileHandler", "init_args": {"filename": M}}],
        {},
    ),
    "lightning.pytorch.core.saving.pl_load": ([P], {"weights_only": False}),
    "lightning.pytorch.demos.boring_classes.BoringModel.load_from_checkpoint": ([P], {"weights_only": False}),
    "triptych.launch.slurm.ask": (["mkdir", M], {}),
}


def filled(value: Any, marker: Path, payload: Path) -> Any:
    """With the paths in the place of MARKER and PAYLOAD."""
    if isinstance(value, str | Path):
        return type(value)(str(value).replace(M, str(marker)).replace(P, str(payload)))
    if isinstance(value, dict):
        return {key: filled(inner, marker, payload) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled(inner, marker, payload) for inner in value)
    return value


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture
def payload(tmp_path: Path, marker: Path) -> Path:
    """A pickle, and with .py a script, that make the marker."""
    path = tmp_path / "payload"
    path.write_bytes(pickle.dumps(Payload(marker)))
    (tmp_path / "payload.py").write_text(f"import os; os.mkdir({str(marker)!r})")
    return path


LOAD = {"_target_": "torch.load", "f": P, "weights_only": False}
ADAMW = {
    "_target_": "triptych.training.optimizers.AdamW", "beta1": 0.9, "beta2": 0.98, "eps": 1e-9, "weight_decay": 0.0,
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {
    "within a node": {**ADAMW, "lr": LOAD},
    "deep within": {**ADAMW, "lr": {"_target_": "triptych.nn.FeedForward", "d_model": LOAD, "d_ff": 1}},
    "in a list": {"_target_": "triptych.data.Dates", "languages": [LOAD]},
    "by a reference": {"_target_": "${path}"},
    "by a reference within": {**ADAMW, "lr": "${load}"},
    "allowed, but half": {**ADAMW, "lr": 0.1, "_partial_": True},
    "among other arguments": {"_target_": "lightning.pytorch.loggers.WandbLogger", "offline": True, "_args_": [LOAD]},
    "a key with dots": {**ADAMW, "lr.x": LOAD},
}


def test_fault_22_no_constructor_of_ours_starts_a_program() -> None:
    """Any of our classes may stand in a configuration."""
    programs = ("Popen", "run", "call", "check_call", "check_output", "system", "execv", "spawnv", "popen")
    found = [
        f"{file.name}: {kind.name} calls {call.func.attr}"
        for file in Path(triptych.__file__).parent.rglob("*.py")
        for kind in ast.walk(ast.parse(file.read_text()))
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__new__", "__post_init__")
        for call in ast.walk(method)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in ("subprocess", "os")
        and call.func.attr in programs
    ]
    assert found == []


class TestConfigurations:
    """Fault 22, in the part of the configuration that we build."""

    @pytest.mark.parametrize("target", TARGETS)
    def test_fault_22_is_not_built(self, target: str, marker: Path, payload: Path) -> None:
        positional, named = filled(TARGETS[target], marker, payload)
        for arguments in (named, {**named, "_args_": positional}, {**named, "_partial_": True}):
            config = OmegaConf.create({"node": {"_target_": target, **arguments}})
            with pytest.raises(ConfigError, match=r"^node\._target_=.*(not allowed|no such class)"):
                build(config, "node")
        assert not marker.exists()

    @pytest.mark.parametrize("target", TARGETS)
    def test_fault_22_the_targets_work(self, target: str, marker: Path, payload: Path) -> None:
        """Called as they stand, each of them makes the marker: so the test above can fail."""
        positional, named = filled(TARGETS[target], marker, payload)
        with contextlib.suppress(Exception):  # the file holds nothing else
            made = get_object(target)(*positional, **named)
            if isinstance(made, subprocess.Popen):
                made.wait()
        assert marker.exists()

    def test_fault_22_hydra_alone_builds_some(self, marker: Path, payload: Path) -> None:
        load = {"_target_": "torch.load", "f": str(payload), "weights_only": False}
        with contextlib.suppress(InstantiationException):  # the file holds nothing else
            instantiate({"_target_": "builtins.dict", "x": [load]})
        assert marker.exists()

    @pytest.mark.parametrize("place", PLACES)
    def test_fault_22_in_any_place(self, place: str, marker: Path, payload: Path) -> None:
        content = {"path": "torch.load", "load": LOAD, "node": PLACES[place]}
        with pytest.raises(ConfigError):
            build(OmegaConf.create(filled(content, marker, payload)), "node")
        assert not marker.exists()

    def test_fault_22_plain_data_stays_data(self, marker: Path, payload: Path) -> None:
        """What a class takes as it comes is handed over as it stands."""
        load = filled(LOAD, marker, payload)
        node = {"_target_": "lightning.pytorch.loggers.WandbLogger", "config": {"a": {"b": [load]}}}
        assert check(OmegaConf.create({"node": node}), "node")["config"] == {"a": {"b": [load]}}
        assert not marker.exists()

    def test_fault_22_only_the_environment_extends_the_list(
        self, marker: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = {"_target_": "logging.FileHandler", "filename": str(marker)}
        config = OmegaConf.create({"TRIPTYCH_ALLOW": "logging", "node": node})
        for allowed in ("", ".", ",", "log", "logging.config", "logging.FileHandlers"):
            monkeypatch.setenv("TRIPTYCH_ALLOW", allowed)
            with pytest.raises(ConfigError, match="not allowed"):
                build(config, "node")
        assert not marker.exists()
        for allowed in ("logging", "fractions, logging.", "logging.FileHandler"):
            monkeypatch.setenv("TRIPTYCH_ALLOW", allowed)
            build(config, "node").close()
        assert marker.exists()


EVIL = "{_target_: torch.load, f: payload, weights_only: false}"
# The content of experiment/evil.yaml, and whether it is executed where Hydra's own part is not guarded.
FILES: dict[str, tuple[str, bool]] = {
    "callback": (f"hydra: {{callbacks: {{x: {EVIL}}}}}", True),
    "callback by reference": (f"task: {{evil: {EVIL}}}\nhydra: {{callbacks: {{x: '${{task.evil}}'}}}}", True),
    "callback's class by reference": (
        "task: {evil: torch.load}\n"
        "hydra: {callbacks: {x: {_target_: '${task.evil}', f: payload, weights_only: false}}}",
        True,
    ),
    "all callbacks by reference": (f"task: {{evil: {{x: {EVIL}}}}}\nhydra: {{callbacks: '${{task.evil}}'}}", True),
    "within a callback": (f"hydra: {{callbacks: {{x: {{_target_: logging.NullHandler, level: {EVIL}}}}}}}", True),
    "handler": ("hydra: {job_logging: {handlers: {x: {'()': torch.load, f: payload, weights_only: false}}}}", True),
    "handler's class": (
        "hydra: {job_logging: {handlers: {x: {class: torch.load, f: payload, weights_only: false}}}}",
        False,
    ),
    "handler of Hydra's own log": (
        "hydra: {hydra_logging: {handlers: {x: {'()': torch.load, f: payload, weights_only: false}}}}",
        True,
    ),
    "filter": ("hydra: {job_logging: {filters: {x: {'()': torch.load, f: payload, weights_only: false}}}}", True),
    "formatter": ("hydra: {job_logging: {formatters: {x: {'()': torch.load, f: payload, weights_only: false}}}}", True),
    "an import": ("hydra: {job_logging: {handlers: {terminal: {stream: 'ext://evil_module.x'}}}}", True),
    "within the launcher": (f"hydra: {{mode: MULTIRUN, launcher: {{x: {EVIL}}}}}", True),
    "within the sweeper": (f"hydra: {{mode: MULTIRUN, sweeper: {{params: {{x: {EVIL}}}}}}}", True),
    "the launcher": (f"hydra: {{mode: MULTIRUN, launcher: {EVIL}}}", False),
    "the launcher's shell": ("hydra: {mode: MULTIRUN, launcher: {setup: [mkdir executed]}}", False),
    "the launcher's options": ("hydra: {mode: MULTIRUN, launcher: {additional_parameters: {chdir: x}}}", False),
    "the environment": (
        "hydra: {job: {env_set: {TRIPTYCH_ALLOW: logging}}}\n"
        "callbacks: {x: {_target_: logging.FileHandler, filename: executed}}",
        True,
    ),
    "the optimizer": ("optimizer: {_target_: logging.FileHandler, filename: executed}", False),
    "a callback of the training": ("callbacks: {x: {_target_: lightning.pytorch.cli.os.mkdir, path: executed}}", False),
    "a tag": ("seed: !!python/object/apply:os.mkdir [executed]", False),
    "a folder of configurations": ("hydra: {searchpath: ['pkg://evil_module']}", False),
}


class TestFilesOfAStranger:
    """Fault 22, in the part of the configuration that Hydra builds by itself, before our code is called."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "payload").write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
        (tmp_path / "evil_module.py").write_text("import os; os.mkdir('executed'); x = None")
        for i, (content, _) in enumerate(FILES.values()):
            file = tmp_path / "own" / "experiment" / f"evil{i}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("# @package _global_\n" + content + "\n")
        return tmp_path

    COMMANDS = tuple(  # a file cannot make a training a sweep: only -m does
        ["train", "--config-dir=own", *(["-m"] if "MULTIRUN" in content else []), f"experiment=evil{i}", *SMALL]
        for i, (content, _) in enumerate(FILES.values())
    )

    def test_fault_22_nothing_of_it_is_executed(self, folder: Path) -> None:
        for name, (status, stderr, executed) in zip(FILES, answers_to(self.COMMANDS, folder), strict=True):
            assert not executed, name
            assert status == 1, name
            assert "Traceback" not in stderr
            if name not in ("a tag", "a folder of configurations"):  # these Hydra refuses itself
                assert "not allowed" in stderr.splitlines()[-1]

    def test_fault_22_without_the_guard_it_is_executed(self, folder: Path) -> None:
        ends = [[] if name == "the environment" else ["seed=-1"] for name in FILES]  # the others need no training
        commands = [[*command, *end] for command, end in zip(self.COMMANDS, ends, strict=True)]
        answers = answers_to(commands, folder, guarded=False)
        assert {name: answer[2] for name, answer in zip(FILES, answers, strict=True)} == {
            name: executes for name, (_, executes) in FILES.items()
        }


class TestOtherWays:
    """Fault 22: by the files of the other commands, by a file that takes the place of one of Hydra's, by options."""

    HYDRA = "hydra: {callbacks: {x: {_target_: torch.load, f: payload, weights_only: false}}}"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "payload").write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
        for name, content in {
            "data/evil.yaml": "_target_: logging.FileHandler\nfilename: executed\n",
            "hydra/job_logging/evil.yaml": "version: 1\nroot: {handlers: [x]}\n"
            "handlers: {x: {'()': torch.load, f: payload, weights_only: false}}\n",
            "hydra/help/evil.yaml": f"# @package _global_\n{self.HYDRA}\n",
            "instead/hydra/config.yaml": f"# @package _global_\n{self.HYDRA}\n",
            "evil.yaml": f"{self.HYDRA}\n",
        }.items():
            (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "own" / name).write_text(content)
        return tmp_path

    COMMANDS = (
        ["evaluate", "--config-dir=own", "checkpoint=honest.ckpt", "data=evil"],
        ["evaluate", "--config-dir=own", "checkpoint=honest.ckpt", "hydra/job_logging=evil"],
        ["predict", "--config-dir=own", "checkpoint=honest.ckpt", "input=payload", "hydra/job_logging=evil"],
        ["predict", "--config-dir=own", "checkpoint=honest.ckpt", "hydra/help=evil"],
        ["train", "--config-dir=own", "hydra/help=evil", "--help"],
        ["train", "--config-dir=own/instead", "seed=-1"],
        ["train", "--config-dir=own", "--config-name=evil"],
        ["train", "--config-path", "own"],
        ["train", "--experimental-rerun", "payload"],
    )

    def test_fault_22_nothing_is_executed(self, folder: Path, trained: dict[str, Any]) -> None:
        torch.save(trained, folder / "honest.ckpt")
        for command, (status, _, executed) in zip(self.COMMANDS, answers_to(self.COMMANDS, folder), strict=True):
            assert not executed, command
            assert status == 1, command

    HOSTILE: Mapping[str, object] = {
        "optimizer": {"_target_": "logging.FileHandler", "filename": "executed"},
        "model": {"_target_": "triptych.launch.local.start", "command": ["mkdir", "executed"], "n_jobs": 2},
        "data": {"_target_": "os.mkdir", "path": "executed"},
        "hydra": {"callbacks": {"x": {"_target_": "os.mkdir", "path": "executed"}}},
    }

    def test_fault_22_the_configuration_in_a_checkpoint(self, tmp_path: Path, trained: dict[str, Any]) -> None:
        (tmp_path / "in.txt").write_text("3. März 1999\n")
        config, commands = trained["triptych"]["config"], []
        head = {**config["model"]["head"], "norm": self.HOSTILE["optimizer"]}
        hostile = {key: {key: node} for key, node in self.HOSTILE.items()}
        for name, nodes in {**hostile, "head": {"model": {**config["model"], "head": head}}}.items():
            info = {**trained["triptych"], "config": {**config, **nodes}}
            torch.save({**trained, "triptych": info}, tmp_path / f"{name}.ckpt")
            commands += TestCheckpoints.commands(f"{name}.ckpt")
        for command, (status, stderr, executed) in zip(commands, answers_to(commands, tmp_path), strict=True):
            assert not executed, command
            key = command[1].removeprefix("checkpoint=").removesuffix(".ckpt")
            if key != "hydra" and (command[0], key) not in (("predict", "data"), ("load", "data")):  # they read none
                assert status == 1
                assert "not allowed" in stderr.splitlines()[-1]
        allowed = answers_to([["load", "head.ckpt"]], tmp_path, TRIPTYCH_ALLOW="logging")
        assert allowed[0][2], allowed  # it would work


class TestSupplyChain:
    """Fault 24."""

    DECLARED: Mapping[str, str] = {"lightning": ">=2.6.6,<2.7", "hydra-core": ">=1.3.8,<1.4", "torch": ">=2.11"}
    MALICIOUS = (("lightning", "2.6.2"), ("lightning", "2.6.3"))

    @pytest.fixture
    def required(self) -> list[Requirement]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        optional = [line for lines in project["optional-dependencies"].values() for line in lines]
        return [Requirement(line) for line in (*project["dependencies"], *optional)]

    @pytest.fixture
    def pinned(self) -> dict[str, Version]:
        lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
        pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines]
        assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
        return {normal(pin[1]): Version(pin[2]) for pin in pins if pin}

    def test_fault_24_what_is_declared(self, required: list[Requirement]) -> None:
        declared = {normal(requirement.name): requirement for requirement in required}
        for name, specifier in self.DECLARED.items():
            assert declared[name].specifier == Requirement(name + specifier).specifier
        assert all(requirement.url is None for requirement in required)

    def test_fault_24_malicious_versions_do_not_fit(
        self, required: list[Requirement], pinned: dict[str, Version]
    ) -> None:
        for name, version in self.MALICIOUS:
            (requirement,) = (r for r in required if r.name == name)
            assert not requirement.specifier.contains(version)
            for twin in (name, f"pytorch-{name}"):
                assert pinned[twin] not in [Version(v) for n, v in self.MALICIOUS if n == name]
                assert requirement.specifier.contains(pinned[twin])

    def test_fault_24_every_requirement_is_pinned_and_installed(
        self, required: list[Requirement], pinned: dict[str, Version]
    ) -> None:
        """What only ``make docs`` installs is only pinned."""
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        of_the_site = {Requirement(line).name for line in extras["docs"]}
        for requirement in required:
            pin = pinned[normal(requirement.name)]
            assert requirement.specifier.contains(pin), requirement
            if requirement.name not in of_the_site:
                assert Version(importlib.metadata.version(requirement.name).partition("+")[0]) == pin, requirement

    def test_fault_24_what_is_installed_is_what_is_pinned(self, pinned: dict[str, Version]) -> None:
        """What comes along with the requirements too."""
        installed = {normal(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}
        both = pinned.keys() & installed.keys()
        assert {name: Version(installed[name].partition("+")[0]) for name in both} == {n: pinned[n] for n in both}
        assert len(both) > 50

    def test_fault_24_the_pins_are_used(self) -> None:
        """But by `make release`, which looks at what pip gives without them."""
        lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
        (pinned,) = (line for line in lines if not line.startswith("\toutputs/release/"))
        assert len(lines) == 2
        assert pinned.startswith("INSTALL = ")
        assert "--constraint constraints.txt" in pinned
        assert "index-url" not in pinned


def normal(name: str) -> str:
    """A name as package indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()
