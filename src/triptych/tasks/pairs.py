"""Two texts that are read as one."""

import numpy as np
from jaxtyping import Int

from triptych.data.tokenizers import SpecialTokens


def cut_pair(
    tokens: Int[np.ndarray, " length"], prefix: int, max_length: int, special: SpecialTokens
) -> tuple[Int[np.ndarray, " cut"], int]:
    """The pair with as many tokens as fit, the beginning of each text. The longer text is cut, until both are of equal
    length; then both are. (So does BERT.)

    Args:
        tokens: as ``SpecialTokens.pair`` lays them out.
        prefix: the place where the second text begins.
        max_length: the most tokens.
        special: what stands around and between the texts.

    Returns:
        The tokens, and the place where the second text begins.

    Raises:
        ValueError: there is no room for a token of each.
    """
    first = tokens[len(special.begin) : prefix - len(special.separator)]
    second = tokens[prefix : len(tokens) - len(special.end)]
    around = len(tokens) - len(first) - len(second)
    room = min(len(first) + len(second), max_length - around)
    if room < 2 and len(first) and len(second):
        raise ValueError(
            f"shape.max_length={max_length}: a pair of texts has {around} tokens around the texts; "
            f"expected at least {around + 2}"
        )
    kept = min(len(first), max(room - len(second), room - room // 2))
    cut, start = special.pair(first[:kept].tolist(), second[: room - kept].tolist())
    return np.array(cut), start
