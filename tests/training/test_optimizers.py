"""Schedules against their formulas and torch's schedulers; the optimizer against torch's, and what it decays."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler
from torch.testing import assert_close

from triptych.training.optimizers import AdamW, decay_groups
from triptych.training.schedules import Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay

BASE: dict[str, Any] = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.98, "eps": 1e-9, "weight_decay": 0.1}
WARMUP, STEPS, LEAST = 5, 40, 0.1

every_architecture = pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])


def factors(schedule: Callable[[int], float], steps: int = STEPS) -> list[float]:
    return [schedule(step) for step in range(steps)]


def torch_factors(make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], steps: int) -> list[float]:
    """The learning rates of a scheduler of torch, from a peak of 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


class TestSchedules:
    @pytest.mark.parametrize(
        "schedule",
        [
            Constant(warmup_steps=WARMUP),
            InverseSquareRoot(warmup_steps=WARMUP),
            Cosine(warmup_steps=WARMUP, max_steps=STEPS, min_factor=LEAST),
            Linear(warmup_steps=WARMUP, max_steps=STEPS, min_factor=LEAST),
            WarmupStableDecay(warmup_steps=WARMUP, max_steps=STEPS, min_factor=LEAST, decay_steps=10),
        ],
        ids=lambda schedule: type(schedule).__name__,
    )
    def test_warm_up(self, schedule: Callable[[int], float]) -> None:
        """1/n, 2/n, ..., 1: as torch's LinearLR, then the peak is never passed again."""
        expected = torch_factors(
            lambda optimizer: lr_scheduler.LinearLR(optimizer, start_factor=1 / WARMUP, total_iters=WARMUP - 1), WARMUP
        )
        assert factors(schedule, WARMUP) == pytest.approx(expected)
        assert max(factors(schedule)) == 1

    @pytest.mark.parametrize("warmup_steps", [0, WARMUP])
    def test_constant(self, warmup_steps: int) -> None:
        assert factors(Constant(warmup_steps=warmup_steps))[warmup_steps:] == [1] * (STEPS - warmup_steps)

    @pytest.mark.parametrize("warmup_steps", [0, WARMUP])
    def test_cosine(self, warmup_steps: int) -> None:
        steps = STEPS - warmup_steps
        expected = torch_factors(
            lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - 1, eta_min=LEAST), steps
        )
        schedule = Cosine(warmup_steps=warmup_steps, max_steps=STEPS, min_factor=LEAST)
        assert factors(schedule)[warmup_steps:] == pytest.approx(expected)

    @pytest.mark.parametrize("warmup_steps", [0, WARMUP])
    def test_linear(self, warmup_steps: int) -> None:
        steps = STEPS - warmup_steps
        expected = torch_factors(
            lambda optimizer: lr_scheduler.LinearLR(optimizer, start_factor=1, end_factor=LEAST, total_iters=steps - 1),
            steps,
        )
        schedule = Linear(warmup_steps=warmup_steps, max_steps=STEPS, min_factor=LEAST)
        assert factors(schedule)[warmup_steps:] == pytest.approx(expected)

    @given(warmup_steps=st.integers(1, 50), d_model=st.integers(1, 1024))
    def test_inverse_square_root(self, warmup_steps: int, d_model: int) -> None:
        """Vaswani et al. 2017, equation 3, divided by its peak."""

        def paper(step: int) -> float:
            return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)

        expected = [paper(step) / paper(warmup_steps) for step in range(1, 101)]
        assert factors(InverseSquareRoot(warmup_steps=warmup_steps), 100) == pytest.approx(expected)

    def test_inverse_square_root_without_warm_up(self) -> None:
        expected = [1 / math.sqrt(step) for step in range(1, STEPS + 1)]
        assert factors(InverseSquareRoot(warmup_steps=0)) == pytest.approx(expected)

    def test_warmup_stable_decay(self) -> None:
        """Each of the last ten updates is a tenth of the way further down."""
        schedule = WarmupStableDecay(warmup_steps=WARMUP, max_steps=STEPS, min_factor=LEAST, decay_steps=10)
        assert factors(schedule)[WARMUP:-10] == [1] * (STEPS - WARMUP - 10)
        decay = [1 - (1 - LEAST) * i / 10 for i in range(1, 11)]
        assert factors(schedule)[-10:] == pytest.approx(decay)

    @pytest.mark.parametrize(
        "schedule",
        [
            Cosine(warmup_steps=WARMUP, max_steps=STEPS, min_factor=LEAST),
            Linear(warmup_steps=WARMUP, max_steps=STEPS, min_factor=LEAST),
            WarmupStableDecay(warmup_steps=WARMUP, max_steps=STEPS, min_factor=LEAST, decay_steps=10),
        ],
        ids=lambda schedule: type(schedule).__name__,
    )
    def test_the_last_update_and_all_after_it_have_the_least_factor(self, schedule: Callable[[int], float]) -> None:
        assert factors(schedule)[-2] > LEAST
        assert [schedule(step) for step in (STEPS - 1, STEPS, 10 * STEPS)] == pytest.approx([LEAST] * 3)

    @pytest.mark.parametrize("max_steps", [1, 2, WARMUP])
    def test_a_run_of_warm_up_alone(self, max_steps: int) -> None:
        schedule = Cosine(warmup_steps=WARMUP, max_steps=max_steps, min_factor=0.0)
        assert factors(schedule, max_steps) == [(step + 1) / WARMUP for step in range(max_steps)]

    def test_refuses_a_negative_warm_up(self) -> None:
        with pytest.raises(ValueError, match=r"scheduler\.warmup_steps=-1: expected 0 or more"):
            Constant(warmup_steps=-1)


def names(model: nn.Module, parameters: Any) -> set[str]:
    wanted = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in wanted}


class TestDecayGroups:
    @every_architecture
    @pytest.mark.parametrize("tie_output", [False, True])
    @pytest.mark.parametrize("position", ["learned", "relative", "rotary"])
    @pytest.mark.parametrize("norm", ["layer", "rms"])
    def test_matrices_decay_and_nothing_else(
        self, build: Callable[..., Any], architecture: str, tie_output: bool, position: str, norm: str
    ) -> None:
        """By name: projections of attention and feed-forward, and the head's unless it is the token table."""
        model = build(architecture, tie_output=tie_output, position=position, norm=norm, gated=True)
        ends = [f"{part}.weight" for part in "qkvo"] + ["up.weight", "down.weight", "gate.weight"]
        matrices = {name for name, _ in model.named_parameters() if name.endswith(tuple(f".{end}" for end in ends))}
        if not tie_output:
            matrices.add("head.output.weight")
        decays, rest = decay_groups(model, 0.1)
        assert (decays["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
        assert names(model, decays["params"]) == matrices
        assert names(model, rest["params"]) == {name for name, _ in model.named_parameters()} - matrices

    @every_architecture
    @pytest.mark.parametrize("tie_output", [False, True])
    def test_each_trainable_parameter_is_there_once(
        self, build: Callable[..., Any], architecture: str, tie_output: bool
    ) -> None:
        model = build(architecture, tie_output=tie_output)
        for parameter in model.embedding.parameters():
            parameter.requires_grad_(False)
        grouped = [id(p) for group in decay_groups(model, 0.1) for p in group["params"]]  # type: ignore[attr-defined]
        assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)


class TestAdamW:
    def test_steps_as_the_formula(self) -> None:
        """Loshchilov and Hutter 2019, algorithm 2: the decay is apart from the gradient's moments."""
        model = nn.Linear(3, 2).double()
        expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in expected.items()}
        optimizer = AdamW(**BASE)(model)
        for t in range(1, 4):
            optimizer.zero_grad()
            model(torch.randn(5, 3).double()).square().sum().backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                m, v = moments[name]
                m = 0.9 * m + 0.1 * parameter.grad
                v = 0.98 * v + 0.02 * parameter.grad**2
                moments[name] = m, v
                step = (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
                decay = 0.1 if name == "weight" else 0.0
                expected[name] = expected[name] - 1e-2 * (step + decay * expected[name])
            optimizer.step()
        for name, parameter in model.named_parameters():
            assert_close(parameter.detach(), expected[name], atol=1e-12, rtol=0)

    def test_steps_as_torch_adamw(self, build: Callable[..., Any]) -> None:
        """By torch's plain loop over the parameters; eps is above the rounding errors of gradients that are zero."""
        settings = BASE | {"eps": 1e-3}
        models = [build("full", tie_output=True).double() for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        mine = AdamW(**settings)(models[0])
        other = torch.optim.AdamW(
            decay_groups(models[1], settings["weight_decay"]),
            lr=settings["lr"],
            betas=(settings["beta1"], settings["beta2"]),
            eps=settings["eps"],
            foreach=False,
        )
        for _ in range(3):
            tokens = torch.randint(11, (4, 6))
            for model, optimizer in zip(models, (mine, other), strict=True):
                optimizer.zero_grad()
                model(tokens, tokens).square().sum().backward()
                optimizer.step()
        for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert_close(ours, theirs, atol=1e-12, rtol=0)

    @pytest.mark.parametrize(
        ("key", "value"),
        [("lr", 0.0), ("lr", -1.0), ("lr", math.nan), ("beta1", 1.0), ("beta2", -0.1), ("weight_decay", -0.1)],
    )
    def test_refusals_name_the_key(self, key: str, value: float) -> None:
        with pytest.raises(ValueError, match=rf"optimizer\.{key}={value}: expected"):
            AdamW(**(BASE | {key: value}))
