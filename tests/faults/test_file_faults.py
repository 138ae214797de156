"""Faults 5 to 8: what happens to checkpoint files."""

import os
import random
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import triptych
from clock import wait_until
from commands import Command
from triptych.config import RunError
from triptych.storage.atomic import remove_leftovers
from triptych.training import damage_of, newest_good, read_checkpoint
from triptych.training.checkpoint_file import CheckpointFiles, write_checkpoint

pytestmark = pytest.mark.faults

STATE = {"weights": torch.arange(3000, dtype=torch.float32), "step": 7, "names": ["a", "b"]}
UNFINISHED = ".last.ckpt.*.tmp"

SAVES_FOREVER = """
import sys
from pathlib import Path
import torch
from triptych.training.checkpoint_file import CheckpointFiles
files, k = CheckpointFiles(background=True), 0
while True:
    k += 1
    files.save_checkpoint({"step": k, "weights": torch.full((2_000_000,), float(k))}, Path(sys.argv[1]) / "last.ckpt")
"""


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_checkpoint(STATE, tmp_path / "a.ckpt")
    for content in (read_checkpoint(tmp_path / "a.ckpt"), torch.load(tmp_path / "a.ckpt", weights_only=True)):
        assert torch.equal(content["weights"], STATE["weights"])
        assert (content["step"], content["names"]) == (7, ["a", "b"])
    assert [f.name for f in tmp_path.iterdir()] == ["a.ckpt"]


def test_the_background_writes_what_was_there_when_it_was_asked(tmp_path: Path) -> None:
    files, weights = CheckpointFiles(background=True), torch.zeros(1_000_000)
    files.save_checkpoint({"weights": weights}, tmp_path / "a.ckpt")
    weights += 1
    files.wait()
    assert not read_checkpoint(tmp_path / "a.ckpt")["weights"].any()


def test_fault_5_killed_while_it_saves(
    tmp_path: Path, full: bool, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    kills = 12 if full else 3
    seen, cut = [0], 0
    for _ in range(kills):
        remove_leftovers(tmp_path)
        process = Command(
            str(tmp_path),
            cwd=tmp_path,
            environment={**os.environ, "TMPDIR": "/dev/shm"},
            files=[Path(os.devnull)] * 3,
            program=SAVES_FOREVER,
        )
        for name in ("last.ckpt", UNFINISHED):  # a whole one, and then the next
            wait_until(lambda n=name, p=process: [*tmp_path.glob(n)] or p.poll() is not None, 120, name, pause=0.001)
        assert process.poll() is None
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.wait(60)
        cut += bool(list(tmp_path.glob(UNFINISHED)))
        if (tmp_path / "last.ckpt").exists():
            content = read_checkpoint(tmp_path / "last.ckpt")
            assert (content["weights"] == content["step"]).all()
            seen.append(content["step"])
    record_property("count", f"{kills} kills, {cut} in the middle of a file")
    assert len(seen) > 1


@pytest.mark.parametrize("share", [0, 10, 50, 99])
def test_fault_6_cut(share: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (5, 10):
        write_checkpoint(STATE, tmp_path / f"step-{step:08d}.ckpt")
    newest = tmp_path / "step-00000010.ckpt"
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) * share // 100])
    assert newest_good(tmp_path) == tmp_path / "step-00000005.ckpt"
    assert f"{newest} is damaged and skipped" in caplog.text
    with pytest.raises(RunError, match=r"step-00000010\.ckpt is damaged: it is (empty|cut)"):
        read_checkpoint(newest)
    (tmp_path / "step-00000005.ckpt").write_bytes(b"")
    with pytest.raises(RunError, match="none of its 2 checkpoints is whole"):
        newest_good(tmp_path)


def test_fault_6_cut_under_a_real_run(tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]) -> None:
    """The run goes on from the one before, to the same end; and says so."""
    alone = job(tmp_path, "experiment=dates/classification", "run_dir=alone")
    started = job(tmp_path, "experiment=dates/classification", "run_dir=run", "trainer.max_steps=60")
    run = run_of(tmp_path / "run")
    assert started.until(lambda: run.newest >= 20), started.text
    started.kill()
    started.wait()
    newest = sorted((run.directory / "checkpoints").glob("step-*.ckpt"))[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    again = job(tmp_path, "experiment=dates/classification", "run_dir=run")
    assert again.wait() == 0, again.text
    assert f"{newest.name} is damaged and skipped" in again.text
    assert alone.wait() == 0, alone.text
    assert run.weights == run_of(tmp_path / "alone").weights
    assert run.series == run_of(tmp_path / "alone").series

    before = triptych.load(tmp_path / "run").predict(["3. März 1999"])
    last, newest = (run.directory / "checkpoints" / name for name in ("last.ckpt", "step-00000060.ckpt"))
    newest.unlink()
    last.write_bytes(last.read_bytes()[:1000])
    assert triptych.load(tmp_path / "run").predict(["3. März 1999"]) != before  # of the checkpoint before it

    shutil.copytree(run.directory, tmp_path / "broken")
    (tmp_path / "broken" / "summary.json").unlink()
    for file in (tmp_path / "broken" / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:1000])
    none_good = job(tmp_path, "experiment=dates/classification", "run_dir=broken")
    assert none_good.wait() == 1
    assert "checkpoints is whole; resume=never starts over" in none_good.text
    assert "Traceback" not in none_good.text


def test_fault_7_flipped_bits(
    tmp_path: Path, full: bool, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    file = tmp_path / "a.ckpt"
    write_checkpoint(STATE, file)
    whole = file.read_bytes()
    flips, silent_for_torch = 300 if full else 60, 0
    for _ in range(flips):
        place, bit = chance.randrange(len(whole)), chance.randrange(8)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        assert damage_of(file) is not None, place
        with pytest.raises(RunError):
            read_checkpoint(file)
        try:  # the negative control: without the checksum some of these are loaded as if nothing had happened
            torch.load(file, weights_only=True)
            silent_for_torch += 1
        except Exception:
            continue
    record_property("count", f"{flips} flips; torch.load alone took {silent_for_torch} of them")
    assert silent_for_torch > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1.5 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("background", [False, True])
def test_fault_8_full_disk(background: bool, small_disk: Path) -> None:
    files = CheckpointFiles(background=background)
    good = {"weights": torch.zeros(200_000)}
    files.save_checkpoint(good, small_disk / "step-00000001.ckpt")
    files.wait()
    message = r"step-00000002\.ckpt cannot be written .No space left on device.; ([\d,]+) bytes are free"
    with pytest.raises(RunError, match=message) as failed:  # noqa: PT012
        files.save_checkpoint({"weights": torch.zeros(300_000)}, small_disk / "step-00000002.ckpt")
        files.wait()  # the background tells of it here
    said = re.search(message, str(failed.value))
    assert said is not None
    assert int(said[1].replace(",", "")) == shutil.disk_usage(small_disk).free > 0  # without the temporary file
    assert [f.name for f in small_disk.iterdir()] == ["step-00000001.ckpt"]
    assert torch.equal(read_checkpoint(newest_good(small_disk))["weights"], good["weights"])


def test_fault_8_file_size_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(RunError, match=r"a\.ckpt cannot be written .File too large"):
            write_checkpoint({"weights": torch.zeros(100_000)}, tmp_path / "a.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_fault_8_a_run_on_a_full_disk(small_disk: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]) -> None:
    """It stops with one line; with room again, it goes on."""
    sizes = ["experiment=dates/classification", "shape.d_model=64", "shape.num_layers=2"]
    started = job(small_disk.parent, *sizes, f"run_dir={small_disk}/run")
    assert started.wait() == 1, started.text
    assert "No space left on device" in started.text
    assert "bytes are free" in started.text
    assert "Traceback" not in started.text
    assert not list(small_disk.rglob("*.tmp"))
    assert newest_good(small_disk / "run" / "checkpoints") is not None
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    again = job(small_disk.parent, *sizes, f"run_dir={small_disk}/run")
    assert again.wait() == 0, again.text
    assert "resuming from" in again.text
    assert run_of(small_disk / "run").summary["steps"] == 60
