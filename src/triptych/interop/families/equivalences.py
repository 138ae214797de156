"""Settings that differ while the function is the same: the weights take up the difference."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from triptych.interop.families.family import Settings
from triptych.nn import RopeScaling, sinusoids

State = dict[str, Tensor]
"""Weights by our names; tied ones under each of their names."""


def canonical(model: Mapping[str, Any]) -> Settings:
    """The flat ``model`` node with what is meant in place of null, and without what has no effect in evaluation.

    Args:
        model: the resolved node, flat, such as encoder.norm.
    """
    found = {key: value for key, value in model.items() if "dropout" not in key and not key.endswith("_target_")}
    for stack in stacks_of(model):
        options = {key.removeprefix(f"{stack}."): value for key, value in found.items() if key.startswith(f"{stack}.")}
        head_dim = options["head_dim"] or options["d_model"] // options["num_heads"]
        windows = options["windows"] or [None]
        options |= {
            "head_dim": head_dim,
            "num_kv_heads": options["num_kv_heads"] or options["num_heads"],
            "qk_scale": options["qk_scale"] or head_dim**-0.5,
            "qkv_bias": options["bias"] if options["qkv_bias"] is None else options["qkv_bias"],
            "windows": [windows[i % len(windows)] for i in range(options["num_layers"])],
            "rope_scaling": rope_scaling(model, stack),
        }
        acts = {
            "learned": ("max_length", "first_position"),
            "sinusoidal": ("max_length", "first_position"),
            "rotary": tuple(key for key in options if key.startswith("rope_")),
            "relative": ("relative_buckets", "relative_max_distance"),
        }
        idle = {key for keys in acts.values() for key in keys} - set(acts.get(options["position"], ()))
        idle |= {key for key in options if key.startswith("rope_scaling.")}
        found = {key: value for key, value in found.items() if not key.startswith(f"{stack}.")}
        found |= {f"{stack}.{key}": value for key, value in options.items() if key not in idle}
    if found["head.transform"] == "none":
        found["head.norm"] = "none"
    if found["head.norm"] == "none":
        del found["head.norm_eps"]
    return found


def rope_scaling(model: Mapping[str, Any], stack: str) -> RopeScaling | None:
    """The scaling of rotary frequencies that a flat ``model`` node has in a stack."""
    key = f"{stack}.rope_scaling."
    given = {name.removeprefix(key): value for name, value in model.items() if name.startswith(key)}
    given.pop("_target_", None)
    return RopeScaling(**given) if given else None


def stacks_of(model: Mapping[str, Any]) -> list[str]:
    """The stacks that a flat ``model`` node has."""
    return [stack for stack in ("encoder", "decoder") if f"{stack}.d_model" in model]


def differences(mine: Settings, theirs: Settings) -> dict[str, tuple[Any, Any]]:
    """The settings in which two canonical models differ, with both values. What acts in one of them alone is left out,
    since another setting says so, such as ``position`` of ``rope_theta``."""
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
        stack, _, name = key.rpartition(".")
        match name, my, their:
            case ("tie_output", True, False) | ("bias", "trained" | "fixed", "trained" | "fixed"):
                pass  # of a tied pair, the state has both
            case "scale_embedding", True, False if not theirs["tie_output"] or is_traded:
                state["embedding.tokens.weight"] = state["embedding.tokens.weight"] * width**0.5
            case "scale_states", _, _ if not theirs["tie_output"] or is_traded:
                state["head.output.weight"] = state["head.output.weight"] * width ** ((their - my) / 2)
            case "num_token_types", 0, number:
                state["embedding.token_types.weight"] = torch.zeros(number, width)
            case ("position", "sinusoidal", "learned") | ("max_length", _, _) if (
                mine[f"{stack}.position"] == "sinusoidal"
            ):
                rows = theirs[f"{stack}.max_length"] + mine[f"{stack}.first_position"]  # as many as wanted
                state[f"{stack}.positions"] = sinusoids(rows, theirs[f"{stack}.d_model"])
            case "first_position", int(), int() if theirs[f"{stack}.position"] == "learned":
                table = state[f"{stack}.positions"][my:]
                state[f"{stack}.positions"] = torch.cat((table.new_zeros(their, table.shape[1]), table))
            case (("bias" | "qkv_bias"), False, True):
                endings = (".q", ".k", ".v") if name == "qkv_bias" else (".o", ".up", ".gate", ".down")
                for weight in [n for n in state if n.startswith(stack) and n.removesuffix(".weight").endswith(endings)]:
                    state[weight.replace(".weight", ".bias")] = torch.zeros(len(state[weight]))
            case "bias", "none", "trained" | "fixed":
                state["head.output.bias"] = torch.zeros(len(state["head.output.weight"]))
            case "num_kv_heads", _, heads if heads % my == 0:
                for n in [n for n in state if n.startswith(stack) and ("attention.k." in n or "attention.v." in n)]:
                    state[n] = torch.cat([head for head in state[n].chunk(my) for _ in range(heads // my)])
            case "qk_scale", _, _:
                for q in [n for n in state if n.startswith(stack) and ".q." in n]:
                    state[q] = state[q] * (my / their)
            case _:
                obstacles.append(key)
    return obstacles
