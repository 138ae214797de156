"""Text from a next-token function: greedy, sampled and by beam search."""

from triptych.decoding.beam import BeamSearch, Hypothesis, beam_search
from triptych.decoding.constraints import Constraints
from triptych.decoding.generate import NextToken, Sampling, generate

__all__ = ["BeamSearch", "Constraints", "Hypothesis", "NextToken", "Sampling", "beam_search", "generate"]
