"""Connectionist temporal classification against the enumeration of all paths, in float64."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.models.generation.ctc import collapsed, prefix_beam_search

EVERY = 10**6


def draw(frames: int, tokens: int, seed: int) -> np.ndarray:
    logits = 2 * torch.randn(frames, tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return logits.log_softmax(-1).numpy()


def enumerated(log_probabilities: np.ndarray, blank: int) -> dict[tuple[int, ...], float]:
    """log p of each sequence, by all paths."""
    frames, tokens = log_probabilities.shape
    found: dict[tuple[int, ...], float] = {}
    for path in product(range(tokens), repeat=frames):
        sequence: list[int] = []
        for i, token in enumerate(path):
            if token != blank and path[i - 1 : i] != (token,):
                sequence.append(token)
        score = sum(log_probabilities[t, token] for t, token in enumerate(path))
        found[tuple(sequence)] = np.logaddexp(found.get(tuple(sequence), -np.inf), score)
    return found


@given(frames=st.integers(1, 5), tokens=st.integers(2, 4), blank=st.integers(0, 1), seed=st.integers(0, 2**31))
@settings(max_examples=40)
def test_with_room_for_all_it_is_the_enumeration(frames: int, tokens: int, blank: int, seed: int) -> None:
    log_probabilities = draw(frames, tokens, seed)
    expected = enumerated(log_probabilities, blank)
    found = prefix_beam_search(log_probabilities, blank=blank, num_beams=EVERY)
    assert {tuple(h.tokens): h.score for h in found} == pytest.approx(expected)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert np.logaddexp.reduce([h.score for h in found]) == pytest.approx(0, abs=1e-12)


def searched(log_probabilities: np.ndarray, blank: int, num_beams: int) -> list[tuple[tuple[int, ...], float]]:
    """The same search by its definition: each prefix is extended by every token, then all are ranked."""
    beams = {(): np.array([0.0, -np.inf])}
    for frame in log_probabilities:
        found: dict[tuple[int, ...], np.ndarray] = {}

        def add(prefix: tuple[int, ...], in_token: int, score: float, to: dict[tuple[int, ...], np.ndarray]) -> None:
            scores = to.setdefault(prefix, np.full(2, -np.inf))
            scores[in_token] = np.logaddexp(scores[in_token], score)

        for prefix, (in_blank, in_token) in beams.items():
            for token, score in enumerate(frame):
                if token == blank:
                    add(prefix, 0, np.logaddexp(in_blank, in_token) + score, found)
                elif prefix[-1:] == (token,):
                    add(prefix, 1, in_token + score, found)
                    add((*prefix, token), 1, in_blank + score, found)
                else:
                    add((*prefix, token), 1, np.logaddexp(in_blank, in_token) + score, found)
        ranked = sorted(found, key=lambda prefix: (-np.logaddexp(*found[prefix]), prefix))
        beams = {prefix: found[prefix] for prefix in ranked[:num_beams]}
    return [(prefix, float(np.logaddexp(*scores))) for prefix, scores in beams.items()]


@given(
    frames=st.integers(3, 12),
    tokens=st.integers(2, 12),
    blank=st.integers(0, 1),
    num_beams=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=100)
def test_no_path_to_a_kept_prefix_is_lost(frames: int, tokens: int, blank: int, num_beams: int, seed: int) -> None:
    """The search is one over all tokens, with any number of beams."""
    log_probabilities = draw(frames, tokens, seed)
    expected = searched(log_probabilities, blank, num_beams)
    found = prefix_beam_search(log_probabilities, blank=blank, num_beams=num_beams)
    possible = [(prefix, score) for prefix, score in expected if score > -np.inf]
    assert [tuple(h.tokens) for h in found] == [prefix for prefix, _ in possible]
    np.testing.assert_allclose([h.score for h in found], [score for _, score in possible], rtol=0, atol=1e-9)


@given(frames=st.integers(1, 6), seed=st.integers(0, 2**31))
@settings(max_examples=30)
def test_the_score_is_the_loss_of_torch(frames: int, seed: int) -> None:
    """Blank 0, as torch has it."""
    log_probabilities = draw(frames, 4, seed)
    for hypothesis in prefix_beam_search(log_probabilities, blank=0, num_beams=EVERY)[:20]:
        targets = torch.tensor([hypothesis.tokens], dtype=torch.long)
        loss = F.ctc_loss(
            torch.from_numpy(log_probabilities)[:, None], targets, torch.tensor([frames]),
            torch.tensor([len(hypothesis.tokens)]), reduction="sum",
        )  # fmt: skip
        assert -float(loss) == pytest.approx(hypothesis.score)


@pytest.mark.parametrize("num_beams", [1, 3, 8])
def test_few_beams_find_what_is_clear(num_beams: int) -> None:
    path = [0, 3, 3, 0, 3, 1, 1, 0, 2]
    clear = np.full((len(path), 5), -6.0)
    clear[range(len(path)), path] = -0.01
    best, *others = prefix_beam_search(clear, blank=0, num_beams=num_beams)
    assert best.tokens == [3, 3, 1, 2] == collapsed(path, 0)
    assert len(others) == num_beams - 1


def test_the_best_sequence_is_not_that_of_the_best_path() -> None:
    """Graves et al. 2006, section 3.2: p(blank) = 0.6, p(a) = 0.4 twice; the best path is empty, but "a" has 0.64."""
    log_probabilities = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert collapsed(log_probabilities.argmax(1).tolist(), 0) == []
    best = prefix_beam_search(log_probabilities, blank=0, num_beams=2)[0]
    assert (best.tokens, round(np.exp(best.score), 6)) == ([1], 0.64)
