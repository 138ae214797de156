"""Import and export of trained tasks as Hugging Face folders, with tokenizer, generation settings and model card."""
# Takes a DictConfig: creates a configuration, or reads one to change it.

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from triptych.assembly.make_task import make_task
from triptych.assembly.restore import checkpoint_file, restore
from triptych.config import ConfigError, as_dict, error_prefix, target_of
from triptych.config.run_settings import RunSettings
from triptych.data import Characters, CorpusInfo, Tokenizer
from triptych.data.tokenizers.pretrained import read_tokenizer, write_tokenizer
from triptych.interop.card import model_card
from triptych.interop.families.family import CLASSIFYING, Family
from triptych.interop.generation import FILE, generation_settings, read_generation
from triptych.interop.networks import FAMILIES, read_network, write_network
from triptych.interop.tensors import read_json_object, write_json
from triptych.nn import Embedding, Network, PatchEmbedding
from triptych.storage.atomic import write_text
from triptych.storage.run_directory import RunDirectory
from triptych.tasks import GenerativeTask, Predictor, Task
from triptych.tasks.forward import reads_token_types
from triptych.training import TrainingModule, checkpoint_metadata, write_checkpoint

LEGACY_EOS = 2
"""An eos_token_id that ``CLIPModel`` treats as an error of its first files: it then uses the largest token instead. If
the texts of a network end with this token, as with Triptych's own tokenizers, an export gives the token another id."""


def load_pretrained(
    folder: str | Path, task: str | None = None, *, new_head: bool = False, families: Sequence[Family] = FAMILIES
) -> Predictor:
    """Loads the model of a Hugging Face folder, ready for ``predict``.

    Args:
        folder: with config.json, safetensors files and, except for image models, tokenizer files.
        task: translation, text_to_text, chat, classification, tagging, question_answering, language_modeling,
            denoising, infilling, transcription or image_text_matching; None: the task of its class.
        new_head: whether to initialize a missing head.
        families: supported families.

    Raises:
        ConfigError: an unsupported or incomplete folder.
    """
    return Predictor(_read(folder, task, new_head, families)[1])


def import_folder(
    folder: str | Path,
    checkpoint: str | Path,
    task: str | None = None,
    *,
    new_head: bool = False,
    families: Sequence[Family] = FAMILIES,
) -> Predictor:
    """Writes a checkpoint of a Hugging Face folder's model, for ``train init_from=``, ``evaluate`` and ``predict``.

    The arguments are those of ``load_pretrained``; the result is the loaded model.

    Raises:
        ConfigError: see ``load_pretrained``; or the file exists.
    """
    path = Path(checkpoint)
    if path.exists():
        raise ConfigError(f"{path} exists; choose another name")
    config, read = _read(folder, task, new_head, families)
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = TrainingModule(read).state_dict()
    write_checkpoint({"state_dict": weights, "triptych": checkpoint_metadata(as_dict(config), read)}, path)
    return Predictor(read)


def save_pretrained(checkpoint: str | Path, folder: str | Path, *, families: Sequence[Family] = FAMILIES) -> str:
    """Writes the model of a checkpoint as a folder that ``transformers`` loads: config.json, model.safetensors, the
    tokenizer, generation_config.json and a model card. (An image model has no tokenizer and no image processor: the
    corpus defines the scaling of pixels.)

    Args:
        checkpoint: a file, or a run directory (its newest checkpoint).
        folder: new or empty.
        families: supported families.

    Returns:
        The name of the class that loads it.

    Raises:
        ConfigError: no such checkpoint, a folder that is not empty, or a network that matches no published family.
    """
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is not empty; choose another folder")
    config, task = restore(checkpoint)
    tokenizer = task.tokenizer
    if tokenizer.sides is not None and tokenizer.sentencepiece is None:
        raise ConfigError(
            "tokenizer.joint=false: an export needs one tokenizer for both sides; expected joint=true, or MarianMT"
        )
    if task.corpus.is_stream:  # a continued part of a long text may begin anywhere
        tokenizer = Tokenizer.from_json(tokenizer.to_json(), replace(tokenizer.special, begin=()))
    network = task.network
    if task.is_dual_encoder and tokenizer.special.eos == LEGACY_EOS:
        last = tokenizer.last_of_model
        tokenizer = tokenizer.with_swapped_ids(LEGACY_EOS, last)
        network = with_rows_exchanged(network, LEGACY_EOS, last)
    special = tokenizer.special
    reads_text = task.has_tokens
    ids = {"bos_token_id": special.bos, "eos_token_id": special.eos, "pad_token_id": special.pad} if reads_text else {}
    if task.architecture == "full":
        ids["decoder_start_token_id"] = special.start
    labels = task.labels if task.name in CLASSIFYING else ()
    family = write_network(path, network, config, task.name, labels=labels, special=ids, families=families)
    if reads_text:
        continues_text = task.architecture == "decoder_only" and isinstance(task, GenerativeTask)
        ends_with_sep = task.name in ("translation", "text_to_text")
        begin, end = special.begin, special.end if not continues_text else (special.sep,) if ends_with_sep else ()
        if task.audio is not None:  # the decoder generates its texts
            begin, end = (special.start, *special.target_begin), (special.eos,)
        write_tokenizer(
            tokenizer,
            path,
            begin=begin,
            end=end,
            padding_side="left" if continues_text else "right",
            model_max_length=task.max_length,
            has_token_types=task.reads_pairs and reads_token_types(task.network),
        )
    if isinstance(task, GenerativeTask) and task.architecture != "encoder_only":
        write_json(path / FILE, {**ids, **generation_settings(task)})
    class_name = family.classes[task.name]
    run = RunDirectory(checkpoint_file(checkpoint).parent.parent)
    record = read_json_object(run.record) if run.record.is_file() else {}
    write_text(path / "README.md", model_card(path.name, task, class_name, record))
    return class_name


def with_rows_exchanged(network: Network, one: int, other: int) -> Network:
    """A copy of the network with two rows of its token table exchanged."""
    network = copy.deepcopy(network)
    assert isinstance(network.embedding, Embedding)
    table = network.embedding.tokens.weight.data
    table[[one, other]] = table[[other, one]]
    return network


def _read(
    folder: str | Path, task_name: str | None, new_head: bool, families: Sequence[Family]
) -> tuple[DictConfig, Task]:
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder")
    read = read_network(path, task_name, new_head=new_head, families=families)
    config = read.config
    if isinstance(read.network.embedding, PatchEmbedding):
        tokenizer = Characters().train([])  # unused
    else:
        with error_prefix():
            tokenizer = read_tokenizer(path)
        config.tokenizer = {"_target_": "triptych.data.PretrainedTokenizer", "dir": str(path)}
    config.batch.too_long = "truncate"
    architecture = read.network.architecture
    if issubclass(target_of(config, "task"), GenerativeTask) and architecture != "encoder_only":
        is_full = architecture == "full"
        room, is_whisper = config.shape.max_length, read.task == "transcription"
        special = read_generation(
            path, config.task, tokenizer.special, room=room, is_full=is_full, is_whisper=is_whisper
        )
        if special != tokenizer.special:
            tokenizer = Tokenizer.from_json(tokenizer.to_json(), special)
    info = CorpusInfo(tag_labels=read.labels) if read.task == "tagging" else CorpusInfo(labels=read.labels)
    with error_prefix(f"{path}: "):
        task = make_task(RunSettings.of(config), tokenizer, info, read.network)
    task.network.eval()
    return config, task
