"""How many parameters a model has, and what tying does to them."""

import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from small_models import build

every_architecture = pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens, tokens) if model.architecture == "full" else model(tokens)
    return cross_entropy(logits.flatten(0, 1), tokens.flatten())


class TestCount:
    @staticmethod
    def count(model: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    def test_of_the_original_base_model(self) -> None:
        """Vaswani et al. 2017, table 3, with 37000 tokens."""
        with torch.device("meta"):
            model = build(
                "full", vocab_size=37000, d_model=512, num_layers=6, num_heads=8, d_ff=2048, residual="post_norm",
                tie_word_embeddings=True,
            )  # fmt: skip
        assert self.count(model) == 63_082_496

    @every_architecture
    @given(
        num_layers=st.integers(1, 3),
        num_heads=st.sampled_from([2, 4]),
        num_kv_heads=st.sampled_from([1, 2]),
        head_dim=st.sampled_from([None, 6]),
        d_ff=st.integers(1, 40),
        norm=st.sampled_from(["layer_norm", "rms_norm"]),
        residual=st.sampled_from(["pre_norm", "post_norm"]),
        gated=st.booleans(),
        bias=st.booleans(),
        position=st.sampled_from(["none", "learned", "sinusoidal", "rotary", "relative_bias"]),
        tie_word_embeddings=st.booleans(),
    )
    def test_is_the_closed_formula(self, architecture: str, **options: Any) -> None:
        d, vocab, max_length = 16, 13, 24
        with torch.device("meta"):
            model = build(architecture, vocab_size=vocab, d_model=d, max_length=max_length, **options)
        layers, heads, kv_heads, d_ff = (options[x] for x in ("num_layers", "num_heads", "num_kv_heads", "d_ff"))
        head_dim, bias = options["head_dim"] or d // heads, int(options["bias"])
        norm = d * (2 if options["norm"] == "layer_norm" else 1)
        attention = 2 * d * head_dim * (heads + kv_heads) + bias * (head_dim * (heads + 2 * kv_heads) + d)
        ups = 2 if options["gated"] else 1
        feed_forward = (ups + 1) * d * d_ff + bias * (ups * d_ff + d)
        per_stack = norm * (options["residual"] == "pre_norm") + 32 * heads * (options["position"] == "relative_bias")
        per_stack += max_length * d * (options["position"] == "learned")
        stack = layers * (attention + feed_forward + 2 * norm) + per_stack
        stacks = stack if architecture != "full" else 2 * stack + layers * (attention + norm)
        assert self.count(model) == vocab * d + stacks + (0 if options["tie_word_embeddings"] else vocab * d)

    @every_architecture
    def test_a_model_on_the_meta_device_computes_shapes(self, architecture: str) -> None:
        for position in ("none", "learned", "sinusoidal", "rotary", "relative_bias"):
            with torch.device("meta"):
                model = build(architecture, position=position)
                tokens = torch.zeros(2, 5, dtype=torch.long)
                logits = model(tokens, tokens) if architecture == "full" else model(tokens)
            assert logits.shape == (2, 5, 11)
            assert logits.device.type == "meta"


@every_architecture
class TestTying:
    def test_is_one_tensor_after_saving_and_loading(self, architecture: str) -> None:
        saved, loaded = (build(architecture, tie_word_embeddings=True) for _ in range(2))
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, weights_only=True))
        for model in (saved, loaded):
            assert model.head.output.weight is model.embedding.tokens.weight
            names = [name for name, _ in model.named_parameters() if name.endswith("tokens.weight")]
            assert names == ["embedding.tokens.weight"]
            assert "head.output.weight" not in dict(model.named_parameters())
        tokens = torch.randint(11, (2, 5))
        assert torch.equal(loss_of(loaded, tokens), loss_of(saved, tokens))

    def test_the_gradient_is_the_sum_of_both_uses(self, architecture: str) -> None:
        tied, untied = build(architecture, tie_word_embeddings=True), build(architecture)
        untied.load_state_dict(tied.state_dict())
        tokens = torch.randint(11, (2, 5))
        for model in (tied, untied):
            loss_of(model, tokens).backward()
        expected = untied.embedding.tokens.weight.grad + untied.head.output.weight.grad
        assert_close(tied.embedding.tokens.weight.grad, expected)

    def test_stays_after_a_step(self, architecture: str) -> None:
        model = build(architecture, tie_word_embeddings=True)
        before = model.head.output.weight.detach().clone()
        optimizer = torch.optim.AdamW(model.parameters())
        loss_of(model, torch.randint(11, (2, 5))).backward()
        optimizer.step()
        assert not torch.equal(model.head.output.weight, before)
        assert model.head.output.weight is model.embedding.tokens.weight

    def test_of_other_shapes_raises(self, architecture: str) -> None:
        with pytest.raises(
            ValueError, match=r"model\.tie_word_embeddings=true: the head has 3 outputs, the vocabulary 11"
        ):
            build(architecture, num_outputs=3, tie_word_embeddings=True)

    def test_untied_are_two(self, architecture: str) -> None:
        model = build(architecture)
        assert model.head.output.weight.data_ptr() != model.embedding.tokens.weight.data_ptr()
