"""A stack against torch.nn.TransformerEncoder and torch.nn.TransformerDecoder with the same weights."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from parts import make_sizes, make_stack
from small_models import randomize
from triptych.nn import AttentionMask, KeyValueCache, MultiHeadAttention, PackedLayout, Rotary, Stack, sinusoids
from triptych.report.attention_maps import record_attention

D_MODEL, NUM_HEADS, D_FF, NUM_LAYERS = 16, 4, 24, 3


@torch.no_grad()
def to_torch(stack: Stack, copy_attention: Callable[..., Any], *, residual: str, activation: str) -> nn.Module:
    """PyTorch's module with the weights of a stack."""
    options = {
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": residual == "pre_norm",
        "dtype": torch.float64,
    }
    final_norm = nn.LayerNorm(D_MODEL, dtype=torch.float64) if residual == "pre_norm" else None
    if final_norm is not None:
        final_norm.load_state_dict(stack.final_norm.state_dict())
    if stack.has_cross_attention:
        layer = nn.TransformerDecoderLayer(D_MODEL, NUM_HEADS, D_FF, **options)
        other = nn.TransformerDecoder(layer, NUM_LAYERS, final_norm)
    else:
        layer = nn.TransformerEncoderLayer(D_MODEL, NUM_HEADS, D_FF, **options)
        other = nn.TransformerEncoder(layer, NUM_LAYERS, final_norm, enable_nested_tensor=False)
    for mine, theirs in zip(stack.layers, other.layers, strict=True):
        copy_attention(mine.self_attention, theirs.self_attn)
        residuals = [mine.self_residual, mine.feed_forward_residual]
        if stack.has_cross_attention:
            copy_attention(mine.cross_attention, theirs.multihead_attn)
            residuals.insert(1, mine.cross_residual)
        for i, residual in enumerate(residuals, start=1):
            getattr(theirs, f"norm{i}").load_state_dict(residual.norm.state_dict())
        theirs.linear1.load_state_dict(mine.feed_forward.up.state_dict())
        theirs.linear2.load_state_dict(mine.feed_forward.down.state_dict())
    return other.eval()


def padding(batch: int, length: int) -> Tensor:
    """True at real positions: the first row is whole, each next one is two positions shorter."""
    return torch.arange(length) < length - 2 * torch.arange(batch)[:, None]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("residual", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("padded", [False, True])
class TestAgainstPyTorch:
    def stack(self, *, causal: bool, cross_attention: bool, **options: Any) -> Stack:
        stack = make_stack(
            num_layers=NUM_LAYERS, d_model=D_MODEL, num_heads=NUM_HEADS, d_ff=D_FF, causal=causal,
            cross_attention=cross_attention, position="none", **options,
        )  # fmt: skip
        return randomize(stack).double()

    @pytest.mark.parametrize("causal", [False, True])
    def test_without_a_memory(
        self, copy_attention: Callable[..., Any], causal: bool, padded: bool, residual: str, activation: str
    ) -> None:
        options = {"residual": residual, "activation": activation}
        stack = self.stack(causal=causal, cross_attention=False, **options)
        x = torch.randn(3, 7, D_MODEL, dtype=torch.float64)
        real = padding(3, 7) if padded else torch.ones(3, 7, dtype=torch.bool)
        future = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
        expected = to_torch(stack, copy_attention, **options)(
            x, mask=future, src_key_padding_mask=~real if padded else None
        )
        assert_close(stack(x, mask=real if padded else None)[real], expected[real])

    def test_with_a_memory(
        self, copy_attention: Callable[..., Any], padded: bool, residual: str, activation: str
    ) -> None:
        options = {"residual": residual, "activation": activation}
        stack = self.stack(causal=True, cross_attention=True, **options)
        x = torch.randn(3, 7, D_MODEL, dtype=torch.float64)
        memory = torch.randn(3, 5, D_MODEL, dtype=torch.float64)
        real = padding(3, 7) if padded else torch.ones(3, 7, dtype=torch.bool)
        memory_real = padding(3, 5)
        expected = to_torch(stack, copy_attention, **options)(
            x,
            memory,
            tgt_mask=torch.ones(7, 7, dtype=torch.bool).triu(1),
            tgt_key_padding_mask=~real if padded else None,
            memory_key_padding_mask=~memory_real if padded else None,
        )
        found = stack(x, mask=real if padded else None, memory=memory, memory_mask=memory_real if padded else None)
        assert_close(found[real], expected[real])


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_only_pre_norm_has_a_final_norm(norm: str) -> None:
    def states(residual: str) -> tuple[Stack, Tensor]:
        stack = make_stack(num_layers=1, d_model=16, num_heads=4, d_ff=24, causal=False, norm=norm, residual=residual)
        return stack, stack(torch.randn(2, 3, 16))

    pre, y = states("pre_norm")
    assert type(pre.final_norm) is type(pre.layers[0].self_residual.norm)
    assert_close(y.square().mean(-1), torch.ones(2, 3), atol=1e-3, rtol=0)
    post, _ = states("post_norm")
    assert not any(name.startswith("final_norm") for name, _ in post.named_parameters())


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "feed_forward_dropout"])
def test_each_dropout_reaches_every_layer(option: str) -> None:
    options = {"d_model": 16, "num_heads": 4, "d_ff": 24, "causal": True, "cross_attention": True}
    x, memory = torch.randn(2, 2, 3, 16).unbind()
    stack = make_stack(num_layers=2, **options, **{option: 0.5})
    plain = make_stack(num_layers=2, **options)
    plain.load_state_dict(stack.state_dict())
    expected = plain(x, memory=memory)
    for layer in stack.layers:
        assert_close(stack.eval()(x, memory=memory), expected)
        layer.train()
        assert not torch.allclose(stack(x, memory=memory), expected)


def test_one_relative_table_serves_all_layers() -> None:
    stack = make_stack(num_layers=3, d_model=16, num_heads=4, d_ff=24, causal=True, position="relative_bias")
    tables = [parameter for name, parameter in stack.named_parameters() if "table" in name]
    assert [table.shape for table in tables] == [(32, 4)]


def test_the_cache_holds_every_layer_and_the_memory_once() -> None:
    stack = randomize(make_stack(num_layers=2, d_model=16, num_heads=4, d_ff=24, causal=True, cross_attention=True))
    x, memory = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
    cache = KeyValueCache(num_layers=2, capacity=6, memory_length=5)
    found = [stack(part, memory=memory, cache=cache) for part in x.split([1, 3, 2], dim=1)]
    assert_close(torch.cat(found, dim=1), stack(x, memory=memory), atol=1e-5, rtol=1e-5)
    assert cache.length == 6
    assert [layer.length for layer in cache.self_attention] == [6, 6]
    assert [layer.length for layer in cache.cross_attention] == [5, 5]


class TestPositions:
    OPTIONS: ClassVar[dict[str, Any]] = {"num_layers": 1, "d_model": 16, "num_heads": 4, "d_ff": 24, "causal": False}
    PLACES = torch.tensor([[3, 0, 5], [1, 1, 2]])

    @pytest.mark.parametrize("position", ["learned", "sinusoidal"])
    @pytest.mark.parametrize("first", [0, 2])
    @pytest.mark.parametrize("embed_norm", [False, True])
    def test_the_first_block_reads_the_sum(self, position: str, first: int, embed_norm: bool) -> None:
        options = {"position": position, "first": first, "max_length": 6, "embed_norm": embed_norm}
        stack = randomize(make_stack(**self.OPTIONS, **options))
        read: list[Tensor] = []
        stack.layers[0].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
        x = torch.randn(2, 3, 16)
        stack(x, positions=self.PLACES)
        stack(x)
        table = stack.position.table if position == "learned" else sinusoids(8, 16)
        for found, places in zip(read, (self.PLACES, torch.arange(3).expand(2, 3)), strict=True):
            expected = x + torch.stack([table[first + row] for row in places])
            if embed_norm:
                mean, variance = expected.mean(-1, keepdim=True), expected.var(-1, keepdim=True, correction=0)
                expected = (expected - mean) / (variance + 1e-5).sqrt()
                expected = expected * stack.embed_norm.weight + stack.embed_norm.bias
            assert_close(found, expected)

    @pytest.mark.parametrize("position", ["learned", "sinusoidal"])
    def test_beyond_the_table_raises(self, position: str) -> None:
        stack = make_stack(**self.OPTIONS, position=position, max_length=4, first=2)
        stack(torch.randn(1, 4, 16))
        with pytest.raises(ValueError, match=r"5 positions, but shape\.max_length=4"):
            stack(torch.randn(1, 5, 16))
        assert stack.max_positions == 4

    def test_only_a_learned_table_is_trained_or_saved(self) -> None:
        for position in ("none", "rotary", "relative_bias", "sinusoidal", "learned"):
            names = make_stack(**self.OPTIONS, position=position).state_dict()
            assert ("position.table" in names) == (position == "learned")
            assert ("position.table.weight" in names) == (position == "relative_bias")

    @pytest.mark.parametrize("position", ["none", "rotary", "relative_bias"])
    def test_the_other_schemes_have_no_limit(self, position: str) -> None:
        stack = make_stack(**self.OPTIONS, position=position, max_length=4)
        assert stack.max_positions is None
        assert stack(torch.randn(1, 9, 16)).shape == (1, 9, 16)


def test_windows_take_turns() -> None:
    """A change of the first position reaches as far as the windows of the blocks together."""
    options = {"d_model": 16, "num_heads": 4, "d_ff": 24, "causal": True, "position": "none", "residual": "post_norm"}
    x = torch.randn(1, 12, 16, dtype=torch.float64)
    changed = torch.cat((torch.randn(1, 1, 16, dtype=torch.float64), x[:, 1:]), dim=1)
    for num_layers, reach in ((1, 2), (2, 5), (3, 7)):  # a window of w reaches w - 1 positions on
        stack = randomize(make_stack(num_layers=num_layers, sliding_windows=[3, 4], **options)).double()
        differs = (stack(x) != stack(changed)).any(-1)[0]
        assert differs.tolist() == [i <= reach for i in range(12)]
    with pytest.raises(ValueError, match=r"block\.attention\.sliding_windows=\[0\]"):
        make_stack(num_layers=1, sliding_windows=[0], **options)


@pytest.mark.parametrize("documents", [None, (3, 2)], ids=["padded", "packed"])
def test_activation_checkpointing_changes_memory_alone(documents: tuple[int, ...] | None) -> None:
    """Losses and gradients are bitwise the same, with dropout too; less is kept, and nothing is with no backward."""
    gradients, kept = [], []
    for checkpoints in (False, True):
        torch.manual_seed(0)
        stack = make_stack(
            num_layers=3, d_model=16, num_heads=2, d_ff=32, causal=True, dropout=0.2, attention_dropout=0.2,
            cross_attention=documents is None, activation_checkpointing=checkpoints,
        )  # fmt: skip
        x = torch.randn(1, 5, 16, requires_grad=True)
        given = (
            {"memory": torch.randn(1, 4, 16)}
            if documents is None
            else {"documents": PackedLayout(documents, torch.device("cpu"))}
        )
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = stack(x, **given)
        y.square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in stack.parameters())])
        kept.append(sum(sizes))
        with torch.no_grad():
            assert_close(stack.eval()(x, **given), stack(x, **given), rtol=0, atol=0)
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert kept[1] < kept[0] / 2


def test_all_sub_layers_of_a_parallel_block_read_the_same() -> None:
    """Cross-attention, too: x + a(norm(x)) + c(norm(x)) + f(norm(x))."""
    sizes = {"d_model": 16, "num_heads": 4, "d_ff": 24}
    stack = randomize(
        make_stack(num_layers=1, causal=True, cross_attention=True, residual="parallel", position="none", **sizes)
    ).double()
    (block,), x, memory = stack.layers, torch.randn(2, 5, 16).double(), torch.randn(2, 3, 16).double()
    y = block.self_residual.norm(x)
    attended = block.self_attention(y, attention_mask=AttentionMask(causal=True))
    looked = block.cross_attention(y, memory, attention_mask=AttentionMask())
    expected = stack.final_norm(x + attended + looked + block.feed_forward(y))
    assert_close(stack(x, memory=memory), expected)
    assert sum("norm" in name for name, _ in block.named_parameters()) == 2  # the weight and the bias of one


def test_each_layer_turns_by_the_theta_of_its_window() -> None:
    rotary = partial(Rotary, theta=500.0, local_theta=20.0)
    stack = make_stack(
        num_layers=3, d_model=16, num_heads=4, d_ff=24, causal=True, sliding_windows=[2, None], position=rotary
    )
    angles: list[Tensor] = []
    for layer in stack.layers:
        layer.register_forward_pre_hook(
            lambda _, inputs, options: angles.append(options["angles"][0]), with_kwargs=True
        )
    stack(torch.randn(1, 5, 16))
    local, everywhere = (Rotary(make_sizes(), theta=theta).angles(torch.arange(5))[0] for theta in (20.0, 500.0))
    for found, expected in zip(angles, (local, everywhere, local), strict=True):
        assert torch.equal(found, expected)


def test_cross_attention_turns_queries_and_keys_by_their_places() -> None:
    """Scores by complex numbers: query i and key j turn against each other by (i - j) theta^(-2 f / head_dim)."""
    rotary = partial(Rotary, theta=50.0, rotate_cross_attention=True)
    options = {"d_model": 8, "num_heads": 1, "d_ff": 12, "causal": True, "cross_attention": True}
    stack = randomize(make_stack(num_layers=1, position=rotary, **options)).double()
    x, memory, read = torch.randn(1, 5, 8).double(), torch.randn(1, 3, 8).double(), list[Tensor]()
    cross = stack.layers[0].cross_attention
    cross.q.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    with record_attention(stack) as weights:
        stack(x, memory=memory)
    q, k = (torch.complex(*y.chunk(2, -1)) for y in (cross.q(read[0])[0], cross.k(memory)[0]))
    frequencies = 50.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    turn = torch.exp(1j * (torch.arange(5)[:, None] - torch.arange(3))[..., None] * frequencies)
    scores = (q[:, None] * k.conj() * turn).real.sum(-1) / 8**0.5
    assert_close(weights[cross][0, 0], scores.softmax(-1), atol=1e-6, rtol=1e-5)


def kept_bytes(stack: Stack, x: Tensor, given: dict[str, Any]) -> tuple[Tensor, int]:
    """The loss, and the memory that its backward pass needs."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        storages.append(tensor)  # so that no other tensor gets the same place
        return tensor

    storages: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = stack(x, **given).square().mean()
    return loss, sum(kept.values())


@pytest.mark.parametrize("given", ["padded", "packed", "prefix"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", ["alibi", "relative_bias"])
def test_bias_and_mask_are_joined_once(
    position: str, causal: bool, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows and without, results and gradients are those of layers that join them themselves."""
    torch.manual_seed(0)
    stack = make_stack(
        num_layers=6, d_model=16, num_heads=4, d_ff=24, causal=causal, position=position, sliding_windows=[None, 5]
    )
    randomize(stack)
    rows = {
        "padded": {"mask": torch.arange(24) < torch.tensor([[24], [9], [17]])},
        "packed": {"documents": PackedLayout((11, 13), torch.device("cpu"))},
        "prefix": {"mask": torch.arange(24) < torch.tensor([[24], [9], [17]]), "prefix": torch.tensor([3, 4, 5])},
    }[given]
    x, found = torch.randn(1 if given == "packed" else 3, 24, 16, requires_grad=True), []
    for joins in (True, False):
        monkeypatch.setattr(MultiHeadAttention, "joins_bias", joins)
        loss, size = kept_bytes(stack, x, rows)
        gradients = torch.autograd.grad(loss, [x, *(p for p in stack.parameters() if p.requires_grad)])
        found.append((loss, gradients, size))
    (loss, gradients, size), (expected, other_gradients, other_size) = found
    assert_close(loss, expected, rtol=0, atol=0)
    assert_close(gradients, other_gradients, rtol=1e-5, atol=1e-7)
    # causal documents need no mask of their own
    pairs = len(x) * 24**2 if given != "packed" else 13**2 if causal else 2 * 13**2
    joined = 2 if position == "alibi" else 6  # a bias with a gradient is joined in each layer
    assert other_size - size == (6 - joined) * pairs * 4 * 4  # heads, bytes
    with torch.no_grad():
        monkeypatch.setattr(MultiHeadAttention, "joins_bias", True)
        assert_close(stack(x, **rows).square().mean(), expected, rtol=1e-6, atol=1e-6)


def test_alibi_keeps_a_quarter_less() -> None:
    """Eight texts of up to 256 tokens in six layers of width 256: 324 MB where each layer keeps its own mask."""
    torch.manual_seed(0)
    stack = make_stack(num_layers=6, d_model=256, num_heads=8, d_ff=1024, causal=False, position="alibi")
    mask = torch.arange(256) < torch.tensor([256, 64, 128, 200, 96, 160, 240, 80])[:, None]
    _, size = kept_bytes(stack, torch.randn(8, 256, 256), {"mask": mask})
    assert size < 250e6
