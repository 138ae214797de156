"""Generates text from a next-token function: greedy, sampled and by beam search."""

from triptych.models.generation.beam_search import BeamSearch, Hypothesis, beam_search
from triptych.models.generation.logits_processors import LogitsProcessors
from triptych.models.generation.sampling import NextToken, Prompts, Sampling, generate, with_streamer

__all__ = [
    "BeamSearch",
    "Hypothesis",
    "LogitsProcessors",
    "NextToken",
    "Prompts",
    "Sampling",
    "beam_search",
    "generate",
    "with_streamer",
]
