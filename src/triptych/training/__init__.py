"""Training: optimizers, schedules, strategies, callbacks, loggers, and resuming."""

from triptych.training.callbacks.checkpoint_facts import CheckpointFacts, checkpoint_facts
from triptych.training.callbacks.checkpoints import Checkpoints, newest_good
from triptych.training.callbacks.moving_average import MovingAverage
from triptych.training.callbacks.new_weights_first import NewWeightsFirst
from triptych.training.callbacks.progress import Progress
from triptych.training.callbacks.spikes import SpikeReport
from triptych.training.checkpoint_file import damage_of, read_checkpoint, write_checkpoint
from triptych.training.lightning_module import TrainingModule
from triptych.training.loggers.csv import CSVLogger
from triptych.training.loggers.tensorboard import TensorBoardLogger, check_tensorboard
from triptych.training.loggers.wandb import WandbLogger
from triptych.training.strategies import DDP, FSDP

__all__ = [
    "DDP",
    "FSDP",
    "CSVLogger",
    "CheckpointFacts",
    "Checkpoints",
    "MovingAverage",
    "NewWeightsFirst",
    "Progress",
    "SpikeReport",
    "TensorBoardLogger",
    "TrainingModule",
    "WandbLogger",
    "check_tensorboard",
    "checkpoint_facts",
    "damage_of",
    "newest_good",
    "read_checkpoint",
    "write_checkpoint",
]
