"""Settings that differ while the function is the same: the weights take up the difference."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from triptych.interop.families.family import Settings
from triptych.nn import RopeScaling, sinusoids

OF_ATTENTION = tuple(f"attention.{option}" for option in ("num_kv_heads", "scale", "windows", "qkv_bias"))
AUGMENTING = (".time_masks", ".time_share", ".mel_masks", ".mel_width")
"""What hides parts of sounds in training."""
TABLES = ("triptych.nn.Learned", "triptych.nn.Sinusoidal")
"""Of the position schemes, those that have as many vectors as max_length says."""

KEYS = (".k", ".global_k")
"""How the names of the projections to keys end."""
State = dict[str, Tensor]
"""Weights by our names; tied ones under each of their names."""


def canonical(model: Mapping[str, Any]) -> Settings:
    """The flat ``model`` node with what is meant in place of null, with the class of each part (encoder.position), and
    without what has no effect in evaluation.

    Args:
        model: the resolved node, flat, such as encoder.norm.eps.
    """
    idle = ("_partial_", ".activation_checkpointing", *AUGMENTING, ".position.trained")
    acting = {key: value for key, value in model.items() if "dropout" not in key and not key.endswith(idle)}
    found = {key.removesuffix("._target_"): value for key, value in acting.items()}
    for stack in stacks_of(model):
        head_dim = found[f"{stack}.head_dim"] or found[f"{stack}.d_model"] // found[f"{stack}.num_heads"]
        meant = {"head_dim": head_dim, **{key: found.get(f"{stack}.{key}") for key in OF_ATTENTION}}
        windows = meant["attention.windows"] or [None]
        meant |= {
            "attention.num_kv_heads": meant["attention.num_kv_heads"] or found[f"{stack}.num_heads"],
            "attention.scale": meant["attention.scale"] or head_dim**-0.5,
            "attention.windows": [windows[i % len(windows)] for i in range(found[f"{stack}.num_layers"])],
        }
        if meant["attention.qkv_bias"] is None:
            meant["attention.qkv_bias"] = found[f"{stack}.bias"]
        found |= {f"{stack}.{key}": value for key, value in meant.items()}
        found.setdefault(f"{stack}.attention.k_bias", True)
        if f"{stack}.position.theta" in found:
            found[f"{stack}.position.scaling"] = rope_scaling(model, stack)
            found = {key: value for key, value in found.items() if f"{stack}.position.scaling." not in key}
            theta, local_theta = (f"{stack}.position.{name}" for name in ("theta", "local_theta"))
            if meant["attention.windows"] == [None] * found[f"{stack}.num_layers"]:
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
    found.setdefault("tie_output", False)  # of two towers
    return found


def rope_scaling(model: Mapping[str, Any], stack: str) -> RopeScaling | None:
    """The scaling of rotary frequencies that a flat ``model`` node has in a stack."""
    key = f"{stack}.position.scaling."
    given = {name.removeprefix(key): value for name, value in model.items() if name.startswith(key)}
    given.pop("_target_", None)
    return RopeScaling(**given) if given else None


def stacks_of(model: Mapping[str, Any]) -> list[str]:
    """The stacks that a flat ``model`` node has."""
    return [
        stack for stack in ("source_encoder", "encoder", "source_decoder", "decoder") if f"{stack}.d_model" in model
    ]


def scores_are_products(model: Settings, stack: str) -> bool:
    """Whether the scores of a canonical model are q k, and what does not depend on k: no rotation, norm or cap."""
    others = (model.get(f"{stack}.attention.{name}") for name in ("softcap", "qk_norm"))
    return model[f"{stack}.position"] != "triptych.nn.Rotary" and all(other is None for other in others)


def add_biases(state: State, stack: str, endings: tuple[str, ...]) -> None:
    """Gives the linear layers of a stack whose names end so biases of zero."""
    for weight in [n for n in state if n.startswith(stack) and n.removesuffix(".weight").endswith(endings)]:
        state[weight.replace(".weight", ".bias")] = torch.zeros(len(state[weight]))


def differences(mine: Settings, theirs: Settings) -> dict[str, tuple[Any, Any]]:
    """The settings in which two canonical models differ, with both values. What acts in one of them alone is left out,
    since another setting says so, such as ``position`` of ``position.theta``."""
    return {key: (my, theirs[key]) for key, my in mine.items() if key in theirs and my != theirs[key]}


def absorb(state: State, mine: Settings, theirs: Settings) -> list[str]:
    """Changes the weights of one model into those of another that is the same function, as far as there are such.

    Args:
        state: the weights, which are changed in place.
        mine: canonical settings of the model whose weights these are.
        theirs: the same of the other.

    Returns:
        The keys of the differences that weights cannot take up; with any, the weights mean nothing.
    """
    width = state["embedding.tokens.weight"].shape[1] if "embedding.tokens.weight" in state else 0
    # E sqrt(d) on the way in and E on the way out are E' and E' / sqrt(d), with E' = E sqrt(d)
    scales = ("embedding.scale_embedding", "head.scale_states")
    is_traded = [m.get(key) for m in (mine, theirs) for key in scales] == [True, False, False, True]
    obstacles = []
    for key, (my, their) in differences(mine, theirs).items():
        stack, _, name = key.partition(".") if "." in key else ("", "", key)
        match name, my, their:
            case ("tie_output", True, False) | ("bias", "trained" | "fixed", "trained" | "fixed"):
                pass  # of a tied pair, the state has both
            case "scale_embedding", True, False if stack == "source_embedding" or not theirs["tie_output"] or is_traded:
                state[f"{stack}.tokens.weight"] = state[f"{stack}.tokens.weight"] * width**0.5
            case "source_embedding", None, _:
                state["source_embedding.tokens.weight"] = state["embedding.tokens.weight"]
            case "scale_states", _, _ if not theirs["tie_output"] or is_traded:
                weight = state[f"{stack}.output.weight"]
                state[f"{stack}.output.weight"] = weight * weight.shape[1] ** ((their - my) / 2)
            case "num_token_types", 0, number:
                state["embedding.token_types.weight"] = torch.zeros(number, width)
            case ("position", _, "triptych.nn.Learned") | ("max_length", _, _) if (
                mine[f"{stack}.position"] == "triptych.nn.Sinusoidal"
            ):
                rows = theirs[f"{stack}.max_length"] + mine[f"{stack}.position.first"]  # as many as wanted
                state[f"{stack}.position.table"] = sinusoids(rows, theirs[f"{stack}.d_model"])
            case "position.first", int(), int() if theirs[f"{stack}.position"] == "triptych.nn.Learned":
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
                # q b is the same in all scores of a query q, which softmax forgets
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
