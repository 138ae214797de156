"""Which tests ``make quick`` runs, and in which order."""

import subprocess
from pathlib import Path

import pytest
import yaml

import quick


def order(*changes: str) -> list[str]:
    return [str(test.relative_to(quick.ROOT / "tests")) for test in quick.order({Path(change) for change in changes})]


def test_a_changed_test_is_first_and_the_nearest_follow() -> None:
    chosen = order("src/triptych/nn/positions.py", "tests/data/batches/test_batch.py")
    assert chosen[:2] == ["data/batches/test_batch.py", "nn/test_positions.py"]
    tests = quick.ROOT / "tests"
    room = {str(file.relative_to(tests)) for file in (tests / "nn").rglob("test_*.py")}
    assert set(chosen[1 : len(room) + 1]) == room
    assert "models/test_packed.py" in chosen  # which has its network from a fixture alone
    assert chosen.index("models/test_packed.py") < chosen.index("cli/test_runs.py")  # which starts processes


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        ("src/triptych/cli/commands.py", "cli/test_runs.py"),
        ("src/triptych/report/page/gone.css", "report/page/test_render.py"),
        ("src/triptych/search/sweeper.py", "search/test_sweeper.py"),  # whose commands are processes
        ("conf/train.yaml", "config/test_conf.py"),
        ("conf/task/tagging.yaml", "interop/test_folders.py"),
        ("tests/oracle.py", "interop/test_vit.py"),
        ("tests/nn/conftest.py", "nn/test_stack.py"),
        ("README.md", "test_readme.py"),
    ],
)
def test_what_a_change_needs(change: str, needed: str) -> None:
    assert needed in order(change)


def test_what_a_module_names_is_first() -> None:
    assert order("src/triptych/nn/packing.py")[0] == "models/test_packed.py"


@pytest.mark.parametrize("change", ["src/triptych/report/labels.py", "conf/task/tagging.yaml", "README.md"])
def test_what_is_not_reached_is_not_run(change: str) -> None:
    assert "nn/test_stack.py" not in order(change)


def test_what_takes_longer_than_a_minute_is_not_run() -> None:
    assert not [file for file in order("src/triptych/cli/commands.py") if file.startswith("faults/")]


def test_changes_are_those_of_the_branch(tmp_path: Path) -> None:
    """Committed, staged, unstaged and untracked ones; not those that ``main`` has made since."""

    def git(*arguments: str) -> None:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(name + "!" * (tmp_path / name).exists())

    write("committed", "staged", "unstaged", "same", "on_main")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "branch")
    write("committed")
    git("commit", "-a", "-m", "second")
    git("checkout", "main")
    write("on_main")
    git("commit", "-a", "-m", "third")
    git("checkout", "branch")
    write("staged", "unstaged", "untracked")
    git("add", "staged")
    assert quick.find_changes(tmp_path) == {Path(name) for name in ("committed", "staged", "unstaged", "untracked")}


def test_hooks_of_git_run_what_make_check_runs() -> None:
    """But for ``ruff format``, which formats what is committed."""
    (local,) = yaml.safe_load((quick.ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    checked = (quick.ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    commands = [hook["entry"].removesuffix(" --force-exclude") for hook in local["hooks"]]
    assert len(commands) == 4
    assert all(f"\t{command}" in checked for command in commands)
