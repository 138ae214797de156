"""Recorded weights against what the networks' own kernels gave and against torch.nn; rollout against its definition."""

import itertools
import json
from collections.abc import Callable, Sequence
from html import unescape
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.testing import assert_close

import tiny
from command_line import complete
from parts import POSITIONS, QK_NORMS, RESIDUALS, make_sizes
from predicting import in_double, predict
from small_models import random_model, randomize
from triptych import attention as old_name
from triptych.assembly.make_task import make_task
from triptych.assembly.read_data import train_tokenizer
from triptych.config import build as build_node
from triptych.config.run_settings import RunSettings
from triptych.data import Example, Image, Splits
from triptych.models.generation import BeamSearch
from triptych.nn import AttentionMask, MultiHeadAttention, sliding_window
from triptych.report.attention_maps import attention_maps, record_attention, rollout
from triptych.report.page.attention_charts import draw_attention
from triptych.report.samples import attention_record, is_recordable, list_maps
from triptych.tasks import Predictor, Task
from triptych.tasks.forward import reads_token_types
from triptych.tasks.generative import GenerativeTask

VOCAB = 11

blocks = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["layer_norm", "rms_norm"]),
        "residual": st.sampled_from([*RESIDUALS]),
        "bias": st.booleans(),
        "num_kv_heads": st.sampled_from([None, 2, 1]),
        "head_dim": st.sampled_from([None, 8]),
        "scale": st.sampled_from([None, 1.0]),
        "qk_norm": st.sampled_from(QK_NORMS),
        "softcap": st.sampled_from([None, 2.0]),
        "sliding_windows": st.sampled_from([None, [3], [None, 2]]),
    }
)


def attentions(network: nn.Module) -> dict[str, MultiHeadAttention]:
    return {name: module for name, module in network.named_modules() if isinstance(module, MultiHeadAttention)}


def visible(network: Any, name: str, mask: Tensor, source_mask: Tensor | None) -> Tensor:
    """Written out: which query may attend to which key, in the attention of this name."""
    stack, _, layer, kind = name.split(".")
    queries = keys = source_mask if stack == "encoder" and source_mask is not None else mask
    if kind == "cross_attention":
        assert source_mask is not None
        keys = source_mask
    window = network.get_submodule(stack).windows[int(layer)] if kind == "self_attention" else None
    causal = stack == "decoder" and kind == "self_attention"
    return torch.tensor(
        [
            [
                [
                    bool(keys[b, j]) and (not causal or j <= i) and (window is None or abs(i - j) < window)
                    for j in range(keys.shape[1])
                ]
                for i in range(queries.shape[1])
            ]
            for b in range(len(keys))
        ]
    )


class TestRecorded:
    @pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])
    @pytest.mark.parametrize("position", POSITIONS)
    @settings(max_examples=5)
    @given(block=blocks, least_block=st.sampled_from([1, sliding_window.LEAST_BLOCK]))
    def test_weights_times_values_is_what_the_attention_gave(
        self, architecture: str, position: str, block: dict[str, Any], least_block: int
    ) -> None:
        """Also where the network attends to a text in blocks, which rounds otherwise."""
        network = random_model(architecture, position=position, **block)
        tokens, mask = torch.randint(VOCAB, (3, 6)), torch.ones(3, 6, dtype=torch.bool)
        mask[1, 4:] = False
        source, source_mask = torch.randint(VOCAB, (3, 8)), torch.ones(3, 8, dtype=torch.bool)
        source_mask[2, 3:] = False
        inputs = (source, tokens, source_mask, mask) if architecture == "full" else (tokens, mask)
        values: dict[nn.Module, Tensor] = {}
        results: dict[nn.Module, Tensor] = {}
        for module in attentions(network).values():
            owner = {module.v: module, module.o: module}
            module.v.register_forward_hook(lambda m, _, y, owner=owner: values.update({owner[m]: y}))
            module.o.register_forward_pre_hook(lambda m, x, owner=owner: results.update({owner[m]: x[0]}))
        with patch.multiple(sliding_window, LEAST_BLOCK=least_block, LEAST_BLOCKS=2):
            expected = network(*inputs)
            with record_attention(network) as weights:
                found = network(*inputs)
            is_local = any(stack.local(window, 8) for stack in network.stacks for window in stack.windows)
        tolerance = 1e-12 if is_local else 0
        assert_close(found, expected, rtol=tolerance, atol=tolerance)
        assert list(weights) == list(attentions(network).values())
        for name, module in attentions(network).items():
            w = weights[module]
            v = values[module].unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
            v = v.repeat_interleave(w.shape[1] // v.shape[1], dim=1)
            assert_close((w @ v).transpose(1, 2).flatten(2), results[module])
            seen = visible(network, name, mask, source_mask if architecture == "full" else None)[:, None].expand_as(w)
            assert (w[~seen] == 0).all()
            assert (w[seen] > 0).all()
            assert_close(w.sum(-1), seen.any(-1).double())

    def test_equals_pytorch(self) -> None:
        attention = randomize(MultiHeadAttention(make_sizes(d_model=12, num_heads=3), dropout=0.5)).train()
        other = nn.MultiheadAttention(12, 3, batch_first=True)
        with torch.no_grad():
            other.in_proj_weight.copy_(torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]))
            other.in_proj_bias.copy_(torch.cat([attention.q.bias, attention.k.bias, attention.v.bias]))
        x = torch.randn(2, 5, 12)
        _, expected = other(x, x, x, attn_mask=torch.ones(5, 5).triu(1).bool(), average_attn_weights=False)
        with record_attention(attention) as weights:
            attention(x, attention_mask=AttentionMask(causal=True))
        assert_close(weights[attention], expected)

    @pytest.mark.parametrize("architecture", ["decoder_only", "full"])
    @pytest.mark.parametrize("position", ["rotary", "partial rotary", "relative_bias", "alibi"])
    def test_a_cache_changes_nothing(self, architecture: str, position: str) -> None:
        network = random_model(architecture, position=position, num_kv_heads=2, sliding_windows=[None, 3])
        tokens, source = torch.randint(VOCAB, (1, 6)), torch.randint(VOCAB, (1, 4))
        with record_attention(network) as expected:
            network(source, tokens) if architecture == "full" else network(tokens)
        with record_attention(network) as found:
            given = (source, None) if architecture == "full" else (None,)
            next_token = network.continuation(*given, capacity=6)
            for chunk in tokens.split((3, 1, 2), dim=1):
                next_token(chunk)
        assert found.keys() == expected.keys()
        for module, weights in expected.items():
            assert_close(found[module], weights)

    def test_documents_of_a_packed_row_are_rows(self) -> None:
        network = random_model("decoder_only", position="rotary")
        tokens = torch.randint(VOCAB, (1, 7))
        with record_attention(network) as packed:
            network(tokens, lengths=[4, 3])
        with record_attention(network) as alone:
            network(tokens[:, 4:])
        for module, weights in alone.items():
            assert_close(packed[module][1:, :, :3, :3], weights)

    def test_ends_with_the_context(self) -> None:
        network = random_model("encoder_only")
        with record_attention(network) as weights:
            pass
        network(torch.randint(VOCAB, (1, 4)))
        assert weights == {}


EXPERIMENTS = [
    "translation_full", "translation_decoder_only", "classification_encoder_only", "pairs_encoder_only",
    "tagging_decoder_only", "question_answering_full", "language_modeling_full", "language_modeling_decoder_only",
    "denoising_encoder_only",
]  # fmt: skip


@pytest.fixture
def task_of(chosen: Callable[..., DictConfig]) -> Callable[..., Task]:
    """The task of an experiment, with random weights, in float64."""

    def make(*overrides: str) -> Task:
        config = chosen(*tiny.NETWORK, "shape.num_layers=2", *overrides)
        corpus = build_node(config, "data")
        tokenizer = train_tokenizer(config, corpus.splits())
        complete(config, tokenizer, corpus.info)
        task = in_double(make_task(RunSettings.of(config), tokenizer, corpus.info))
        if isinstance(task, GenerativeTask):
            task.max_new_tokens = 8
        randomize(task.network)
        return task

    return make


class TestAttentionMaps:
    @pytest.mark.parametrize("experiment", EXPERIMENTS)
    def test_is_one_pass_over_what_was_read_and_written(self, task_of: Callable[..., Task], experiment: str) -> None:
        task = task_of(*tiny.dates(experiment), *tiny.DATES)
        given: Any = ("month", "5 März 98") if task.reads_pairs else "5 März 98"
        (maps,) = attention_maps(Predictor(task), [given])
        (prediction,) = predict(task, [given])
        assert maps.prediction == prediction
        ids = {name: i for i, name in enumerate(task.tokenizer.ids_to_tokens(range(task.tokenizer.vocab_size)))}
        network: Any = task.network
        only = maps.encoder if task.architecture == "encoder_only" else maps.decoder
        assert only is not None
        tokens = torch.tensor([[ids[name] for name in only.queries]])
        with record_attention(network) as expected:
            if task.architecture == "full":
                assert maps.cross is not None
                logits = network(torch.tensor([[ids[name] for name in maps.cross.keys]]), tokens)
            elif reads_token_types(task.network):
                second = only.queries.index("<sep>") + 1
                logits = network(tokens, token_types=(torch.arange(tokens.shape[1]) >= second).long()[None])
            else:
                logits = network(tokens)
        # from the row that is named by a token, the network wrote it
        written = () if maps.decoder is None else maps.decoder.written
        assert bool(written) == (isinstance(task, GenerativeTask) and task.architecture != "encoder_only")
        if written:
            assert [ids[name] for name in written] == logits[0, len(only.queries) - len(written) :].argmax(-1).tolist()
        found = {"encoder": maps.encoder, "decoder": maps.decoder}
        for name, found_map in found.items():
            assert (found_map is not None) == hasattr(network, name)
            if found_map is not None:
                layers = [expected[layer.self_attention][0] for layer in getattr(network, name).layers]
                assert_close(found_map.weights, torch.stack(layers))
                assert found_map.keys == found_map.queries
        assert (maps.cross is not None) == (task.architecture == "full")
        if maps.cross is not None:
            layers = [expected[layer.cross_attention][0] for layer in network.decoder.layers]
            assert_close(maps.cross.weights, torch.stack(layers))
            assert "".join(maps.cross.keys).startswith("<bos>")

    @pytest.mark.parametrize("tables", [[], ["model/embedding@model.source_embedding=tokens"]], ids=["one", "two"])
    def test_names_the_tokens_of_a_translation(self, task_of: Callable[..., Task], tables: list[str]) -> None:
        task: Any = task_of(*tiny.dates("translation_full"), *tiny.DATES, "task.num_beams=3", *tables)
        maps, _ = attention_maps(Predictor(task), ["5 März", "Mai"])
        assert maps.cross.keys == ("<bos>", *"5 März", "<eos>")
        written = "".join(name for name in maps.cross.queries[1:] if name not in ("<pad>", "<bos>", "<sep>", "<mask>"))
        assert str(maps.prediction).startswith(written)  # what was written last is not read any more
        assert len(written) > 3
        assert maps.cross.written[:-1] == maps.cross.queries[1:]
        assert task.search == BeamSearch(3, 1.0, task.search.early_stopping)

    def test_names_the_patches_of_an_image(self, task_of: Callable[..., Task]) -> None:
        task = task_of("experiment=digits/encoder_only")
        task.network.float()
        assert task.image_shape is not None
        image: Image = torch.rand(task.image_shape).numpy()
        (maps,) = attention_maps(Predictor(task), [image])
        assert maps.encoder is not None
        assert maps.encoder.queries[:3] == ("<cls>", "1,1", "1,2")
        assert len(maps.encoder.queries) == maps.encoder.weights.shape[2] == task.network.embedding.length


def tokens_of(places: Sequence[str]) -> list[str]:
    """Without their numbers."""
    return [unescape(place.partition(": ")[2]) for place in places]


class TestPictures:
    @pytest.mark.parametrize("experiment", ["translation_full", "translation_decoder_only", "language_modeling_full"])
    def test_show_each_row_that_writes_and_no_other(self, task_of: Callable[..., Task], experiment: str) -> None:
        """The prompt of the decoder-only model is longer than 24 tokens."""
        task: Any = task_of(*tiny.dates(experiment), *tiny.DATES)
        text = "Donnerstag, 5. März 1998"
        splits = Splits([], [], [Example(text, target="1998-03-05")])
        (sample,) = json.loads(json.dumps(attention_record(task, splits)))["samples"]
        (maps,) = attention_maps(Predictor(task), [task.model_input(splits.test[0])])
        figures = draw_attention(sample, task.architecture, "model")
        assert maps.decoder is not None
        for name, found in (("decoder rollout", maps.decoder), ("alignment", maps.cross or maps.decoder)):
            drawn = figures[name]["data"]
            assert tokens_of(drawn[0]["y"]) == list(found.written)
            assert tokens_of(drawn[0]["x"]) == list(found.keys)
            assert "rows: generated tokens; columns" in figures[name]["layout"]["title"]["subtitle"]["text"]
        expected = found.weights[:, :, -len(found.written) :].mean(1)
        for trace, weights in zip(drawn, expected, strict=True):
            assert_close(torch.tensor(trace["z"]), weights.float(), atol=1.1e-3, rtol=0)
        assert next(iter(figures)) == "alignment"

    @pytest.mark.parametrize("num_layers", [4, 5, 12])
    def test_each_alignment_is_large_enough_to_read(self, num_layers: int) -> None:
        tokens = [str(i) for i in range(8)]
        weights = torch.full((num_layers, 2, 8, 8), 125).tolist()
        kind = {"queries": tokens, "keys": tokens, "written": tokens, "num_tokens": 8, "weights_x1000": weights}
        figures = draw_attention({"encoder": None, "decoder": None, "cross": kind}, "full", "model")
        aligned = {name: figure for name, figure in figures.items() if name.startswith("alignment")}
        panels = [trace for figure in aligned.values() for trace in figure["data"]]
        assert len(panels) == num_layers
        assert next(iter(figures)) == ("alignment" if num_layers == 4 else f"alignment {num_layers}")
        for figure in aligned.values():
            layout = figure["layout"]
            axes = [axis for name, axis in layout.items() if name.startswith("yaxis")]
            assert all(axis["showticklabels"] for axis in axes)
            room = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
            assert all((axis["domain"][1] - axis["domain"][0]) * room >= 13 * len(tokens) for axis in axes)

    def test_what_is_cut_is_said(self, task_of: Callable[..., Task]) -> None:
        task: Any = task_of(*tiny.dates("translation_decoder_only"), *tiny.DATES)
        (maps,) = attention_maps(Predictor(task), ["5 März 98"])
        assert maps.decoder is not None
        num_read = len(maps.decoder.queries) - len(maps.decoder.written) + 1
        assert not is_recordable(maps, num_read - 1)
        figures = draw_attention(list_maps(maps, num_read + 2), "decoder_only", "model")
        assert tokens_of(figures["alignment"]["data"][0]["y"]) == list(maps.decoder.written[:3])
        said = figures["alignment"]["layout"]["title"]["subtitle"]["text"]
        assert f"generated tokens (the first 3 of {len(maps.decoder.written)})" in said

    def test_where_nothing_is_written_a_row_is_a_token_that_is_read(self, task_of: Callable[..., Task]) -> None:
        task = task_of(*tiny.dates("classification_full"), *tiny.DATES)
        (maps,) = attention_maps(Predictor(task), ["5 März 98"])
        figures = draw_attention(list_maps(maps, 40), "full", "model")
        assert next(iter(figures)) == "encoder rollout"
        for name, figure in figures.items():
            found = maps.encoder if name.startswith("encoder") else maps.decoder
            assert found is not None
            assert tokens_of(figure["data"][0]["y"]) == list(found.queries)
            assert "rows: input tokens" in figure["layout"]["title"]["subtitle"]["text"]


class Unseen(MultiHeadAttention):
    """An attention that ``recorded`` knows nothing of."""

    def _attend(self, q: Any, k: Any, v: Any, attention_mask: AttentionMask, bias: Any) -> Tensor:
        return v.mean(2, keepdim=True).expand_as(q)


class Twice(MultiHeadAttention):
    """Calls torch's kernel twice, as differential attention does."""

    def _attend(self, q: Any, k: Any, v: Any, attention_mask: AttentionMask, bias: Any) -> Tensor:
        return super()._attend(q, k, v, attention_mask, bias) - 0.5 * super()._attend(k, q, v, attention_mask, bias)


@pytest.mark.parametrize("attends", [Unseen, Twice])
@pytest.mark.parametrize("experiment", ["translation_full", "classification_encoder_only"])
def test_pictures_say_what_has_no_map(
    task_of: Callable[..., Task], experiment: str, attends: type[MultiHeadAttention]
) -> None:
    task = task_of(*tiny.dates(experiment), *tiny.DATES)
    for module in task.network.modules():
        if isinstance(module, MultiHeadAttention) and not module.is_cross:
            module.__class__ = attends
    (maps,) = attention_maps(Predictor(task), ["5 März 98"])
    kinds = ("encoder", "decoder") if task.architecture == "full" else ("encoder",)
    assert maps.unmapped == kinds
    assert (maps.cross is not None) == (task.architecture == "full")
    assert is_recordable(maps, 0) or task.architecture == "full"
    sample = json.loads(json.dumps(list_maps(maps, 40)))
    figures = draw_attention(sample, task.architecture, "model")
    assert all("no attention map" in str(figures[kind]) for kind in kinds)
    assert len(figures) >= len(kinds)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe", "unigram", "wordpiece", "words"])
def test_names_of_tokens_together_are_the_text(chosen: Callable[..., DictConfig], tokenizer: str) -> None:
    options = [] if tokenizer in ("bytes", "words") else ["tokenizer.vocab_size=400"]
    config = chosen("experiment=dates/translation", *tiny.DATES, f"tokenizer={tokenizer}", *options)
    trained = train_tokenizer(config, build_node(config, "data").splits())
    (ids,) = trained.encode(["5. Mai 1998"])
    assert "".join(trained.ids_to_tokens(ids)).replace(" ", "") == "5.Mai1998"
    assert trained.ids_to_tokens(trained.special.single([]))[0] == "<bos>"


def test_bytes_of_a_character_have_names(chosen: Callable[..., DictConfig]) -> None:
    config = chosen("experiment=dates/translation", *tiny.DATES, "tokenizer=bytes")
    trained = train_tokenizer(config, build_node(config, "data").splits())
    (ids,) = trained.encode(["mä"])
    assert trained.ids_to_tokens(ids) == ["m", "<0xC3>", "<0xA4>"]


@given(layers=st.integers(1, 3), heads=st.integers(1, 3), length=st.integers(1, 4))
def test_rollout_is_the_sum_over_all_paths(layers: int, heads: int, length: int) -> None:
    """Abnar and Zuidema: the weight of a path is the product of its edges, each half attention and half residual."""
    weights = torch.randn(layers, heads, length, length, dtype=torch.float64).softmax(-1)
    found = rollout(weights)
    for depth in range(1, layers + 1):
        expected = torch.zeros(length, length, dtype=torch.float64)
        for path in itertools.product(range(length), repeat=depth + 1):  # from the last layer down to the input
            product = 1.0
            for step, (i, j) in enumerate(itertools.pairwise(path)):
                layer = depth - 1 - step
                product *= 0.5 * float(weights[layer, :, i, j].sum()) / heads + 0.5 * (i == j)
            expected[path[0], path[-1]] += product
        assert_close(found[depth - 1], expected)
        assert_close(found[depth - 1].sum(-1), torch.ones(length, dtype=torch.float64))


def test_the_old_name_hands_on() -> None:
    assert old_name.attention_maps is attention_maps
    assert [getattr(old_name, name).__module__ for name in old_name.__all__] == ["triptych.report.attention_maps"] * 5
