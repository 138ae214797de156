"""Text from a next-token function: greedy, sampled and by beam search."""

from triptych.models.generation.beam_search import BeamSearch, Hypothesis, beam_search
from triptych.models.generation.constraints import Constraints
from triptych.models.generation.sampling import NextToken, Prompts, Sampling, followed, generate

__all__ = [
    "BeamSearch",
    "Constraints",
    "Hypothesis",
    "NextToken",
    "Prompts",
    "Sampling",
    "beam_search",
    "followed",
    "generate",
]
