"""A look inside a network: recorded states and gradients, and what is computed from them."""

from triptych.inspection.attention_heads import ablate_heads, attention_entropy
from triptych.inspection.linear_probe import LinearProbe, control_labels
from triptych.inspection.logit_lens import logit_lens
from triptych.inspection.recording import Recording, record

__all__ = [
    "LinearProbe",
    "Recording",
    "ablate_heads",
    "attention_entropy",
    "control_labels",
    "logit_lens",
    "record",
]
