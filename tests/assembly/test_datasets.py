"""What an evaluation may be limited to, and columns that a table lacks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from command_line import composed
from triptych.assembly.datasets import check_shares, read_corpus
from triptych.data import DataModule
from triptych.data.batches.sampler import evaluation_batches

SHARES = st.floats(0.01, 1.0)


@given(rows=st.integers(1, 60), size=st.integers(1, 20), world_size=st.integers(1, 4), val=SHARES, test=SHARES)
def test_a_share_without_a_batch_is_refused(rows: int, size: int, world_size: int, val: float, test: float) -> None:
    """As Lightning takes it: the whole batches of a share of those that a process has."""
    split: Any = SimpleNamespace(sizes=np.ones(rows))
    data = cast(DataModule, SimpleNamespace(validation=split, test=split, eval_batch_size=size))
    config = OmegaConf.create({"trainer": {"limit_val_batches": val, "limit_test_batches": test}})
    batches = min(len(evaluation_batches(split.sizes, size, rank, world_size)) for rank in range(world_size))
    refused = [name for name, share in (("val", val), ("test", test)) if int(share * batches) == 0]
    if refused:
        with pytest.raises(ValueError, match=f"^trainer.limit_{refused[0]}_batches=.*: no whole batch of {batches} "):
            check_shares(config, data, world_size)
    else:
        check_shares(config, data, world_size)


HEADER = " (no header line? labelled_text has data.columns)"


@pytest.mark.parametrize(
    ("task", "data", "settings", "hint"),
    [
        ("classification", "audio_files", ["label=label"], "; data.target=null leaves it out"),
        ("classification", "image_files", ["label=label"], "; data.target=null leaves it out"),
        ("classification", "audio_files", ["label=x", "target=null"], ""),
        ("transcription", "audio_files", [], ""),
        ("transcription", "audio_files", ["sound=x"], ""),
        ("classification", "labelled_text", ["text=file", "pair=x"], f"{HEADER}; data.pair=null leaves it out"),
        ("classification", "labelled_text", [], HEADER),
    ],
)
def test_a_table_without_a_column(task: str, data: str, settings: list[str], hint: str, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("file\tlabel\na\t0\n")
    overrides = [f"data.{setting}" for setting in [f"dir={tmp_path}", "train=t.tsv", *settings]]
    config = composed(f"task={task}", "model=encoder_only", f"data={data}", *overrides)
    with pytest.raises(ValueError, match="no column") as caught:
        read_corpus(config, data)
    assert str(caught.value).endswith(f"; there are file, label{hint}")
