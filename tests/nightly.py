"""``make nightly``: the tests marked ``nightly``, tests/mutants.py, and a record of the commit that passed both;
``--check``, for ``make release``: whether there is one of this commit."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = Path("outputs/nightly.json")


def find_commit(root: Path) -> str:
    """The commit that is checked out; with ``-dirty`` where files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.check_output(command, cwd=root, text=True).strip()


def write_record(root: Path, commit: str) -> None:
    """Writes that the tests passed now."""
    (root / RECORD).parent.mkdir(exist_ok=True)
    (root / RECORD).write_text(json.dumps({"commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}) + "\n")


def check_record(root: Path) -> str | None:
    """Why a release cannot be made of what is checked out; None: the tests passed at this commit."""
    commit = find_commit(root)
    if commit.endswith("-dirty"):
        return "there are uncommitted changes; commit them, then run make nightly"
    if not (root / RECORD).exists():
        return f"{RECORD}: no such file; run make nightly at commit {commit[:7]}"
    passed = json.loads((root / RECORD).read_text())["commit"]
    return None if passed == commit else f"{RECORD} is of commit {passed[:7]}; run make nightly at commit {commit[:7]}"


def main(arguments: list[str]) -> int:
    """The exit status."""
    if arguments == ["--check"]:
        if problem := check_record(ROOT):
            print(f"error: {problem}", file=sys.stderr)
        return int(problem is not None)
    commit = find_commit(ROOT)
    status = subprocess.run([sys.executable, "-m", "pytest", "-m", "nightly"], cwd=ROOT, check=False).returncode
    status |= subprocess.run([sys.executable, "tests/mutants.py"], cwd=ROOT, check=False).returncode
    if status == 0 and find_commit(ROOT) == commit:
        write_record(ROOT, commit)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
