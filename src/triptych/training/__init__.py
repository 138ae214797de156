"""What runs beside the training loop."""

from triptych.training.progress import Progress
from triptych.training.tally import CheckpointFacts, Tally

__all__ = ["CheckpointFacts", "Progress", "Tally"]
