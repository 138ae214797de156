"""Blocks, losses and decoding on a GPU, against float64 on the CPU and against ``transformers``."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from interop import test_decoder_families, test_full_families
from oracle import Case, decoded_alike
from parts import make_stack
from small_models import random_model
from triptych.models.generation import BeamSearch, Sampling, beam_search, generate
from triptych.models.generation.decode_step import DecodeStepPool
from triptych.nn import AttentionMask, PackedLayout, Targets, attend

pytestmark = pytest.mark.gpu

CASES = [*test_decoder_families.CASES, *test_full_families.CASES]

TYPES = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
"""How far results may be from float64: a few roundings of numbers of about 1."""


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def both(
    compute: Callable[..., torch.Tensor], device: torch.device, dtype: torch.dtype, *tensors: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Result and gradients on the device, and in float64 on the CPU, of the same rounded inputs."""
    found = []
    for place, kind in ((device, dtype), (torch.device("cpu"), torch.float64)):
        inputs = [x.to(dtype).to(place, kind).requires_grad_() for x in tensors]
        y = compute(*inputs)
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
        gradients = torch.autograd.grad((y * weights.to(y)).sum(), inputs)
        found.append([x.detach().cpu().double() for x in (y, *gradients)])
    return found[0], found[1]


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES.items())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [24, 64, 100, 128])
def test_a_packed_row_is_its_documents(
    width: int, causal: bool, dtype: str, tolerance: float, device: torch.device
) -> None:
    """By the kernel for packed rows where it can be had: 16 bits, and a width that is a multiple of 8."""
    lengths, generator = [5, 130, 1, 64], torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, sum(lengths), width, generator=generator)
    k, v = torch.randn(2, 1, 2, sum(lengths), width, generator=generator)

    def packed(*tensors: torch.Tensor) -> torch.Tensor:
        documents = PackedLayout(lengths, tensors[0].device)
        return attend(*tensors, AttentionMask.within(documents, causal=causal))

    def alone(*tensors: torch.Tensor) -> torch.Tensor:
        sides = zip(*(x.split(lengths, 2) for x in tensors), strict=True)
        return torch.cat([attend(*side, AttentionMask(causal=causal)) for side in sides], 2)

    on_device, _ = both(packed, device, getattr(torch, dtype), q, k, v)
    _, expected = both(alone, device, getattr(torch, dtype), q, k, v)
    assert_close(on_device, expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES.items())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("length", [33, 200])
def test_attention_with_masks_and_windows(
    length: int, window: int | None, causal: bool, dtype: str, tolerance: float, device: torch.device
) -> None:
    """Rows that see nothing give zeros, and no gradient that is not finite."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, length, 16, generator=generator)
    real = torch.arange(length) >= torch.tensor([[0], [9], [length]])

    def compute(*tensors: torch.Tensor) -> torch.Tensor:
        place = tensors[0].device
        attention_mask = AttentionMask.of(
            num_queries=length, num_keys=length, causal=causal, key_mask=real.to(place), device=place, window=window
        )
        return attend(*tensors, attention_mask)

    on_device, expected = both(compute, device, getattr(torch, dtype), q, k, v)
    assert all(x.isfinite().all() for x in on_device)
    assert_close(on_device, expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES.items())
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "relative_bias"])
def test_a_stack(position: str, dtype: str, tolerance: float, device: torch.device) -> None:
    """Every scheme of positions; weights rounded to the type."""
    torch.manual_seed(0)
    stack = make_stack(
        num_layers=3, d_model=64, num_heads=4, d_ff=128, causal=True, position=position, max_length=80
    ).to(getattr(torch, dtype))
    x = torch.randn(2, 70, 64)
    twins = {}
    for place, kind in ((device, getattr(torch, dtype)), (torch.device("cpu"), torch.float64)):
        twins[place.type, kind] = make_stack(
            num_layers=3, d_model=64, num_heads=4, d_ff=128, causal=True, position=position, max_length=80
        ).to(place, kind)
        twins[place.type, kind].load_state_dict(stack.state_dict())
    on_device, expected = both(lambda x: twins[x.device.type, x.dtype](x), device, getattr(torch, dtype), x)
    assert_close(on_device, expected, rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only", "full"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_targets(smoothing: float, architecture: str, device: torch.device) -> None:
    """The chunks in which it is computed, and their gradients, against the logits' in float64."""
    model = random_model(architecture, vocab_size=300)
    tokens = torch.randint(300, (2, 20), generator=torch.Generator().manual_seed(0))
    given = (tokens, tokens.flip(1)) if architecture == "full" else (tokens,)
    labels = tokens.flatten().roll(1)
    logits = model(*given)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels, reduction="sum", label_smoothing=smoothing
    )
    gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    model = model.float().to(device)
    targets = Targets(torch.arange(40, device=device), labels.to(device), smoothing)
    loss = model(*(x.to(device) for x in given), targets=targets)
    assert_close(loss.detach().cpu().double(), expected.detach(), rtol=1e-5, atol=0)
    ours = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    for found, wanted in zip(ours, gradients, strict=True):
        if wanted is not None:
            assert_close(found.cpu().double(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("case", [case for case in CASES if case.generates], ids=lambda case: case.name)
def test_decoding_gives_the_tokens_of_transformers(case: Case, num_beams: int, device: torch.device) -> None:
    """By CUDA graphs."""
    steps = DecodeStepPool()
    assert decoded_alike(case, num_beams=num_beams, device=device, steps=steps)
    if device.type == "cuda":
        assert steps._idle
        assert all(step._graph for step in steps._idle)


@pytest.mark.parametrize("architecture", ["decoder_only", "full"])
@pytest.mark.parametrize("casts", [False, True], ids=["float32", "autocast"])
def test_a_graph_gives_what_its_kernels_give(casts: bool, architecture: str, device: torch.device) -> None:
    """Rows end at different times, and weights change in their places. What is captured waits for nothing but what the
    GPU was told to copy."""
    network = random_model(architecture, vocab_size=50, max_length=64).float().to(device).eval()
    graphs, tokens = (
        DecodeStepPool(captures=device.type == "cuda"),
        torch.randint(50, (8, 6), generator=torch.Generator().manual_seed(0)).to(device),
    )
    prompt = tokens[:, :1] if architecture == "full" else tokens
    options = {"end": 7, "max_new_tokens": 40}

    def decoded() -> list[Any]:
        found = []
        for search in (partial(generate, sampling=Sampling()), partial(beam_search, search=BeamSearch(4))):
            next_token = network.continuation(*[tokens] * (architecture == "full"), None, capacity=46)
            found.append(search(next_token, prompt, **options))
        return found

    with torch.autocast(device.type, torch.bfloat16, enabled=casts):
        for _ in range(2):
            network.decode_steps = DecodeStepPool(captures=False)
            expected = decoded()
            network.decode_steps = graphs
            assert decoded() == expected
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                again = decoded()
            finally:
                if device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
            assert again == expected
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            torch.clear_autocast_cache()  # which keeps what the weights were
