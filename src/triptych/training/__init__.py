"""What runs beside the training loop."""

from triptych.training.tally import CheckpointFacts, Tally

__all__ = ["CheckpointFacts", "Tally"]
