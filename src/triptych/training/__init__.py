"""Training: optimizers, schedules, strategies, callbacks, loggers, and resuming."""

from triptych.training.callbacks.checkpoint_metadata import CheckpointMetadata, checkpoint_metadata
from triptych.training.callbacks.checkpoint_saver import CheckpointSaver, newest_good
from triptych.training.callbacks.ema_weights import EMAWeights
from triptych.training.callbacks.freeze_pretrained import FreezePretrained
from triptych.training.callbacks.loss_spikes import LossSpikeMonitor
from triptych.training.callbacks.progress_bar import ProgressBar
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
    "CheckpointMetadata",
    "CheckpointSaver",
    "EMAWeights",
    "FreezePretrained",
    "LossSpikeMonitor",
    "ProgressBar",
    "TensorBoardLogger",
    "TrainingModule",
    "WandbLogger",
    "check_tensorboard",
    "checkpoint_metadata",
    "damage_of",
    "newest_good",
    "read_checkpoint",
    "write_checkpoint",
]
