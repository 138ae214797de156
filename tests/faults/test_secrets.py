"""Secrets in the environment, the configuration, the command, standard output and the git remote: none stays behind."""

import base64
import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from commands import Finished, finish, run
from triptych.storage.redaction import REDACTED, Redactor

pytestmark = [pytest.mark.faults, pytest.mark.fault(23)]

ENVIRONMENT = {
    "WANDB_API_KEY": "4f0e1d2c3b4a59687766554433221100aabbccdd",
    "DB_PASSWORD": "Env1-quiet-harbour",
    "HF_TOKEN": "env_soft_lantern_word",
}
SECRETS = {
    **{f"environment, {name}": value for name, value in ENVIRONMENT.items()},
    "command, by its key": "Cmd1-brass-kettle",
    "command, short": "x7!q",
    "command, within a dictionary": "Cmd2-green-anchor",
    "command, a token by its beginning": "ghp_Cmd3WoodenLadder0123456789",
    "command, in a URL": "Cmd4-paper-crane",
    "git remote": "Git1-silver-thimble",
}
TINY = [
    *tiny.TINY, "experiment=dates/classification", "data.num_train=60", "data.num_validation=20", "data.num_test=20",
    "data.languages=[de,en]", "trainer.max_steps=3", "trainer.val_check_interval=3", "seed=1",
]  # fmt: skip
CORPUS = '''
import json
import logging
from pathlib import Path

from triptych.data import Dates

log = logging.getLogger(__name__)


class Vault(Dates):
    """A corpus that needs secrets, and babbles."""

    def __init__(self, password: str, pin: str, options: dict, mirror: str, header: str, **dates) -> None:
        super().__init__(**dates)
        self.given = [password, pin, options["api_key"], mirror, header]

    def splits(self):
        Path("given.json").write_text(json.dumps(self.given))
        for value in self.given:
            print("standard output:", value)
            log.info("asked with password=%s; that was %s", value, value if len(value) > 4 else "short")
        try:
            raise RuntimeError(f"refused: {self.given}")
        except RuntimeError:
            log.exception("once more")
        return super().splits()
'''
OVERRIDES = [
    "data._target_=vault.Vault",
    f"+data.password={SECRETS['command, by its key']}",
    f'+data.pin="password={SECRETS["command, short"]}"',
    f"+data.options={{api_key:{SECRETS['command, within a dictionary']},size:3}}",
    f"+data.mirror='https://me:{SECRETS['command, in a URL']}@example.com/data'",
    f"+data.header='Authorization: {SECRETS['command, a token by its beginning']}'",
    "logger.wandb.group='${oc.env:DB_PASSWORD}'",
    "logger.wandb.tags=['${oc.env:HF_TOKEN}']",
]
UNGUARDED = """
import sys
from triptych.storage import redaction
redaction.Redactor.__call__ = lambda self, value, name="": value
from triptych.cli import main
sys.exit(main())
"""


def contents(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """A file and what is packed in it."""
    yield name, data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from contents(f"{name}/{member}", archive.read(member))
    if data.startswith(b"\x1f\x8b"):
        yield from contents(f"{name}/unpacked", gzip.decompress(data))
    if name.endswith(".wandb"):  # records are cut at blocks of 32 KiB; each part has a header of 7 bytes
        parts, place = [], 7
        while place + 7 <= len(data):
            length = int.from_bytes(data[place + 4 : place + 6], "little")
            parts.append(data[place + 7 : place + 7 + length])
            place += 7 + length
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
        yield f"{name}/joined", b"".join(parts)


def hits(folder: Path) -> set[tuple[str, str]]:
    """Which secret is found in which file, names of files included."""
    forms = {name: (secret.encode(), base64.b64encode(secret.encode())) for name, secret in SECRETS.items()}
    found = set()
    for path in folder.rglob("*"):
        inside = str(path.relative_to(folder))
        for place, data in contents(inside, path.read_bytes() if path.is_file() else b""):
            found |= {(name, inside) for name, both in forms.items() for f in both if f in data or f in place.encode()}
    return found


def make_checkout(folder: Path) -> None:
    """With a token in the remote, where the user should stand."""
    remote = ["remote", "add", "origin", f"https://{SECRETS['git remote']}:x-oauth-basic@example.com/x.git"]
    commit = ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--message=x", "--allow-empty"]
    for command in (["init"], remote, commit):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)


def train(folder: Path, *command: str, program: str | None = None) -> Finished:
    make_checkout(folder)
    (folder / "vault.py").write_text(CORPUS)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "HYDRA_FULL_ERROR"}
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "TRIPTYCH_ALLOW": "vault.", "OMP_NUM_THREADS": "1"}
    words, environment = [*command, *TINY, *OVERRIDES, "run_dir=run"], {**kept, **ENVIRONMENT, **own}
    return finish(*words, cwd=folder, environment=environment, program=program)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A sweep of one job, for what Hydra writes beside it."""
    folder = tmp_path_factory.mktemp("guarded")
    return folder, train(folder, "train", "-m")


def test_nothing_is_left(guarded: tuple[Path, Finished]) -> None:
    folder, finished = guarded
    assert finished.returncode == 0, finished.stderr
    written = {path.suffix or path.name for path in folder.rglob("run/**/*") if path.is_file()}
    assert {".yaml", ".json", ".csv", ".log", ".ckpt", ".wandb", "id"} <= written
    assert hits(folder / "run") == set()
    assert (folder / "outputs" / "sweeps" / "multirun.yaml").exists()
    assert hits(folder / "outputs") == set()
    (log,) = folder.rglob("train.log")
    assert f"that was {REDACTED}" in log.read_text()
    assert "RuntimeError" in log.read_text()


def test_the_training_has_the_true_values(guarded: tuple[Path, Finished]) -> None:
    given = json.loads((guarded[0] / "given.json").read_text())
    names = [name for name in SECRETS if name.startswith("command")]
    assert all(any(SECRETS[name] in value for value in given) for name in names)


def test_the_terminal_shows_only_what_the_program_itself_prints(
    guarded: tuple[Path, Finished],
) -> None:
    output = guarded[1].stdout + guarded[1].stderr
    shown = [line for line in output.splitlines() if any(secret in line for secret in SECRETS.values())]
    assert shown
    assert all(line.startswith("standard output:") for line in shown)


def test_without_redaction_every_file_has_some(tmp_path: Path) -> None:
    finished = train(tmp_path, "train", program=UNGUARDED)
    assert finished.returncode == 0, finished.stderr
    found = hits(tmp_path / "run")
    names = {Path(file).suffix or file for _, file in found}
    assert {"config.yaml", "summary.json", "train.log"} <= {file for _, file in found}
    assert {".ckpt", ".wandb"} <= names
    assert {secret for secret, _ in found} == SECRETS.keys() - {"environment, WANDB_API_KEY", "git remote"}


def test_wandb_by_itself_keeps_them(tmp_path: Path) -> None:
    """Command, standard output and the user of the git remote: what the settings of our logger switch off."""
    program = tmp_path / "program.py"
    program.write_text(
        "import wandb\nrun = wandb.init(project='p', mode='offline')\n"
        f"print('{SECRETS['command, in a URL']}')\nwandb.finish()\n"
    )
    make_checkout(tmp_path)
    command = [sys.executable, str(program), SECRETS["command, by its key"]]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=os.environ | {"WANDB_CONSOLE": "wrap"})
    found = {secret for secret, file in hits(tmp_path / "wandb") if file.endswith(".wandb")}
    assert found == {"command, in a URL", "command, by its key", "git remote"}


@pytest.mark.parametrize("name", ["plain.txt", "deflated.zip", "packed.gz", "cut.wandb", "coded.txt", "in_a_name"])
def test_what_is_hidden_is_found(tmp_path: Path, name: str) -> None:
    secret = SECRETS["git remote"]
    data = f"some {secret} text".encode()
    match name:
        case "deflated.zip":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("member", data * 100)
            data = packed.getvalue()
        case "packed.gz":
            data = gzip.compress(data)
        case "cut.wandb":
            filler = 32768 - 7 - 7 - 12  # the block ends within the secret
            first, rest = b"." * filler + data[:12], data[12:]
            header = b"CRC_" + len(first).to_bytes(2, "little") + b"\x02"
            data = b":W&B..." + header + first + b"CRC_" + len(rest).to_bytes(2, "little") + b"\x04" + rest
            assert secret.encode() not in data
        case "coded.txt":
            data = base64.b64encode(secret.encode())
        case "in_a_name":
            name, data = f"{name}_{secret}", b""
    (tmp_path / name).write_bytes(data)
    assert hits(tmp_path) == {("git remote", name)}


@pytest.mark.parametrize("override", [f"seed={ENVIRONMENT['DB_PASSWORD']}", "seed={token:Ab1-cdefgh}"])
def test_mistakes_are_answered_without_them(tmp_path: Path, override: str) -> None:
    finished = run("train", override, cwd=tmp_path, variables=ENVIRONMENT)
    assert finished.returncode == 1
    assert finished.stderr.startswith("error: seed=")
    assert REDACTED in finished.stderr
    assert "harbour" not in finished.stderr
    assert "cdefgh" not in finished.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data.api_key", "abc"),
        ("password", 1234),
        ("credentials.user.name", "me"),
        ("hf_token", "Abcd-1234"),
        ("HF_TOKEN", "abcdefgh"),
        ("data.accessToken", "Abcd1234"),
        ("MYSQL_PWD", "abc"),
        ("aws_secret_access_key", "x"),
    ],
)
def test_secrets_by_name(name: str, value: object) -> None:
    assert Redactor()(value, name) == REDACTED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task.max_new_tokens", 100),
        ("data.text_key", "review_text"),
        ("pad_token", "[PAD]"),
        ("eos_token", "<|end|>"),
        ("tokenizer._target_", "triptych.data.Characters"),
        ("password", None),
        ("data.use_auth", True),
        ("PWD", "/home/me"),
        ("num_kv_heads", 4),
        ("notes", "see https://example.com/a@b and key: value"),
        ("command", "triptych train data.text_key=review_text api_key=${oc.env:API_KEY}"),
    ],
)
def test_what_is_no_secret_stays(name: str, value: object) -> None:
    assert Redactor()(value, name) == value


@given(secret=st.text("abcXYZ0189+/=-", min_size=6), around=st.tuples(st.text(), st.text()))
def test_a_secret_of_the_configuration_is_replaced_wherever_it_occurs(secret: str, around: tuple[str, str]) -> None:
    text = secret.join(around)
    redact = Redactor({"data": {"password": secret}})
    assert secret not in json.dumps(redact({"a": [text, {"b": text}]}))
