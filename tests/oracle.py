"""Hugging Face's models as an independent measure of ours: the same weights must give the same numbers.

What is measured of a family is a row of docs/families.md; `make families` writes it.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from command_line import complete
from triptych.assembly.make_task import make_task
from triptych.config import ConfigError, build
from triptych.config.run_settings import RunSettings
from triptych.data import CorpusInfo, Message, Tokenizer
from triptych.interop import read_network, write_network
from triptych.interop.networks import ImportedNetwork, configuration
from triptych.models.dual_encoder import DualEncoderBase
from triptych.models.generation import BeamSearch, Sampling, beam_search, generate
from triptych.models.generation.decode_step import DecodeStepPool
from triptych.nn import FrameEmbedding, PatchEmbedding
from triptych.training import TrainingModule, checkpoint_metadata, write_checkpoint

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

PAD, END = 1, 2
"""The token that fills up, in all small models here, and the one that ends a text that is classified by its end."""


@dataclass(frozen=True)
class Case:
    """A small model of a family, with random weights.

    Attributes:
        name: of the case.
        model: makes the model of ``transformers``.
        padding: the sides on which its inputs may be padded.
        length: of its inputs; sources are 3 longer.
        generates: whether it is a model that writes, and ``generate`` of ``transformers`` can do it.
    """

    name: str
    model: Callable[[], nn.Module]
    padding: tuple[str, ...] = ("none", "right")
    length: int = 12
    generates: bool = False


def name_of(value: object) -> str | None:
    """What pytest calls a case; None: it finds a name by itself."""
    return value.name if isinstance(value, Case) else None


def one_a_class(cases: Sequence[Case]) -> list[Case]:
    """Of each class of ``transformers`` the first case."""
    return [*{case.name.split()[0]: case for case in reversed(cases)}.values()]


@dataclass(frozen=True)
class Reference:
    """What the tests of a case share; what they would change they take in a copy.

    Attributes:
        model: of ``transformers``, its weights away from their initial values.
        folder: as ``transformers`` writes it.
        read: that folder as we read it.
    """

    model: Any
    folder: Path
    read: ImportedNetwork

    def in_float64(self) -> tuple[Any, Any]:
        """Copies of the model and of our network."""
        return deepcopy(self.model).double(), deepcopy(self.read.network).double()


def folder_of_process() -> Path:
    """A folder that stays until this process ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return folder


@cache
def reference(case: Case) -> Reference:
    """The model of a case, made, written and read once in a process."""
    folder = folder_of_process()
    torch.manual_seed(0)
    model = randomized(case.model())
    save(model, folder)
    return Reference(model, folder, read_network(folder))


def random_checkpoint(
    folder: Path, config: DictConfig, tokenizer: Tokenizer, corpus: CorpusInfo, *, log_scale: float | None = None
) -> Path:
    """A checkpoint of a network with random weights, as a training run in ``folder / "run"`` would write it."""
    complete(config, tokenizer, corpus)
    task: Any = make_task(RunSettings.of(config), tokenizer, corpus)
    randomized(task.network)
    if log_scale is not None:
        task.network.log_scale.data.fill_(log_scale)
    path = folder / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    metadata = checkpoint_metadata(OmegaConf.to_container(config, resolve=True), task)
    write_checkpoint({"state_dict": TrainingModule(task).state_dict(), "triptych": metadata}, path)
    return path


@dataclass(frozen=True)
class Measured:
    """How far ours is from theirs, in each direction.

    Attributes:
        imported: the largest difference of two logits at real positions, over max(1, the largest logit); float32.
        exported: the same, of their model with what we write.
        loss: relative difference of the loss.
        is_round_trip_equal: whether what we write and read again is bitwise the same.
        has_equal_size: whether both have as many trainable parameters.
    """

    imported: float
    exported: float
    loss: float
    is_round_trip_equal: bool
    has_equal_size: bool


@torch.no_grad()
def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter, and the bias that is a buffer, away from its initial value, where most mistakes are invisible;
    queries twice as large, so that attention is not uniform. Tied tensors stay tied."""
    generator = torch.Generator().manual_seed(seed)
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("final_logits_bias")]
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, tensor in [*trainable, *buffers]:
        noise = torch.randn(tensor.shape, generator=generator)
        is_matrix = tensor.ndim > 1 and not any(word in name for word in ("embed", "relative", "wte.", "wpe."))
        rows = 0 if any(word in name for word in ("c_attn.", "c_proj.", "c_fc.")) else -1
        tensor.add_((tensor.shape[rows] ** -0.5 if is_matrix else 0.3) * noise)
        if any(word in name for word in ("query.", "q_proj.", "SelfAttention.q.", "EncDecAttention.q.")):
            tensor.mul_(2)
        elif "c_attn." in name:
            tensor.tensor_split(3, dim=-1)[0].mul_(2)
    return model.eval()


def inputs(
    padding: str, *, is_full: bool, length: int = 12, seed: int = 1, start: int | None = None
) -> dict[str, Tensor]:
    """Three rows of random tokens of unequal length; ``tokens`` and ``mask``, and with a source ``source`` and
    ``source_mask``. With a start token, the source, which then ends with END, is what follows it (as a full model reads
    a text that it classifies)."""
    generator = torch.Generator().manual_seed(seed)

    def side(length: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(5, 101, (3, length), generator=generator)
        sizes = torch.tensor([length, length - 3, length - 5])[:, None]
        places = torch.arange(length)
        mask = {"none": places < length, "right": places < sizes, "left": places >= length - sizes}[padding]
        mask = mask.expand(3, length).clone()
        return tokens.masked_fill(~mask, PAD), mask

    tokens, mask = side(length)
    if not is_full:
        return {"tokens": tokens, "mask": mask}
    source, source_mask = side(length + 3)
    if start is not None:
        source[torch.arange(3), source_mask.sum(1) - 1] = END
        tokens, mask = source.roll(1, dims=1), source_mask
        tokens[:, 0] = start
        tokens = tokens.masked_fill(~mask, PAD)
    return {"tokens": tokens, "mask": mask, "source": source, "source_mask": source_mask}


def save(model: nn.Module, folder: Path) -> None:
    """Writes a model of ``transformers``, and what makes the frames that it reads."""
    model.save_pretrained(folder)  # type: ignore[operator]
    config: Any = model.config
    if hasattr(config, "num_mel_bins"):
        seconds, rest = divmod(config.max_source_positions, 50)
        assert not rest
        extractor = transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=seconds)
        extractor.save_pretrained(folder)
    if hasattr(config, "vision_config"):
        side = config.vision_config.image_size
        sizes = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
        statistics = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.3, 0.2, 0.25]}
        transformers.CLIPImageProcessorPil(**sizes, **statistics).save_pretrained(folder)


def with_frames(network: Any, given: dict[str, Tensor], *, seed: int = 1) -> dict[str, Tensor]:
    """The same inputs, with frames of sounds, all of one length, for sources; if the network has_audio."""
    if not isinstance(getattr(network, "source_embedding", None), FrameEmbedding):
        return given
    generator, count = (
        torch.Generator().manual_seed(seed),
        network.source_embedding.stride * network.encoder.max_positions,
    )
    frames = torch.randn((3, count, network.source_embedding.num_mels), generator=generator)
    frames = frames.to(network.head.output.weight.dtype)
    return given | {"source": frames, "source_mask": torch.ones(3, count, dtype=torch.bool)}


def with_images(network: Any, given: dict[str, Tensor], model: Any, *, seed: int = 1) -> dict[str, Tensor]:
    """The same inputs, each with an image, and with the token that ends a text; if the network has two towers. Pixels
    are those that theirs reads, which looks for the largest token where its configuration says 2."""
    if not isinstance(network, DualEncoderBase):
        return given
    config = model.config.text_config
    end = config.vocab_size - 1 if config.eos_token_id == 2 else config.eos_token_id
    tokens, last = given["tokens"].clone(), given["mask"].sum(1) - 1
    tokens[tokens == end] = 5
    tokens[torch.arange(len(tokens)), last] = end
    assert network.image_shape is not None
    return given | {"tokens": tokens, "pixels": images(network.image_shape, seed=seed)["images"]}


def unstandardized(network: Any, pixels: Tensor) -> Tensor:
    """The images of which their processor makes such pixels."""
    mean, std = (torch.tensor(numbers, dtype=pixels.dtype) for numbers in zip(*network.statistics, strict=True))
    return pixels * std[:, None, None] + mean[:, None, None]


def as_source(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What their encoder reads."""
    if given["source"].is_floating_point():
        return {"input_features": given["source"].mT}
    return {"input_ids": given["source"], "attention_mask": given["source_mask"].long()}


def images(shape: tuple[int, int, int], *, seed: int = 1) -> dict[str, Tensor]:
    """Three random images."""
    generator = torch.Generator().manual_seed(seed)
    return {"images": torch.randn((3, *shape), generator=generator)}


def change_config(folder: Path, **values: Any) -> None:
    """Changes config.json; None takes a key out."""
    file = folder / "config.json"
    content = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def positions(mask: Tensor) -> Tensor:
    """Real tokens counted from 0, as ``generate`` does."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


def global_tokens(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What Longformer has to be told: that the first token is global."""
    first = given["mask"] & (given["mask"].cumsum(1) == 1) if "Longformer" in type(model).__name__ else None
    return {} if first is None else {"global_attention_mask": first.long()}


def as_pairs(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What CLIP reads, in the type of its weights."""
    pixels = given["pixels"].to(next(model.parameters()).dtype)
    return {"input_ids": given["tokens"], "attention_mask": given["mask"].long(), "pixel_values": pixels}


@torch.no_grad()
def theirs(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """Logits of a model of ``transformers``."""
    if "source" in given and "SequenceClassification" in type(model).__name__:  # makes the decoder's input by itself
        return torch.as_tensor(model(input_ids=given["source"], attention_mask=given["source_mask"].long()).logits)
    if "images" in given:
        return torch.as_tensor(model(pixel_values=given["images"]).logits)
    if "pixels" in given:
        return torch.as_tensor(model(**as_pairs(model, given)).logits_per_text)
    if "source" in given:
        answer = model(
            **as_source(given), decoder_input_ids=given["tokens"], decoder_attention_mask=given["mask"].long()
        )
        return torch.as_tensor(answer.logits)
    counts = any(word in type(model).__name__ for word in ("Bert", "Roberta", "Longformer"))  # places by itself
    places = {} if counts else positions(given["mask"])
    more = {"position_ids": places} if isinstance(places, Tensor) and not given["mask"][:, 0].all() else {}
    more |= global_tokens(model, given)
    answer = model(input_ids=given["tokens"], attention_mask=given["mask"].long(), **more)
    if "start_logits" in answer:
        return torch.stack((answer.start_logits, answer.end_logits), dim=-1)
    return torch.as_tensor(answer.logits)


@torch.no_grad()
def ours(network: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """Logits of our network."""
    more: dict[str, Any] = {}
    if "images" in given:
        return torch.as_tensor(network(given["images"]))
    if "pixels" in given:
        pixels = unstandardized(network.source_embedding, given["pixels"].to(network.head.output.weight.dtype))
        texts, seen = network(given["tokens"], given["mask"], source=pixels).unbind(1)
        return torch.as_tensor(texts @ seen.T)
    if "source" in given:
        more = {"source": given["source"], "source_mask": given["source_mask"]}
    elif network.architecture == "encoder_only" and getattr(network.encoder.position, "first", 0):
        more = {"positions": positions(given["mask"])}  # RoBERTa counts real tokens alone
    logits: Tensor = network(tokens=given["tokens"], mask=given["mask"], **more)
    return logits


def check_export(
    folder: Path,
    architecture: str,
    task: str,
    settings: dict[str, Any],
    family: str,
    *,
    special: dict[str, int] | None = None,
    paddings: Sequence[str] = ("none", "right"),
) -> tuple[Any, Any, Any]:
    """Fails unless a network of ours, of these settings, is written as a family that is the same function, and read
    again as that; gives it, what is read, and the model of ``transformers``."""
    labels = ["a", "b", "c"] if task in ("classification", "tagging") else []
    config = configuration(architecture, task, settings, len(labels) or 101)
    network = randomized(build(config, "model"))
    written = write_network(folder, network, config, task, labels=labels, special=special or {"pad_token_id": PAD})
    assert written.model_type == family
    heads = {"classification": "SequenceClassification", "tagging": "TokenClassification"}
    other = {"encoder_only": "MaskedLM", "decoder_only": "CausalLM", "full": "Seq2SeqLM"}[architecture]
    auto = getattr(transformers, f"AutoModelFor{heads.get(task, other)}")
    model, loading = auto.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values())
    assert list(model.config.id2label.values())[: len(labels)] == labels
    again = read_network(folder, task).network
    for padding in paddings:
        given = inputs(padding, is_full=architecture == "full", length=16 if architecture == "encoder_only" else 24)
        their = theirs(model.eval(), given)
        assert all(distance(ours(mine, given), their, given["mask"]) < 1e-5 for mine in (network, again))
    return network, again, model


def check_refusal(case: Case, values: dict[str, Any], message: str, folder: Path) -> None:
    """Fails unless a folder of the case with these values in config.json is refused, for the reason in the message."""
    case.model().save_pretrained(folder)  # type: ignore[operator]
    change_config(folder, **values)
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        read_network(folder)
    assert message in str(caught.value)


def distance(mine: Tensor, their: Tensor, mask: Tensor | None) -> float:
    """The largest difference at real positions, over max(1, the largest of their logits)."""
    where = mask if their.ndim == 3 else torch.ones(len(their), dtype=torch.bool)
    return float((mine - their)[where].abs().max() / their[where].abs().max().clamp(min=1))


def measure(case: Case, folder: Path) -> Measured:
    """What is measured of a case.

    Args:
        case: the model.
        folder: an empty folder that ours is written to.
    """
    model, read = reference(case).model, reference(case).read
    network = read.network
    said: Any = getattr(model.config, "text_config", model.config)
    special = {name: getattr(said, name, None) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    special = {name: number for name, number in special.items() if number is not None}
    write_network(folder, network, read.config, read.task, labels=read.labels, special=special)
    written = type(model).from_pretrained(folder).eval()
    again = read_network(folder).network
    imported, exported, losses = [0.0], [0.0], [0.0]
    for padding in case.padding:
        if isinstance(network.embedding, PatchEmbedding):
            given = images(network.embedding.image_shape)
        else:
            is_full, is_pooled = network.architecture == "full", network.head.pooling != "none"
            start = model.config.decoder_start_token_id if is_full and is_pooled else None
            given = with_frames(network, inputs(padding, is_full=is_full, length=case.length, start=start))
            given = with_images(network, given, model)
        their, mine = theirs(model, given), ours(network, given)
        imported.append(distance(mine, their, given.get("mask")))
        exported.append(distance(theirs(written, given), their, given.get("mask")))
        losses.append(loss_distance(model, given, mine))
    size, their_size = (sum(p.numel() for p in of.parameters() if p.requires_grad) for of in (network, model))
    return Measured(max(imported), max(exported), max(losses), same(network, again), size == their_size)


def same(network: nn.Module, other: nn.Module) -> bool:
    """Whether two networks have bitwise the same parameters."""
    return all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


def check(case: Case, folder: Path) -> None:
    """Fails unless a model is theirs in both directions, bit by bit there and back."""
    measured = measure(case, folder)
    assert measured.imported < 1e-5
    assert measured.exported < 1e-5
    assert measured.loss < 1e-5
    assert measured.is_round_trip_equal
    assert measured.has_equal_size


def loss_distance(model: nn.Module, given: dict[str, Tensor], mine: Tensor) -> float:
    """The relative difference between the loss that their model computes and that of our logits."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(mine.shape[-1], mine.shape[:-1], generator=generator)
    if "pixels" in given:
        with torch.no_grad():
            their = model(**as_pairs(model, given), return_loss=True).loss
        own = torch.arange(len(mine))
        loss = (F.cross_entropy(mine, own) + F.cross_entropy(mine.T, own)) / 2
        return float((loss - their).abs() / their)
    if mine.ndim == 3:
        labels = labels.masked_fill(~given["mask"], -100)
    if "images" in given:
        arguments = {"pixel_values": given["images"], "labels": labels}
    else:
        arguments = {"input_ids": given["tokens"], "attention_mask": given["mask"].long(), "labels": labels}
        arguments |= global_tokens(model, given)
    if "source" in given:
        del arguments["input_ids"], arguments["attention_mask"]
        arguments |= as_source(given)
        arguments |= {"decoder_input_ids": given["tokens"], "decoder_attention_mask": given["mask"].long()}
    elif "mask" in given and not given["mask"][:, 0].all():
        return 0.0  # the label after a left pad is scored there
    if "QuestionAnswering" in type(model).__name__:  # which of all positions is the first of the answer, and the last
        if not given["mask"].all():
            return 0.0  # what fills up is scored too
        labels = torch.randint(mine.shape[1], (len(mine), 2), generator=generator)
        del arguments["labels"]
        arguments |= {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
        mine = mine.transpose(1, 2)
    with torch.no_grad():
        their = model(**arguments).loss
    if "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__:
        mine, labels = mine[:, :-1], labels[:, 1:]
    loss = F.cross_entropy(mine.flatten(0, -2), labels.flatten(), ignore_index=-100)
    return float((loss - their).abs() / their)


def float64_distance(case: Case) -> float:
    """The largest difference of two logits in float64, where an eps that is fixed shows."""
    model, network = reference(case).in_float64()
    given = with_frames(network, inputs("right", is_full=network.architecture == "full"))
    given = with_images(network, given, model)
    return distance(ours(network, given), theirs(model, given), given["mask"])


def decoded_alike(
    case: Case,
    *,
    num_beams: int,
    max_new_tokens: int = 20,
    device: str | torch.device = "cpu",
    steps: DecodeStepPool | None = None,
) -> bool:
    """Whether greedy or beam search finds the tokens of ``generate``, in float64, prompts of unequal length. The end
    token is one that these weights do write.

    Args:
        case: the model, which writes.
        num_beams: 1: greedy.
        max_new_tokens: the most new tokens.
        device: on which both decode.
        steps: by which ours decodes; None: as it chooses.
    """
    model, network = (copy.to(device) for copy in reference(case).in_float64())
    network.decode_steps = steps or network.decode_steps
    is_full = network.architecture == "full"
    given = with_frames(network, inputs("right" if is_full else "left", is_full=is_full, length=8))
    given = {name: tensor.to(device) for name, tensor in given.items()}
    prompt = given["tokens"]
    if is_full:
        prompt = torch.full((3, 1), model.config.decoder_start_token_id, device=device)
    seen = (given["source"], given["source_mask"]) if is_full else (given["mask"],)
    capacity = prompt.shape[1] + max_new_tokens

    def greedy(end: int) -> list[list[int]]:
        next_token = network.continuation(*seen, capacity=capacity)
        return generate(next_token, prompt, end=end, max_new_tokens=max_new_tokens, sampling=Sampling(), generator=None)

    _, end = max((row.index(token), token) for row in greedy(-1) for token in row)
    options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": False, "use_cache": True}
    options |= {"eos_token_id": end, "pad_token_id": PAD, "early_stopping": False, "length_penalty": 1.0}
    if is_full:
        options |= {"decoder_start_token_id": int(prompt[0, 0]), "forced_eos_token_id": None}
        options |= {"forced_bos_token_id": None}
        if has_audio := given["source"].is_floating_point():
            options["pad_token_id"] = end  # which fills up in place of the end
        their = model.generate(**as_source(given), **options)[:, 0 if has_audio else 1 :]
    else:
        their = model.generate(prompt, attention_mask=given["mask"].long(), **options)[:, prompt.shape[1] :]
    if num_beams == 1:
        mine = greedy(end)
    else:
        next_token, search = network.continuation(*seen, capacity=capacity), BeamSearch(num_beams)
        found = beam_search(next_token, prompt, end=end, max_new_tokens=max_new_tokens, search=search)
        mine = [hypotheses[0].tokens for hypotheses in found]
    return mine == [row[: row.index(end)] if end in row else row for row in their.tolist()]


def cached_distance(case: Case) -> float:
    """The largest difference between decoding in uneven chunks with a cache and one pass, in float64."""
    _, network = reference(case).in_float64()
    is_full = network.architecture == "full"
    given = with_frames(network, inputs("right", is_full=is_full, length=17))
    whole = ours(network, given | {"mask": torch.ones_like(given["mask"])})
    if is_full:
        next_token = network.continuation(given["source"], given["source_mask"], capacity=17)
    else:
        next_token = network.continuation(None, capacity=17)
    ends = (1, 4, 5, 11, 17)
    chunks = [given["tokens"][:, start:end] for start, end in zip((0, *ends), ends, strict=False)]
    with torch.no_grad():
        return max(
            float((next_token(chunk) - whole[:, end - 1]).abs().max()) for chunk, end in zip(chunks, ends, strict=True)
        )


def reply(model: Any, texts: Any, talk: Sequence[Message], *, max_new_tokens: int) -> str:
    """The next answer of a conversation, as transformers writes it with the template of its tokenizer."""
    plain = [{"role": message.role, "content": message.content} for message in talk]
    text = texts.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    is_full = model.config.is_encoder_decoder
    given = texts(text, return_tensors="pt", add_special_tokens=is_full, return_token_type_ids=False)
    outputs = model.generate(**given, max_new_tokens=max_new_tokens)[0, 0 if is_full else given.input_ids.shape[1] :]
    return str(texts.decode(outputs, skip_special_tokens=True, clean_up_tokenization_spaces=False))
