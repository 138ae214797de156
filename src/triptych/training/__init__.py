"""What runs beside the training loop."""

from triptych.training.checkpoint_file import damage_of, read_checkpoint, write_checkpoint
from triptych.training.checkpoints import Checkpoints, newest_good
from triptych.training.csv_logger import CSVLogger
from triptych.training.ddp import DDP
from triptych.training.fsdp import FSDP
from triptych.training.health import SpikeReport
from triptych.training.moving_average import MovingAverage
from triptych.training.progress import Progress
from triptych.training.pruning import Pruned, Pruning
from triptych.training.tally import CheckpointFacts, Tally, checkpoint_facts
from triptych.training.tensorboard_logger import TensorBoardLogger, check_tensorboard
from triptych.training.wandb_logger import WandbLogger

__all__ = [
    "DDP",
    "FSDP",
    "CSVLogger",
    "CheckpointFacts",
    "Checkpoints",
    "MovingAverage",
    "Progress",
    "Pruned",
    "Pruning",
    "SpikeReport",
    "Tally",
    "TensorBoardLogger",
    "WandbLogger",
    "check_tensorboard",
    "checkpoint_facts",
    "damage_of",
    "newest_good",
    "read_checkpoint",
    "write_checkpoint",
]
