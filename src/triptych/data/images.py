"""Images as numbers."""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

Image: TypeAlias = tuple[tuple[tuple[float, ...], ...], ...]
"""Channels of rows of pixels."""


def as_image(values: ArrayLike, shape: tuple[int, int, int]) -> Float[np.ndarray, "channels height width"]:
    """Nested sequences, or an array, as an image of this shape.

    Args:
        values: channels of rows of pixels; of an image with one channel, also its rows.
        shape: channels, height, width.

    Raises:
        ValueError: no numbers, or another shape.
    """
    expected = "x".join(map(str, shape)) + " (model.embedding: channels, rows, columns)"
    if shape[0] == 1:
        expected = f"{shape[1]}x{shape[2]} or {expected}"
    try:
        image = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"not an array of numbers; expected {expected}") from None
    if image.shape == shape[1:] and shape[0] == 1:
        image = image[None]
    if image.shape != shape:
        raise ValueError(f"{'x'.join(map(str, image.shape)) or 'a number'}; expected {expected}")
    if not np.isfinite(image).all():
        raise ValueError("a pixel that is not a finite number")
    return image
