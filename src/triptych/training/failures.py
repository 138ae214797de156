"""Explanations of failed runs, with advice.

Tested by tests/faults/test_health_faults.py and tests/faults/processes/test_process_faults.py.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.trainer.states import TrainerFn

from triptych.config import RunError, counted
from triptych.config.run_settings import RunSettings
from triptych.data import DataModule
from triptych.launch import signals
from triptych.training.lightning_module import TrainingModule
from triptych.training.nonfinite import NonFiniteError


@contextmanager
def explained(settings: RunSettings, trainer: L.Trainer, module: TrainingModule, data: DataModule) -> Iterator[None]:
    """Raises an error with advice if the run fails within the context.

    Raises:
        RunError: names the step, its examples, and the setting to change.
        Interruption: if all processes are asked to end, and the others have ended before this one.
    """
    try:
        yield
    except NonFiniteError as error:
        raise RunError(
            f"{error}. Examples: {data.describe_step(error.step)}. Run the same command with on_nonfinite=skip to "
            f"skip such steps, or resume in another run_dir with resume={settings.run_dir} and optimizer.lr below "
            f"{settings.learning_rate}"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if is_loss_of_a_peer(error):
            # After the last step, a process that is asked to end does not wait for the others.
            if (signum := signals.received()) is not None and trainer.state.fn != TrainerFn.FITTING:
                raise signals.Interruption(signum, trainer.global_step) from error
            said = str(error).splitlines()[0]  # gloo: [place in its source] what happened. Advice
            reason = (said.rpartition(".cc:")[2].partition("] ")[2] or said).partition(". ")[0]
            raise RunError(
                f"after {counted(trainer.global_step, 'step')} another process exited or hung ({reason}). Run the same "
                "command again to resume from the latest checkpoint"
            ) from error
        if isinstance(error, RunError) or not is_out_of_memory(error):
            raise
        loader = settings.loader
        if not module.training:  # the failure was in an evaluation
            advice = f"lower batch.eval_batch_size={loader.eval_batch_size}"
        else:
            parts = settings.trainer.accumulate_grad_batches
            size = "global_size" if loader.max_tokens is None else "max_tokens"
            advice = (
                f"raise trainer.accumulate_grad_batches={parts} (the same step in more parts), or lower "
                f"batch.{size}={getattr(loader, size)} or shape.max_length={settings.max_length}"
            )
        raise RunError(f"out of memory after {counted(trainer.global_step, 'step')}: {advice}") from error


def is_loss_of_a_peer(error: BaseException) -> bool:
    """Returns whether the error is the loss of another process."""
    # NCCL has an exception class for it. Gloo fails in a call of torch.distributed, or its message names gloo. (A
    # tensor on a device without a backend also fails there, but is a bug in Triptych.)
    if "No backend type associated" in str(error):
        return False
    if isinstance(error, dist.DistError) or "gloo" in str(error):
        return True
    return any("torch/distributed/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-1:])


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the error is out of memory, for which the allocators of PyTorch have different messages."""
    said = ("not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in said)
