"""What an evaluation may be limited to; data workers at exit."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commands import Finished, finish
from triptych.assembly.loaders import check_rank_shares
from triptych.config.run_settings import TrainerSettings
from triptych.data import DataModule
from triptych.data.batches.sampler import RankSlice, evaluation_batches

SHARES = st.floats(0.01, 1.0)


@given(rows=st.integers(1, 60), size=st.integers(1, 20), world_size=st.integers(1, 4), val=SHARES, test=SHARES)
@example(rows=8, size=4, world_size=1, val=0.25, test=1.0)
def test_a_share_without_a_batch_is_rejected(rows: int, size: int, world_size: int, val: float, test: float) -> None:
    """As Lightning takes it: the whole batches of a share of those that a process has."""
    split: Any = SimpleNamespace(sizes=np.ones(rows))
    data = cast(DataModule, SimpleNamespace(validation=split, test=split, eval_batch_size=size))
    trainer = TrainerSettings(
        max_steps=1, accumulate_grad_batches=1, limit_val_batches=val, limit_test_batches=test, accelerator="cpu",
        precision="32-true",
    )  # fmt: skip
    batches = min(len(evaluation_batches(split.sizes, size, RankSlice(rank, world_size))) for rank in range(world_size))
    refused = [name for name, share in (("val", val), ("test", test)) if int(share * batches) == 0]
    if refused:
        with pytest.raises(ValueError, match=f"^trainer.limit_{refused[0]}_batches=.*: less than one of {batches} "):
            check_rank_shares(trainer, data, world_size)
    else:
        check_rank_shares(trainer, data, world_size)


KEPT = """
from torch.utils.data import DataLoader
from triptych.data.batches.datamodule import ignore_in_worker

batches = iter(DataLoader(range(100), num_workers=2, worker_init_fn=ignore_in_worker))
batches.itself = batches  # kept alive until Python exits, as by the traceback of an interruption
next(batches)
"""


def run_program(program: str, cwd: Path) -> Finished:
    return finish(cwd=cwd, environment=dict(os.environ), program=program, seconds=60)


def test_data_workers_that_are_left_do_not_keep_a_process_from_exiting(tmp_path: Path) -> None:
    """They ignore SIGTERM, which Python sends them at exit before it waits for them."""
    finished = run_program(KEPT, tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")


OWN = """
import multiprocessing, time
import triptych.data.batches.datamodule

multiprocessing.get_context("fork").Process(target=lambda: (time.sleep(1), print("done", flush=True))).start()
"""


def test_processes_of_a_program_that_imports_triptych_end_by_themselves(tmp_path: Path) -> None:
    finished = run_program(OWN, tmp_path)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "done\n", "")
