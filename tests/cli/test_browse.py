"""What answers while one types: the commands that only read files."""

import subprocess
import sys


def test_what_answers_while_one_types_imports_no_torch() -> None:
    commands = [
        ["list"], ["completion", "--answer", "triptych train optimizer."], ["show", "shape.d_model"], ["--version"],
    ]  # fmt: skip
    code = f"""
import sys
from triptych.cli import main
for arguments in {commands}:
    sys.argv = ["triptych", *arguments]
    assert main() == 0
    assert "torch" not in sys.modules, arguments
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
