"""Text from a next-token function: greedy and sampled."""

from triptych.decoding.generate import Sampling, generate

__all__ = ["Sampling", "generate"]
