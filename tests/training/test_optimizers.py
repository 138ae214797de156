"""Schedules against their formulas and torch's schedulers; optimizers against their formulas, and what they decay."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from small_models import build
from triptych.assembly.make_task import without_values
from triptych.training.optimizers import SGD, Adafactor, AdamW, Muon, ScheduleFreeAdamW, decay_groups, optimizer_flops
from triptych.training.schedules import Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay

BASE: dict[str, Any] = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.98, "eps": 1e-9, "weight_decay": 0.1}
WARMUP, STEPS, LEAST = 5, 40, 0.1
OPTIMIZERS: dict[str, Any] = {
    "adamw": AdamW(**BASE),
    "muon": Muon(**BASE, momentum=0.95),
    "schedule_free_adamw": ScheduleFreeAdamW(**BASE),
    "adafactor": Adafactor(lr=1e-2, weight_decay=0.1, beta2_decay=-0.8, eps1=None, eps2=1e-3, d=1.0),
    "sgd": SGD(lr=1e-2, weight_decay=0.1, momentum=0.9, nesterov=True),
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)

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
            Cosine(warmup_steps=WARMUP, max_steps=STEPS, min_lr_factor=LEAST),
            Linear(warmup_steps=WARMUP, max_steps=STEPS, min_lr_factor=LEAST),
            WarmupStableDecay(warmup_steps=WARMUP, max_steps=STEPS, min_lr_factor=LEAST, decay_steps=10),
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
        schedule = Cosine(warmup_steps=warmup_steps, max_steps=STEPS, min_lr_factor=LEAST)
        assert factors(schedule)[warmup_steps:] == pytest.approx(expected)

    @pytest.mark.parametrize("warmup_steps", [0, WARMUP])
    def test_linear(self, warmup_steps: int) -> None:
        steps = STEPS - warmup_steps
        expected = torch_factors(
            lambda optimizer: lr_scheduler.LinearLR(optimizer, start_factor=1, end_factor=LEAST, total_iters=steps - 1),
            steps,
        )
        schedule = Linear(warmup_steps=warmup_steps, max_steps=STEPS, min_lr_factor=LEAST)
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
        schedule = WarmupStableDecay(warmup_steps=WARMUP, max_steps=STEPS, min_lr_factor=LEAST, decay_steps=10)
        assert factors(schedule)[WARMUP:-10] == [1] * (STEPS - WARMUP - 10)
        decay = [1 - (1 - LEAST) * i / 10 for i in range(1, 11)]
        assert factors(schedule)[-10:] == pytest.approx(decay)

    @pytest.mark.parametrize("warmup_steps", [0, WARMUP])
    def test_a_decay_longer_than_the_run_is_linear_after_the_warmup(self, warmup_steps: int) -> None:
        sizes = {"warmup_steps": warmup_steps, "max_steps": STEPS}
        schedule = WarmupStableDecay(**sizes, min_lr_factor=LEAST, decay_steps=10 * STEPS)
        assert factors(schedule) == pytest.approx(factors(Linear(**sizes, min_lr_factor=LEAST)))

    @pytest.mark.parametrize(
        "schedule",
        [
            Cosine(warmup_steps=WARMUP, max_steps=STEPS, min_lr_factor=LEAST),
            Linear(warmup_steps=WARMUP, max_steps=STEPS, min_lr_factor=LEAST),
            WarmupStableDecay(warmup_steps=WARMUP, max_steps=STEPS, min_lr_factor=LEAST, decay_steps=10),
        ],
        ids=lambda schedule: type(schedule).__name__,
    )
    def test_the_last_step_and_all_after_it_have_the_least_factor(self, schedule: Callable[[int], float]) -> None:
        assert factors(schedule)[-2] > LEAST
        assert [schedule(step) for step in (STEPS - 1, STEPS, 10 * STEPS)] == pytest.approx([LEAST] * 3)

    @pytest.mark.parametrize("max_steps", [1, 2, WARMUP])
    def test_a_run_of_warm_up_alone(self, max_steps: int) -> None:
        schedule = Cosine(warmup_steps=WARMUP, max_steps=max_steps, min_lr_factor=0.0)
        assert factors(schedule, max_steps) == [(step + 1) / WARMUP for step in range(max_steps)]

    def test_rejects_a_negative_warm_up(self) -> None:
        with pytest.raises(ValueError, match=r"scheduler\.warmup_steps=-1: expected 0 or more"):
            Constant(warmup_steps=-1)

    @pytest.mark.parametrize("factor", [-0.1, 1.5])
    @pytest.mark.parametrize("kind", [Cosine, Linear])
    def test_rejects_a_factor_that_is_no_share(self, kind: type[Cosine | Linear], factor: float) -> None:
        with pytest.raises(ValueError, match=rf"scheduler\.min_lr_factor={factor}: expected 0 to 1"):
            kind(warmup_steps=0, max_steps=9, min_lr_factor=factor)

    def test_rejects_a_decay_without_steps(self) -> None:
        with pytest.raises(ValueError, match=r"scheduler\.decay_steps=0: expected at least 1"):
            WarmupStableDecay(warmup_steps=0, max_steps=9, min_lr_factor=0.0, decay_steps=0)


def names(model: nn.Module, parameters: Any) -> set[str]:
    wanted = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in wanted}


class TestDecayGroups:
    @every_architecture
    @pytest.mark.parametrize("tie_word_embeddings", [False, True])
    @pytest.mark.parametrize("position", ["learned", "relative_bias", "rotary"])
    @pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
    def test_matrices_decay_and_nothing_else(
        self, architecture: str, tie_word_embeddings: bool, position: str, norm: str
    ) -> None:
        """By name: projections of attention and feed-forward, and the head's unless it is the token table."""
        model = build(architecture, tie_word_embeddings=tie_word_embeddings, position=position, norm=norm, gated=True)
        ends = [f"{part}.weight" for part in "qkvo"] + ["up.weight", "down.weight", "gate.weight"]
        matrices = {name for name, _ in model.named_parameters() if name.endswith(tuple(f".{end}" for end in ends))}
        if not tie_word_embeddings:
            matrices.add("head.output.weight")
        decays, rest = decay_groups(model, 0.1)
        assert (decays["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
        assert names(model, decays["params"]) == matrices
        assert names(model, rest["params"]) == {name for name, _ in model.named_parameters()} - matrices

    @every_architecture
    @pytest.mark.parametrize("tie_word_embeddings", [False, True])
    def test_each_trainable_parameter_is_there_once(self, architecture: str, tie_word_embeddings: bool) -> None:
        model = build(architecture, tie_word_embeddings=tie_word_embeddings)
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

    def test_steps_as_torch_adamw(self) -> None:
        """By torch's plain loop over the parameters; eps is above the rounding errors of gradients that are zero."""
        settings = BASE | {"eps": 1e-3}
        models = [build("full", tie_word_embeddings=True).double() for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        mine = AdamW(**settings)(models[0])
        other = torch.optim.AdamW(
            decay_groups(models[1], settings["weight_decay"]), lr=settings["lr"],
            betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"], foreach=False,
        )  # fmt: skip
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


def give_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Random ones, and what they are. (An optimizer may compute in their place.)"""
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def is_decayed(name: str) -> float:
    return 0.1 if name == "weight" else 0.0


class TestEachOptimizer:
    @every_optimizer
    def test_decays_what_adamw_decays(self, name: str) -> None:
        model = build("full")
        decayed: set[str] = set()
        for group in OPTIMIZERS[name](model).param_groups:
            decayed |= names(model, group["params"]) if group["weight_decay"] else set()
        assert decayed == names(model, decay_groups(model, 0.1)[0]["params"])

    @every_optimizer
    def test_resumes_from_a_saved_state_to_the_last_bit(self, name: str) -> None:
        one = build("decoder_only")
        first = OPTIMIZERS[name](one)
        for _ in range(2):
            give_gradients(one)
            first.step()
        two = copy.deepcopy(one)
        second = OPTIMIZERS[name](two)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for _ in range(2):
            for parameter, gradient in zip(two.parameters(), give_gradients(one).values(), strict=True):
                parameter.grad = gradient
            first.step()
            second.step()
        assert all(map(torch.equal, one.parameters(), two.parameters()))

    @every_optimizer
    def test_a_step_without_gradients_has_not_been(self, name: str) -> None:
        """This is how an update that is not finite is left out."""
        model = build("decoder_only")
        optimizer = OPTIMIZERS[name](model)
        give_gradients(model)
        optimizer.step()
        before, state = weights(model), copy.deepcopy(optimizer.state_dict())
        optimizer.zero_grad()
        optimizer.step()
        assert_close(weights(model), before, rtol=0, atol=0)
        assert_close(optimizer.state_dict()["state"], state["state"], rtol=0, atol=0)
        assert optimizer.state_dict()["param_groups"] == state["param_groups"]

    @every_optimizer
    def test_goes_with_scaled_gradients(self, name: str) -> None:
        """torch's scaler, as under float16: one update is too large and left out, the next is as without a scale."""
        make = replace(OPTIMIZERS[name], fused=False) if name == "adamw" else OPTIMIZERS[name]
        model, other, texts = nn.Linear(4, 3), nn.Linear(4, 3), torch.randn(5, 4)
        other.load_state_dict(model.state_dict())
        optimizer, plain = make(model), make(other)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        before = weights(model)
        for factor in (math.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(factor * model(texts).square().mean()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            if factor > 1:
                assert_close(weights(model), before, rtol=0, atol=0)
        other(texts).square().mean().backward()
        plain.step()
        assert_close(weights(model), weights(other))
        assert not torch.equal(model.weight, before["weight"])

    @every_optimizer
    def test_refusals_name_the_key(self, name: str) -> None:
        kind, settings = type(OPTIMIZERS[name]), OPTIMIZERS[name]
        values = {field: getattr(settings, field) for field in settings.__dataclass_fields__}
        wrong = {"lr": 0.0, "weight_decay": -0.1, "beta1": 1.0, "momentum": 1.0, "beta2_decay": 0.1, "d": 0.5}
        wrong |= dict.fromkeys(("eps", "eps1", "eps2"), -1.0)
        for key in values.keys() & wrong.keys():
            with pytest.raises(ValueError, match=rf"optimizer\.{key}={wrong[key]}: expected"):
                kind(**(values | {key: wrong[key]}))


class TestOperations:
    @every_optimizer
    def test_are_those_of_a_real_step(self, name: str) -> None:
        """As torch counts them on a CPU."""
        model = build("full", tie_word_embeddings=True)
        on_meta = without_values(model)
        give_gradients(model)
        optimizer = OPTIMIZERS[name](model)
        with FlopCounterMode(display=False) as counter:
            optimizer.step()
        assert optimizer_flops(on_meta, OPTIMIZERS[name]) == counter.get_total_flops()

    def test_of_muon_are_five_iterations(self) -> None:
        """Of each matrix X of r x c, r <= c: A = X X', B = b A + c A A, a X + B X. Jordan et al. 2024."""
        model = build("decoder_only").to("meta")
        linears = [m for layer in model.decoder.layers for m in layer.modules() if isinstance(m, nn.Linear)]
        sizes = [sorted(linear.weight.shape) for linear in linears]
        assert optimizer_flops(model, OPTIMIZERS["muon"]) == sum(5 * (4 * r * r * c + 2 * r**3) for r, c in sizes) > 0

    @pytest.mark.parametrize("name", ["adamw", "sgd", "schedule_free_adamw"])
    def test_others_have_no_products(self, name: str) -> None:
        assert optimizer_flops(build("decoder_only").to("meta"), OPTIMIZERS[name]) == 0


class TestMuon:
    @every_architecture
    def test_has_the_matrices_of_the_blocks_alone(self, architecture: str) -> None:
        model = build(architecture, position="learned", gated=True)
        inner, matrices, rest = OPTIMIZERS["muon"](model).param_groups
        everything = {name for name, _ in model.named_parameters()}
        of_blocks = {name for name in everything if ".layers." in name and name.endswith("weight")}
        assert names(model, inner["params"]) == {name for name in of_blocks if "norm" not in name}
        assert names(model, matrices["params"]) == {"head.output.weight"}
        assert names(model, rest["params"]) == everything - names(model, inner["params"]) - {"head.output.weight"}

    def test_a_matrix_steps_along_the_singular_vectors_of_its_momentum(self) -> None:
        """Jordan et al. 2024 in float64: their five steps of Newton and Schulz leave singular values between 0.5 and
        1.5, in bfloat16, where the SVD has 1, but for those that were nearly 0. The scale is that of Liu et al. 2025,
        equation 4."""
        model = build("decoder_only").double()
        optimizer = OPTIMIZERS["muon"](model)
        matrices = names(model, optimizer.param_groups[0]["params"])
        momentum = {name: torch.zeros_like(p) for name, p in model.named_parameters() if name in matrices}
        for _ in range(3):
            before, gradients = weights(model), give_gradients(model)
            optimizer.step()
            after = weights(model)
            for name in matrices:
                momentum[name] = 0.95 * momentum[name] + 0.05 * gradients[name]
                ahead = 0.95 * momentum[name] + 0.05 * gradients[name]
                u, values, vh = torch.linalg.svd(ahead, full_matrices=False)
                is_large = values > 0.05 * values[0]
                assert is_large.sum() >= len(values) - 2
                u, vh = u[:, is_large], vh[is_large]
                step = (1 - 1e-2 * 0.1) * before[name] - after[name]
                core = u.T @ (step / (1e-2 * 0.2 * math.sqrt(max(step.shape)))) @ vh.T
                assert core.diagonal().min() > 0.5
                assert core.diagonal().max() < 1.5
                assert float((core - core.diagonal().diag()).abs().max()) < 0.05

    def test_everything_else_steps_as_torch_adamw(self) -> None:
        model, other = (build("full").double() for _ in range(2))
        other.load_state_dict(model.state_dict())
        mine, adamw = OPTIMIZERS["muon"](model), AdamW(**BASE)(other)
        matrices = names(model, mine.param_groups[0]["params"])
        for _ in range(3):
            for parameter, gradient in zip(other.parameters(), give_gradients(model).values(), strict=True):
                parameter.grad = gradient
            mine.step()
            adamw.step()
        for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-12) == (name not in matrices)


def test_schedule_free_steps_as_the_formula() -> None:
    """Defazio et al. 2024, algorithm 1 with AdamW's steps, during a warm-up: y is trained, x is the average."""
    model = nn.Linear(3, 2).double()
    optimizer = OPTIMIZERS["schedule_free_adamw"](model)
    x, z = weights(model), weights(model)
    v = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    total = 0.0
    for t in range(1, 6):
        lr = 1e-2 * min(t / 3, 1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        y, gradients = weights(model), give_gradients(model)
        total += lr**2
        for name, gradient in gradients.items():
            assert_close(y[name], 0.1 * z[name] + 0.9 * x[name], atol=1e-12, rtol=0)
            v[name] = 0.98 * v[name] + 0.02 * gradient**2
            step = gradient / ((v[name] / (1 - 0.98**t)).sqrt() + 1e-9) + is_decayed(name) * y[name]
            z[name] = z[name] - lr * step
            x[name] = (1 - lr**2 / total) * x[name] + lr**2 / total * z[name]
        optimizer.step()
    optimizer.eval()
    assert_close(weights(model), x, atol=1e-12, rtol=0)


def test_adafactor_steps_as_the_formula() -> None:
    """Shazeer and Stern 2018, algorithms 4 and 5, with torch's decoupled decay."""
    model = nn.Linear(5, 4).double()
    optimizer = OPTIMIZERS["adafactor"](model)
    rows, columns, v = torch.zeros(4), torch.zeros(5), torch.zeros(4)
    for t in range(1, 5):
        before, gradients = weights(model), give_gradients(model)
        optimizer.step()
        share = t**-0.8
        squares = {name: gradient**2 for name, gradient in gradients.items()}
        rows = (1 - share) * rows + share * squares["weight"].sum(1)
        columns = (1 - share) * columns + share * squares["weight"].sum(0)
        v = (1 - share) * v + share * squares["bias"]
        for name, second in (("weight", rows[:, None] * columns / rows.sum()), ("bias", v)):
            update = gradients[name] / second.sqrt()
            rms = float(before[name].square().mean().sqrt())
            alpha = max(1e-3, rms) * min(1e-2, t**-0.5)
            cut = max(1.0, float(update.square().mean().sqrt()))
            expected = (1 - 1e-2 * is_decayed(name)) * before[name] - alpha * update / cut
            assert_close(weights(model)[name], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_steps_as_the_formula(nesterov: bool) -> None:
    model = nn.Linear(3, 2).double()
    optimizer = SGD(lr=1e-2, weight_decay=0.1, momentum=0.9, nesterov=nesterov)(model)
    momentum: dict[str, Tensor] = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for _ in range(3):
        before, gradients = weights(model), give_gradients(model)
        optimizer.step()
        for name, gradient in gradients.items():
            force = gradient + is_decayed(name) * before[name]
            momentum[name] = 0.9 * momentum[name] + force
            step = force + 0.9 * momentum[name] if nesterov else momentum[name]
            assert_close(weights(model)[name], before[name] - 1e-2 * step, atol=1e-12, rtol=0)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValueError, match=r"needs optimizer\.momentum above 0, or optimizer\.nesterov=false"):
        SGD(lr=1e-2, weight_decay=0.0, momentum=0.0, nesterov=True)


def test_the_average_can_be_found_again_or_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.beta1=0"):
        ScheduleFreeAdamW(**(BASE | {"beta1": 0}))
