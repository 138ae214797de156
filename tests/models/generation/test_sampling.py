"""The distribution of the next token against plain Python, and draws against the distribution."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from triptych.models.generation import NextToken, Sampling, generate

# distinct, so that "the k likeliest" is clear
logit_lists = st.lists(st.integers(-40, 40), min_size=1, max_size=9, unique=True).map(
    lambda values: [value / 10 for value in values]
)
temperatures = st.floats(0.3, 3)


def softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def distribution(logits: list[float], *, temperature: float, top_k: int = 0, top_p: float = 1.0) -> list[float]:
    """softmax(logits / temperature), then the k likeliest, then the fewest of them that reach p."""

    def keep(probabilities: list[float], kept: list[int]) -> list[float]:
        total = sum(probabilities[i] for i in kept)
        return [p / total if i in kept else 0.0 for i, p in enumerate(probabilities)]

    probabilities = softmax([logit / temperature for logit in logits])
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if top_k:
        probabilities = keep(probabilities, order[:top_k])
    if top_p < 1:
        sums = list(itertools.accumulate(probabilities[i] for i in order))
        count = 1 + sum(total < top_p for total in sums)
        probabilities = keep(probabilities, order[:count])
    return probabilities


class Constant(NextToken):
    """A next-token function with the same logits always."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.logits.expand(len(tokens), -1)

    def select(self, rows: Tensor) -> None:
        """Every row is the same."""


def draw(logits: list[float], sampling: Sampling, *, rows: int, max_new_tokens: int = 1) -> list[list[int]]:
    prompt = torch.zeros(rows, 1, dtype=torch.long)
    return generate(Constant(torch.tensor(logits)), prompt, end=-1, max_new_tokens=max_new_tokens, sampling=sampling)


class TestDistribution:
    @given(
        logits=logit_lists, temperature=temperatures, top_k=st.integers(0, 10), top_p=st.just(1.0) | st.floats(0.01, 1)
    )
    def test_is_the_formula(self, logits: list[float], temperature: float, top_k: int, top_p: float) -> None:
        expected, less, more = (
            distribution(logits, temperature=temperature, top_k=top_k, top_p=p)
            for p in (top_p, top_p - 1e-4, top_p + 1e-4)
        )
        assume(top_p == 1 or less == expected == more)  # else float32 may round to either side
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        found = sampling.distribution(torch.tensor([logits, logits[::-1]]))
        assert found[0].tolist() == pytest.approx(expected, abs=1e-5)
        assert found[1].tolist() == pytest.approx(expected[::-1], abs=1e-5)

    @given(logits=logit_lists, temperature=temperatures, top_k=st.integers(1, 10))
    def test_top_k_keeps_k_tokens_and_their_ratios(self, logits: list[float], temperature: float, top_k: int) -> None:
        whole = Sampling(temperature=temperature).distribution(torch.tensor([logits]))[0]
        kept = Sampling(temperature=temperature, top_k=top_k).distribution(torch.tensor([logits]))[0]
        assert int((kept > 0).sum()) == min(top_k, len(logits))
        ratios = kept[kept > 0] / whole[kept > 0]
        assert ratios.tolist() == pytest.approx([float(ratios[0])] * len(ratios), rel=1e-4)
        assert float(whole[kept > 0].min()) > float(whole[kept == 0].max() if (kept == 0).any() else 0)

    @given(logits=logit_lists, temperature=temperatures, top_p=st.floats(0.01, 0.99))
    def test_top_p_keeps_the_smallest_set_that_reaches_p(
        self, logits: list[float], temperature: float, top_p: float
    ) -> None:
        whole = Sampling(temperature=temperature).distribution(torch.tensor([logits]))[0]
        kept = Sampling(temperature=temperature, top_p=top_p).distribution(torch.tensor([logits]))[0] > 0
        assert kept.any()
        assert float(whole[kept].sum()) > top_p - 1e-4
        assert float(whole[kept].sum() - whole[kept].min()) < top_p + 1e-4

    def test_top_p_may_be_reached_exactly(self) -> None:
        kept = Sampling(temperature=1.0, top_p=0.5).distribution(torch.zeros(1, 4))[0]
        assert sorted(kept.tolist()) == [0, 0, 0.5, 0.5]

    @given(logits=logit_lists)
    def test_tends_to_greedy_as_the_temperature_falls(self, logits: list[float]) -> None:
        likeliest = [1.0 if logit == max(logits) else 0.0 for logit in logits]
        distances = [
            sum(abs(a - b) for a, b in zip(distribution(logits, temperature=t), likeliest, strict=True))
            for t in (1.0, 0.1, 0.01, 0.001)
        ]
        assert distances == sorted(distances, reverse=True)
        found = Sampling(temperature=0.001).distribution(torch.tensor([logits]))[0]
        assert found.tolist() == pytest.approx(likeliest)
        assert draw(logits, Sampling(temperature=0.001), rows=3) == draw(logits, Sampling(), rows=3)

    @given(
        logits=logit_lists,
        temperature=st.floats(min_value=0, allow_infinity=False, exclude_min=True),
        top_k=st.integers(0, 10),
        top_p=st.floats(0.01, 1),
        is_masked=st.booleans(),
    )
    @example([0.0, 1.0], 1e-40, 0, 1.0, True)
    @example([0.0, 1.0], 5e-324, 0, 1.0, True)
    @example([0.0, 1.0], 1.7e308, 0, 1.0, True)
    def test_every_finite_temperature_gives_probabilities(
        self, logits: list[float], temperature: float, top_k: int, top_p: float, is_masked: bool
    ) -> None:
        """Also where a token is forbidden."""
        row = torch.tensor([[*logits, -math.inf] if is_masked else logits])
        found = Sampling(temperature, top_k, top_p).distribution(row)[0]
        assert float(found.sum()) == pytest.approx(1, abs=1e-5)
        assert not is_masked or found[-1] == 0
        if temperature < 1e-3:
            assert found.argmax() == row[0].argmax()

    @pytest.mark.parametrize("temperature", [-1.0, math.inf, math.nan])
    def test_no_other_temperature_is_accepted(self, temperature: float) -> None:
        with pytest.raises(ValueError, match=r"^temperature=.*: expected a finite number, 0 \(greedy\) or more$"):
            Sampling(temperature)

    @pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
    def test_a_seed_that_torch_cannot_take_is_rejected(self, seed: int) -> None:
        with pytest.raises(ValueError, match=r"^seed=.*: expected a whole number of at most 64 bits$"):
            Sampling(seed=seed)
        Sampling(seed=2**64 - 1).generator(torch.device("cpu"))
        Sampling(seed=-(2**63)).generator(torch.device("cpu"))


class TestDraws:
    logits = (0.3, -1.0, 2.0, 1.1, 0.0, 0.7, -0.4)

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(temperature=1.0),
            Sampling(temperature=0.7, seed=1),
            Sampling(temperature=2.0, top_k=4),
            Sampling(temperature=1.0, top_p=0.8),
        ],
    )
    def test_follow_the_distribution(self, sampling: Sampling) -> None:
        rows, logits = 10_000, list(self.logits)
        expected = distribution(logits, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
        counts = Counter(row[0] for row in draw(logits, sampling, rows=rows))
        assert set(counts) == {token for token, probability in enumerate(expected) if probability > 0}
        kept = sorted(counts)
        test = chisquare([counts[token] for token in kept], [rows * expected[token] for token in kept])
        assert test.pvalue > 1e-4

    def test_of_each_step_are_new(self) -> None:
        rows = 4000
        pairs = Counter(map(tuple, draw([0.0, 0.0], Sampling(temperature=1.0), rows=rows, max_new_tokens=2)))
        assert chisquare([pairs[pair] for pair in itertools.product((0, 1), repeat=2)]).pvalue > 1e-4

    def test_depend_on_the_seed_alone(self) -> None:
        def drawn(seed: int) -> list[list[int]]:
            torch.rand(1)  # draws from PyTorch's own generator have no influence
            return draw(list(self.logits), Sampling(temperature=1.0, seed=seed), rows=20, max_new_tokens=5)

        assert drawn(0) == drawn(0)
        assert drawn(0) != drawn(1)

    def test_leave_the_global_generator_alone(self) -> None:
        before = torch.get_rng_state()
        draw(list(self.logits), Sampling(temperature=1.0), rows=3)
        assert torch.equal(torch.get_rng_state(), before)

    def test_greedy_takes_the_likeliest(self) -> None:
        assert draw(list(self.logits), Sampling(), rows=2, max_new_tokens=3) == [[2, 2, 2]] * 2

    def test_low_precision_logits_are_sampled_in_float32(self) -> None:
        chosen = Sampling(temperature=1.0).choose(
            torch.tensor([list(self.logits)]).bfloat16(), torch.Generator().manual_seed(0)
        )
        assert chosen.shape == (1,)


@pytest.mark.parametrize(
    "options", [{"temperature": -0.1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": -0.5}]
)
def test_bad_values_raise(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}="):
        Sampling(**options)
