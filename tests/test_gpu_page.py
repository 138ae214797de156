"""docs/gpu.md is what benchmarks/measure_gpu.py makes of what was found."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import measure_gpu

    yield measure_gpu
    for name in ("measure_gpu", "gpu_rows", "speed_loop", "speed_rows", "page"):
        sys.modules.pop(name, None)


def test_the_page_says_what_is_in_the_json_and_what_is_open(gpu: Any) -> None:
    stored = ROOT / "docs" / "gpu.json"
    found = json.loads(stored.read_text()) if stored.exists() else {}
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert page == gpu.page_of(found)
    for name in gpu.PARTS:
        assert (f"| `make gpu PART={name}` |" in page) == (not found.get(name, {}).get("whole"))


def test_a_part_is_kept_and_shown(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        gpu.Line("ours over theirs", 1.25, "ratio", 1.05, 1.15, "1.2 to 1.3"),
        gpu.Line("ours", 12345.6, "tokens/s"),
    ]
    monkeypatch.setitem(gpu.PARTS, "decoder", gpu.Part("Training", lambda device: lines))
    monkeypatch.setitem(gpu.PARTS, "full", gpu.Part("Not done", lambda device: []))
    gpu.run(["decoder", "full"], gpu.torch.device("cpu"), tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| ours over theirs | 1.25 ratio | 1.05 | 1.15 | 1.2 to 1.3 |" in page
    assert "| ours | 12,346 tokens/s |  |  |  |" in page
    assert "make gpu PART=decoder`" not in page
    assert "make gpu PART=full`" in page
    gpu.run([], gpu.torch.device("cpu"), tmp_path / "page.md")
    assert json.loads((tmp_path / "page.json").read_text())["decoder"]["lines"][0]["found"] == 1.25
