"""Two towers: what each sees, how well they match, what they refuse."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from parts import dual_encoder
from small_models import pad, randomize
from triptych.data import EncodedExample, collate
from triptych.models.flops import TrainingCost, active_parameters, count_parameters, inputs_of, parameters_by_part
from triptych.tasks.contrastive import contrastive_loss
from triptych.training.callbacks.cost_tracker import shape_of
from triptych.training.optimizers import SGD, Adafactor, AdamW, Muon, ScheduleFreeAdamW

assert_close = partial(torch.testing.assert_close, atol=1e-10, rtol=1e-10)
every_architecture = pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 2, 4, 6, dtype=torch.float64, generator=generator)
    return torch.randint(11, (3, 6), generator=generator), images


@every_architecture
def test_the_product_is_the_scaled_cosine(architecture: str) -> None:
    network = randomize(dual_encoder(architecture)).double()
    tokens, images = inputs()
    texts, seen = network(tokens, source=images).unbind(1)
    stack, source_stack = network.stacks[1], network.stacks[0]
    text = network.head.output(pooled(architecture, stack(network.embedding(tokens))))
    image = network.source_head.output(pooled(architecture, source_stack(network.source_embedding(images))))
    cosines = F.cosine_similarity(text[:, None], image[None], dim=-1)
    assert_close(texts @ seen.T, network.log_scale.exp() * cosines)
    with torch.no_grad():
        network.log_scale.fill_(7)
    texts, seen = network(tokens, source=images).unbind(1)
    assert_close(texts @ seen.T, 100 * cosines)


def pooled(architecture: str, states: torch.Tensor) -> torch.Tensor:
    return states[:, 0] if architecture == "encoder_only" else states[:, -1]


@every_architecture
def test_each_tower_sees_its_own_alone(architecture: str) -> None:
    network = randomize(dual_encoder(architecture)).double()
    tokens, images = inputs()
    before = network(tokens, source=images)
    after = network(tokens.flip(0), source=images)
    assert_close(after[:, 1], before[:, 1])
    assert_close(after[:, 0], before[:, 0].flip(0))
    padded, mask = pad([tokens[:1, :3], tokens[1:2], tokens[2:, :4]])
    some = network.read_text(padded, mask)
    for row, text in zip(some, (tokens[:1, :3], tokens[1:2], tokens[2:, :4]), strict=True):
        assert_close(row, network.read_text(text)[0])


@every_architecture
def test_costs_are_those_of_torchs_counter(architecture: str) -> None:
    with torch.device("meta"):
        network = dual_encoder(architecture, attends_in_windows=True)
    for shape in [(2, 5, 5), (1, 2, 5), (3, 24, 5)]:
        with FlopCounterMode(display=False) as counter:
            network(**inputs_of(network, shape, torch.device("meta"))).sum().backward()
        assert sum(TrainingCost(network).by_part({shape: 1}).values()) == counter.get_total_flops()
    everything, rest = count_parameters(network)
    parts = parameters_by_part(network)
    assert sum(parts.values()) == everything - 1  # the scale stands in no part
    assert [*parts] == ["embedding", *network.stack_names, "head"]
    assert (
        rest == active_parameters(network) - sum(p.numel() for p in network.source_embedding.patches.parameters()) + 1
    )
    item = EncodedExample(torch.tensor([1, 7, 2]).numpy(), torch.tensor([4]).numpy(), torch.zeros(2, 4, 6).numpy())
    assert shape_of(collate([item] * 5), network) == (5, 3, 5)


OPTIMIZERS: dict[str, Any] = {
    "adamw": AdamW(lr=0.3, weight_decay=0.1, beta1=0.9, beta2=0.98, eps=1e-9),
    "muon": Muon(lr=0.3, weight_decay=0.1, momentum=0.95, beta1=0.9, beta2=0.98, eps=1e-9),
    "schedule_free_adamw": ScheduleFreeAdamW(lr=0.3, weight_decay=0.1, beta1=0.9, beta2=0.98, eps=1e-9),
    "adafactor": Adafactor(lr=0.3, weight_decay=0.1, beta2_decay=-0.8, eps1=None, eps2=1e-3, d=1.0),
    "sgd": SGD(lr=0.3, weight_decay=0.1, momentum=0.9, nesterov=True),
}


class TestScale:
    @pytest.mark.parametrize("scale", [100.0, 1000.0])
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_comes_back_into_its_range(self, name: str, scale: float) -> None:
        """Of pairs that do not belong together the loss falls with the scale."""
        torch.manual_seed(0)
        network = dual_encoder("encoder_only")
        tokens, images = torch.randint(11, (8, 6)), torch.randn(8, 2, 4, 6)
        with torch.no_grad():
            network.log_scale.fill_(math.log(scale))
        for parameter in network.parameters():  # else the towers learn to tell the pairs apart
            parameter.requires_grad_(parameter is network.log_scale)
        optimizer = OPTIMIZERS[name](network)
        for _ in range(20):
            optimizer.zero_grad()
            (contrastive_loss(network(tokens, source=images), torch.arange(8)) / 8).backward()
            optimizer.step()
        assert float(network.scale.detach()) < 60

    @given(log_scale=st.floats(-3, 12), gradient=st.floats(-5, 5))
    def test_has_a_gradient_that_never_leads_out_of_it(self, log_scale: float, gradient: float) -> None:
        """Below 100 the exponential's; beyond it that at 100, if it lowers the scale."""
        network = dual_encoder("encoder_only").double()
        with torch.no_grad():
            network.log_scale.fill_(log_scale)
        (gradient * network.scale).sum().backward()
        bounded = min(math.exp(log_scale), 100.0)
        expected = gradient * bounded if log_scale <= math.log(100) or gradient > 0 else 0.0
        assert float(network.scale.detach()) == pytest.approx(bounded)
        assert network.log_scale.grad.item() == pytest.approx(expected)


def test_what_cannot_be() -> None:
    for options, said in (
        ({"causal": True}, "model.encoder.causal=true: an encoder is bidirectional"),
        ({"pool": "none"}, r"model\.head\.pooling=none: each tower outputs one vector; expected first, mean or last"),
        ({"source_outputs": 9}, r"model\.source_head\.num_outputs=9 and model\.head\.num_outputs=7: both towers"),
        ({"initial_scale": 0.0}, r"model\.initial_scale=0.0: expected more than 0, at most 100"),
        ({"initial_scale": 101.0}, r"model\.initial_scale=101"),
        ({"has_source": False}, r"model\.source_embedding=null: a dual encoder needs pairs of a text and an input"),
        ({"max_length": 9}, r"max_length=9: \[cls\] and the patches of an image are 5 positions; set model.source_enc"),
        (
            {"cross_attention": True},
            r"model\.encoder\.cross_attention=true: this model has no encoder output to attend to",
        ),
        ({"source_width": 12}, "d_model=12 and d_model=8: embedding, stacks and head must have one width"),
    ):
        with pytest.raises(ValueError, match=said):
            dual_encoder("encoder_only", **options)
    with pytest.raises(ValueError, match=r"model\.decoder\.causal=false: a decoder must be causal; DualEncoder"):
        dual_encoder("decoder_only", causal=False)
    dual_encoder("decoder_only", source_causal=False)  # CLIP's
