"""Images as numbers."""

import base64
import hashlib
import struct
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

MODES = {1: "L", 3: "RGB"}
"""Pillow's name of grey and of coloured pixels, by the number of channels."""
COLOUR_TYPES = {1: 0, 3: 2}
"""A PNG's name of the same."""
PNG, PNG_ADDRESS = b"\x89PNG\r\n\x1a\n", "data:image/png;base64,"
"""How such a file, and its data address, begin."""
WHITE, BRIGHTEST_OF_16 = 255, 65535
"""The brightest byte of a file, and the brightest number of 16 bits."""


@dataclass(frozen=True, slots=True)
class Image:
    """Pixels; as an array, they are 0 to 1.

    Attributes:
        shape: channels, height, width.
        content: the pixels, a byte each: channel by channel, row by row.
        brightest: the byte that stands for 1.
    """

    shape: tuple[int, int, int]
    content: bytes
    brightest: int = WHITE

    @classmethod
    def of(cls, pixels: Float[np.ndarray, "channels height width"], brightest: int = WHITE) -> "Image":
        """These pixels, 0 to 1, in so many steps; what is beyond is cut."""
        channels, height, width = pixels.shape
        content = np.clip(np.rint(pixels * brightest), 0, brightest).astype(np.uint8).tobytes()
        return cls((channels, height, width), content, brightest)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """The pixels as numpy reads them."""
        pixels = np.frombuffer(self.content, np.uint8).reshape(self.shape).astype(np.float32) / self.brightest
        return pixels if dtype is None else pixels.astype(dtype)

    def __repr__(self) -> str:
        """Equal for equal images, and short: corpora are identified by it."""
        digest = hashlib.sha256(self.content).hexdigest()
        return f"Image(shape={self.shape}, brightest={self.brightest}, sha256={digest})"


def read_image(
    path: Path, content: bytes | None = None, *, channels: int, size: tuple[int, int] | None = None
) -> tuple[Image, tuple[str, ...]]:
    """A file of an image: of several pictures the first, as the camera was held, its transparency left out.

    Args:
        path: of the file, or what messages call it.
        content: of the file; None: it is read.
        channels: 1, grey; or 3, red, green and blue.
        size: height and width to which it is stretched (bicubic, smoothed where it becomes smaller); None: its own.

    Returns:
        The image, and what was done to it: "stretched", "made grey", "given colours", "rounded to 8 bits", "made
        opaque".

    Raises:
        ValueError: the library is not there, or the file is no image of 8 or 16 bits.
    """
    if find_spec("PIL") is None:
        raise ValueError(
            f"{path}: pillow is not installed; pip install pillow, or Triptych with its extra: pip install '.[images]'"
        )
    from PIL import Image as Pillow  # which not everybody needs
    from PIL import ImageOps

    try:
        with Pillow.open(path if content is None else BytesIO(content)) as file:
            upright = ImageOps.exif_transpose(file)
            done = ["made opaque"] if upright.has_transparency_data else []
            is_pgm = file.format == "PPM" and upright.mode == "I"  # scaled to 16 bits, in numbers of 32
            if upright.mode.startswith("I;16") or is_pgm:
                bright = np.rint(np.asarray(upright, np.uint16) * (WHITE / BRIGHTEST_OF_16)).astype(np.uint8)
                upright = Pillow.fromarray(bright)
                done.append("rounded to 8 bits")
            picture = upright.convert(MODES[channels])
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError) as error:
        raise ValueError(f"{path}: no image that can be read ({type(error).__name__})") from None
    if upright.mode in ("I", "F"):
        raise ValueError(f"{path}: pixels of 32 bits, whose white is not known; expected 8 or 16 bits")
    was_grey = upright.mode in ("1", "L", "LA")
    if was_grey != (channels == 1):
        done.append("given colours" if was_grey else "made grey")
    if size is not None and picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Pillow.Resampling.BICUBIC)
        done.append("stretched")
    pixels = np.asarray(picture).reshape(picture.height, picture.width, channels).transpose(2, 0, 1)
    return Image((channels, picture.height, picture.width), pixels.tobytes()), tuple(done)


def as_png(image: Image) -> bytes:
    """An image as a file (ISO/IEC 15948): rows of bytes, none of them filtered."""
    channels, height, width = image.shape
    pixels = np.rint(np.asarray(image) * WHITE).astype(np.uint8).transpose(1, 2, 0).reshape(height, -1)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    return PNG + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def as_address(image: Image) -> str:
    """An image as what a page shows: a data address."""
    return PNG_ADDRESS + base64.b64encode(as_png(image)).decode()


def as_image(
    values: ArrayLike, shape: tuple[int, int, int], of: str = "patches"
) -> Float[np.ndarray, "channels height width"]:
    """Nested sequences, or an array, or an ``Image``, as pixels of this shape.

    Args:
        values: channels of rows of pixels; of an image with one channel, also its rows.
        shape: channels, height, width.
        of: what has this shape, for messages.

    Raises:
        ValueError: no numbers, or another shape.
    """
    expected = "x".join(map(str, shape)) + f" ({of}: channels, rows, columns)"
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
