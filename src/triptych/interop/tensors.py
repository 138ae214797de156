"""Converts tensors between the names of a folder and ours.

Tested by tests/interop/test_refusals.py.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from triptych.config import ConfigError, join_names
from triptych.interop.families.family import Family, HFConfig
from triptych.storage.atomic import write_text

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Tensors(Mapping[str, Tensor]):
    """The tensors of the safetensors files of a folder, each read on access. Names of old files are converted to
    current ones: with the prefix of the body, which files of a bare model lack, and without gamma and beta.

    Raises:
        ConfigError: there are none, or they cannot be read.
    """

    def __init__(self, folder: Path, family: Family) -> None:
        if (folder / FILE).is_file():
            names = [FILE]
        elif (folder / INDEX).is_file():
            files = read_json_object(folder / INDEX).get("weight_map")
            names = sorted(set(map(str, files.values()))) if isinstance(files, dict) else []
            outside = [name for name in names if Path(name).name != name]
            if outside or not names:
                said = outside[0] if outside else "no file"
                raise ConfigError(f"{folder / INDEX}: weight_map names {said}; expected files in this folder")
        else:
            pickle = ""
            if others := sorted(file.name for file in folder.glob("*.bin")):
                pickle = f"; {others[0]} is a pickle, which Triptych never reads: save the weights as safetensors"
            raise ConfigError(f"{folder}: {FILE} not found{pickle}")
        found: dict[str, Any] = {}
        for name in names:
            try:
                file = safe_open(str(folder / name), framework="pt")
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{folder / name}: not a safetensors file ({error})") from None
            found |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]
        prefix = "" if any(name.startswith(family.prefix) for name in found) else family.prefix
        self._places: dict[str, tuple[Any, str]] = {
            prefix + re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): (file, name)
            for name, file in found.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        """One tensor."""
        file, its_name = self._places[name]
        tensor: Tensor = file.get_tensor(its_name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._places)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConfigError: there is no such file, or no object in it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path.parent}: {path.name} not found") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object as JSON."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def from_hf(
    family: Family,
    task: str,
    config: HFConfig,
    tensors: Mapping[str, Tensor],
    ours: Mapping[str, Tensor],
    *,
    is_tied: bool,
    new_head: bool,
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """The weights of a folder by our names.

    Args:
        task: of the required head.
        tensors: by their names.
        ours: the parameters (tied ones once) and the fixed tables of our network, for their names and shapes.
        is_tied: whether the folder's output layer is the token table.
        new_head: whether the head may be missing.

    Returns:
        The weights (tied ones once); the names of the missing tensors of the head; those of the tensors of another
        head.

    Raises:
        ConfigError: missing or unexpected tensors, or wrong shapes.
    """
    state, new, missing, used = dict[str, Tensor](), list[str](), list[str](), dict[str, str]()
    shapes, originals = family.shapes(config), {**family.copies, **(family.tied_copies if is_tied else {})}
    names = {name: family.hf_name(name, task, config) for name in ours}
    num_parts = Counter(theirs for theirs, _ in names.values())
    for name, mine in ours.items():
        theirs, part = names[name]
        copies = [copy for copy, original in originals.items() if original == theirs]
        candidates = [*own_tensors(family, config, theirs), theirs, *copies]
        found = next((candidate for candidate in candidates if candidate in tensors), None)
        if found is None:
            if mine.requires_grad:
                (new if new_head and name.startswith("head.") else missing).append(theirs)
            continue  # a fixed table, or the fixed bias that a bare model lacks, stays as in a new network
        used[theirs] = found
        tensor = tensors[found]
        if family.is_transposed(theirs) and tensor.ndim == 2:
            tensor = tensor.T
        if part is not None and tensor.ndim:
            tensor = tensor.tensor_split(num_parts[theirs])[part]
        shape = shapes.get(theirs, ())
        is_theirs = len(shape) == tensor.ndim and all(n in (-1, m) for n, m in zip(shape, tensor.shape, strict=True))
        is_reshaped = theirs in shapes and is_theirs and tensor.numel() == mine.numel()
        if not is_reshaped and tensor.shape != mine.shape:
            was, expected = tuple(tensors[found].shape), tuple(mine.shape)
            raise ConfigError(f"{found} has shape {was}; {config.place} requires {expected} for {name}")
        state[name] = tensor.reshape(mine.shape).to(torch.float32).contiguous()
    if missing:
        heads = [family.hf_name(name, task, config)[0] for name in ours if name.startswith("head.")]
        advice = "; --new-head adds a new head instead" if set(missing) <= set(heads) else ""
        raise ConfigError(f"tensors that {config.place} requires are missing: {join_names(missing)}{advice}")
    left_out = tensors_of_other_heads(family, config, tensors, used, originals)
    state = dict(family.reordered(state, config, to_ours=True))
    for name in [name for name in state if name.endswith(".position.table") and not ours[name].requires_grad]:
        if isinstance(ours[name], torch.nn.Parameter):
            continue  # a table stored among the weights may have any values
        if not torch.allclose(state[name], ours[name], atol=1e-2):  # another table differs by 1, bfloat16 by 0.002
            found = used[family.hf_name(name, task, config)[0]]
            raise ConfigError(f"{found} differs from the sinusoidal table of model_type={family.model_type}")
    return state, new, left_out


def own_tensors(family: Family, config: HFConfig, original: str) -> list[str]:
    """The tensors that transformers uses instead of this one if the output is not tied; it then ignores this one."""
    is_tied = config.get("tie_word_embeddings", True)
    return [] if is_tied else [name for name in family.own_if_untied if family.copies[name] == original]


def tensors_of_other_heads(
    family: Family,
    config: HFConfig,
    tensors: Mapping[str, Tensor],
    used: Mapping[str, str],
    originals: Mapping[str, str],
) -> list[str]:
    """The names of the tensors that belong to another head, and are left out.

    Args:
        used: the imported tensors, by their name.
        originals: the original of each copy, by name.

    Raises:
        ConfigError: an unknown tensor, or a copy that differs.
    """
    left_out, unexpected = list[str](), list[str]()
    for name in tensors:
        if name in used.values() or any(re.fullmatch(pattern, name) for pattern in family.buffers):
            continue
        own = own_tensors(family, config, originals.get(name, name))
        original = used.get(originals.get(name, name))
        if own and original in own:
            if name in own and not torch.equal(tensors[name], tensors[original]):
                raise ConfigError(
                    f"{config.place}: tie_word_embeddings=false, and {name} differs from {original}: not supported; "
                    "expected one token table for the encoder and the decoder"
                )
        elif original is not None:
            if not torch.equal(tensors[name], tensors[original]):
                raise ConfigError(f"{name} differs from {original}, though {config.place} ties them")
        elif any(re.fullmatch(pattern, name) for pattern in family.other_heads):
            left_out.append(name)
        else:
            unexpected.append(name)
    if unexpected:
        raise ConfigError(f"tensors unknown to {config.place}: {join_names(unexpected)}")
    return left_out


def to_hf(
    family: Family, task: str, config: HFConfig, state: Mapping[str, Tensor], *, is_tied: bool
) -> dict[str, Tensor]:
    """The weights of a network by a family's names.

    Args:
        family: that matches the settings of the network.
        task: of the network's head.
        config: the configuration that is written with them.
        state: by our names.
        is_tied: whether the output layer is the token table.
    """
    parts = dict[str, dict[int, Tensor]]()
    for name, tensor in family.reordered(state, config, to_ours=False).items():
        if not (is_tied and name == "head.output.weight"):
            theirs, part = family.hf_name(name, task, config)
            parts.setdefault(theirs, {})[part or 0] = tensor
    shapes = family.shapes(config)
    tensors = dict[str, Tensor]()
    for theirs, pieces in parts.items():
        tensor = torch.cat([pieces[part] for part in sorted(pieces)]) if len(pieces) > 1 else pieces[0]
        if theirs in shapes:
            tensor = tensor.reshape(shapes[theirs])
        tensor = tensor.T if family.is_transposed(theirs) and tensor.ndim == 2 else tensor
        tensors[theirs] = tensor.clone().contiguous()
    if not config.get("tie_word_embeddings", True):
        originals = {name: family.copies[name] for name in family.own_if_untied}
        tensors |= {name: tensors[original].clone() for name, original in originals.items() if original in tensors}
    return {name.removeprefix(family.prefix if task in family.bare else ""): tensors[name] for name in tensors}
