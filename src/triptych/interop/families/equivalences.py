"""Equivalences: different settings for the same function, after a conversion of the weights.

Tested by tests/interop/test_equivalences.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from triptych.interop.families.family import Settings
from triptych.nn import RopeScaling, sinusoids

OF_ATTENTION = tuple(f"attention.{option}" for option in ("num_kv_heads", "scale", "sliding_windows", "qkv_bias"))
AUGMENTING = (".time_masks", ".time_share", ".mel_masks", ".mel_width")
"""Settings of audio augmentation in training."""
TABLES = ("triptych.nn.LearnedPositions", "triptych.nn.SinusoidalPositions")
"""Position schemes with max_length vectors."""

KEYS = (".k", ".global_k")
"""Endings of the names of key projections."""
State = dict[str, Tensor]
"""Weights by our names; tied ones under each of their names."""


def canonical(model: Mapping[str, Any]) -> Settings:
    """The flat ``model`` node with defaults instead of null, with the class of each part (encoder.position), and
    without settings that have no effect in evaluation.

    Args:
        model: the resolved node, flat, such as encoder.norm.eps.
    """
    idle = ("_partial_", ".activation_checkpointing", *AUGMENTING, ".position.trained")
    acting = {key: value for key, value in model.items() if "dropout" not in key and not key.endswith(idle)}
    found = {key.removesuffix("._target_"): value for key, value in acting.items()}
    for stack in stacks_of(model):
        head_dim = found[f"{stack}.head_dim"] or found[f"{stack}.d_model"] // found[f"{stack}.num_heads"]
        meant = {"head_dim": head_dim, **{key: found.get(f"{stack}.{key}") for key in OF_ATTENTION}}
        windows = meant["attention.sliding_windows"] or [None]
        meant |= {
            "attention.num_kv_heads": meant["attention.num_kv_heads"] or found[f"{stack}.num_heads"],
            "attention.scale": meant["attention.scale"] or head_dim**-0.5,
            "attention.sliding_windows": [windows[i % len(windows)] for i in range(found[f"{stack}.num_layers"])],
        }
        if meant["attention.qkv_bias"] is None:
            meant["attention.qkv_bias"] = found[f"{stack}.bias"]
        found |= {f"{stack}.{key}": value for key, value in meant.items()}
        found.setdefault(f"{stack}.attention.k_bias", True)
        if f"{stack}.position.theta" in found:
            found[f"{stack}.position.scaling"] = rope_scaling(model, stack)
            found = {key: value for key, value in found.items() if f"{stack}.position.scaling." not in key}
            theta, local_theta = (f"{stack}.position.{name}" for name in ("theta", "local_theta"))
            if meant["attention.sliding_windows"] == [None] * found[f"{stack}.num_layers"]:
                found[local_theta] = found[theta]
            elif found[f"{stack}.position.scaling"] is None:
                found[local_theta] = found[local_theta] or found[theta]
        if found[f"{stack}.position"] not in TABLES:
            del found[f"{stack}.max_length"]
    for head in ("head", "source_head"):
        if found.get(f"{head}.transform", "none") == "none":
            found.pop(f"{head}.transform_bias", None)
        if found.get(f"{head}.transform", "none") == "none" or found.get(f"{head}.norm") is None:
            found = {key: value for key, value in found.items() if not key.startswith(f"{head}.norm")}
            found[f"{head}.norm"] = None
    found.setdefault("tie_word_embeddings", False)  # of two towers
    return found


def rope_scaling(model: Mapping[str, Any], stack: str) -> RopeScaling | None:
    """The scaling of rotary frequencies of a stack in a flat ``model`` node."""
    key = f"{stack}.position.scaling."
    given = {name.removeprefix(key): value for name, value in model.items() if name.startswith(key)}
    given.pop("_target_", None)
    return RopeScaling(**given) if given else None


def stacks_of(model: Mapping[str, Any]) -> list[str]:
    """The stacks of a flat ``model`` node."""
    return [name for name in ("source_encoder", "encoder", "source_decoder", "decoder") if f"{name}.d_model" in model]


def scores_are_products(model: Settings, stack: str) -> bool:
    """Whether scores in a canonical model are q k plus terms that do not depend on k: no rotation, norm or cap."""
    others = (model.get(f"{stack}.attention.{name}") for name in ("softcap", "qk_norm"))
    return model[f"{stack}.position"] != "triptych.nn.Rotary" and all(other is None for other in others)


def add_biases(state: State, stack: str, endings: tuple[str, ...]) -> None:
    """Adds zero biases to the linear layers of a stack whose names have these endings."""
    for weight in [n for n in state if n.startswith(stack) and n.removesuffix(".weight").endswith(endings)]:
        state[weight.replace(".weight", ".bias")] = torch.zeros(len(state[weight]))


def setting_differences(mine: Settings, theirs: Settings) -> dict[str, tuple[Any, Any]]:
    """Differences between two canonical models, with both values. Settings that only one of them has are left out,
    since another setting implies them, such as ``position`` for ``position.theta``."""
    return {key: (my, theirs[key]) for key, my in mine.items() if key in theirs and my != theirs[key]}


def absorb(state: State, mine: Settings, theirs: Settings) -> list[str]:
    """Converts the weights of one model to those of an equivalent model, as far as possible.

    Args:
        state: the weights, changed in place.
        mine: canonical settings of the model with these weights.
        theirs: canonical settings of the other.

    Returns:
        The keys of the differences that weights cannot express; if there are any, the weights are invalid.
    """
    width = state["embedding.tokens.weight"].shape[1] if "embedding.tokens.weight" in state else 0
    # E sqrt(d) as the input and E as the output equal E' and E' / sqrt(d), with E' = E sqrt(d)
    scales = ("embedding.scale_embedding", "head.scale_states")
    is_traded = [m.get(key) for m in (mine, theirs) for key in scales] == [True, False, False, True]
    obstacles = []
    for key, (my, their) in setting_differences(mine, theirs).items():
        stack, _, name = key.partition(".") if "." in key else ("", "", key)
        match name, my, their:
            case ("tie_word_embeddings", True, False) | ("bias", "trained" | "fixed", "trained" | "fixed"):
                pass  # the state has both of a tied pair
            case "scale_embedding", True, False if (
                stack == "source_embedding" or not theirs["tie_word_embeddings"] or is_traded
            ):
                state[f"{stack}.tokens.weight"] = state[f"{stack}.tokens.weight"] * width**0.5
            case "source_embedding", None, _:
                state["source_embedding.tokens.weight"] = state["embedding.tokens.weight"]
            case "scale_states", _, _ if not theirs["tie_word_embeddings"] or is_traded:
                weight = state[f"{stack}.output.weight"]
                state[f"{stack}.output.weight"] = weight * weight.shape[1] ** ((their - my) / 2)
            case "num_token_types", 0, number:
                state["embedding.token_types.weight"] = torch.zeros(number, width)
            case ("position", _, "triptych.nn.LearnedPositions") | ("max_length", _, _) if (
                mine[f"{stack}.position"] == "triptych.nn.SinusoidalPositions"
            ):
                rows = theirs[f"{stack}.max_length"] + mine[f"{stack}.position.first"]  # any number of rows
                state[f"{stack}.position.table"] = sinusoids(rows, theirs[f"{stack}.d_model"])
            case "position.first", int(), int() if theirs[f"{stack}.position"] == "triptych.nn.LearnedPositions":
                table = state[f"{stack}.position.table"][my:]
                state[f"{stack}.position.table"] = torch.cat((table.new_zeros(their, table.shape[1]), table))
            case "bias", False, True if f"{stack}.patches.weight" in state:
                state[f"{stack}.patches.bias"] = torch.zeros(len(state[f"{stack}.patches.weight"]))
            case (("bias" | "attention.qkv_bias"), False, True):
                qkv = (".q", ".v", ".global_q", ".global_v", *(KEYS if theirs[f"{stack}.attention.k_bias"] else ()))
                add_biases(state, stack, qkv if name == "attention.qkv_bias" else (".o", ".up", ".gate", ".down"))
            case "attention.k_bias", False, True:
                add_biases(state, stack, KEYS if theirs[f"{stack}.attention.qkv_bias"] else ())
            case "attention.k_bias", True, False if scores_are_products(theirs, stack):
                # q b is the same in all scores of a query q, so softmax cancels it
                for n in [n for n in state if n.startswith(stack) and n.removesuffix(".bias").endswith(KEYS)]:
                    state.pop(n)
            case "bias", "none", "trained" | "fixed":
                state[f"{stack}.output.bias"] = torch.zeros(len(state[f"{stack}.output.weight"]))
            case "attention.num_kv_heads", _, heads if heads % my == 0:
                for n in [n for n in state if n.startswith(stack) and ("attention.k." in n or "attention.v." in n)]:
                    state[n] = torch.cat([head for head in state[n].chunk(my) for _ in range(heads // my)])
            case "attention.scale", _, _:
                for q in [n for n in state if n.startswith(stack) and ".q." in n]:
                    state[q] = state[q] * (my / their)
            case _:
                obstacles.append(key)
    return obstacles
