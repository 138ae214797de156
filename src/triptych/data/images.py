"""Images: reading, conversion to arrays and PNG."""

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
"""Pillow's pixel mode by number of channels."""
COLOUR_TYPES = {1: 0, 3: 2}
"""PNG colour type by number of channels."""
PNG, PNG_ADDRESS = b"\x89PNG\r\n\x1a\n", "data:image/png;base64,"
"""First bytes of a PNG file, and of its data URL."""
WHITE, BRIGHTEST_OF_16 = 255, 65535
"""Maximum value of 8-bit and of 16-bit pixels."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image; as an array, its pixels range from 0 to 1.

    Attributes:
        shape: channels, height, width.
        content: one byte per pixel and channel, in the order of ``shape``.
        brightest: byte value of 1.0.
        digest: SHA-256 of the content that was left out; empty: the content is there.
    """

    shape: tuple[int, int, int]
    content: bytes
    brightest: int = WHITE
    digest: str = ""

    @classmethod
    def of(cls, pixels: Float[np.ndarray, "channels height width"], brightest: int = WHITE) -> "Image":
        """Quantizes pixels from 0 to 1 to ``brightest`` + 1 levels; values outside the range are clipped."""
        channels, height, width = pixels.shape
        content = np.clip(np.rint(pixels * brightest), 0, brightest).astype(np.uint8).tobytes()
        return cls((channels, height, width), content, brightest)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        pixels = np.frombuffer(self.content, np.uint8).reshape(self.shape).astype(np.float32) / self.brightest
        return pixels if dtype is None else pixels.astype(dtype)

    def __repr__(self) -> str:
        """Short, and equal for equal images: the fingerprint of a corpus hashes it."""
        return f"Image(shape={self.shape}, brightest={self.brightest}, sha256={self.sha256})"

    @property
    def sha256(self) -> str:
        """SHA-256 of the content."""
        return self.digest or hashlib.sha256(self.content).hexdigest()


def read_image(
    path: Path, content: bytes | None = None, *, channels: int, size: tuple[int, int] | None = None
) -> tuple[Image, tuple[str, ...]]:
    """Reads an image file. Only the first frame is used, EXIF rotation is applied, and transparency is dropped.

    Args:
        path: image file; only used in messages if ``content`` is given.
        content: content of the file; None: read ``path``.
        channels: 1 (grey) or 3 (RGB).
        size: height and width to resize to (bicubic, with antialiasing); None: keep the size.

    Returns:
        The image, and the changes made to it: "stretched", "converted to grey", "converted to colour", "rounded to 8
        bits", "made opaque".

    Raises:
        ValueError: pillow is not installed, or the file is not an image with 8 or 16 bits per channel.
    """
    if find_spec("PIL") is None:
        raise ValueError(f"{path}: pillow is not installed; type pip install pillow, or pip install '.[images]'")
    from PIL import Image as Pillow  # optional dependency
    from PIL import ImageOps

    try:
        with Pillow.open(path if content is None else BytesIO(content)) as file:
            upright = ImageOps.exif_transpose(file)
            done = ["made opaque"] if upright.has_transparency_data else []
            is_pgm = file.format == "PPM" and upright.mode == "I"  # Pillow keeps 16-bit values in 32-bit pixels
            if upright.mode.startswith("I;16") or is_pgm:
                bright = np.rint(np.asarray(upright, np.uint16) * (WHITE / BRIGHTEST_OF_16)).astype(np.uint8)
                upright = Pillow.fromarray(bright)
                done.append("rounded to 8 bits")
            picture = upright.convert(MODES[channels])
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError) as error:
        raise ValueError(f"{path}: not a readable image ({type(error).__name__})") from None
    if upright.mode in ("I", "F"):
        raise ValueError(f"{path}: the white level of 32-bit pixels is unknown; expected 8 or 16 bits")
    was_grey = upright.mode in ("1", "L", "LA")
    if was_grey != (channels == 1):
        done.append("converted to colour" if was_grey else "converted to grey")
    if size is not None and picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Pillow.Resampling.BICUBIC)
        done.append("stretched")
    pixels = np.asarray(picture).reshape(picture.height, picture.width, channels).transpose(2, 0, 1)
    return Image((channels, picture.height, picture.width), pixels.tobytes()), tuple(done)


def as_png(image: Image) -> bytes:
    """Encodes an image as PNG (ISO/IEC 15948) without filters."""
    channels, height, width = image.shape
    pixels = np.rint(np.asarray(image) * WHITE).astype(np.uint8).transpose(1, 2, 0).reshape(height, -1)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    return PNG + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def as_address(image: Image) -> str:
    """Encodes an image as a data URL."""
    return PNG_ADDRESS + base64.b64encode(as_png(image)).decode()


def as_image(
    values: ArrayLike, shape: tuple[int, int, int], of: str = "patches"
) -> Float[np.ndarray, "channels height width"]:
    """Converts nested sequences, an array or an ``Image`` to pixels of the given shape.

    Args:
        values: pixels as [channels][rows][columns]; for one channel also [rows][columns].
        shape: channels, height, width.
        of: describes ``shape`` in messages.

    Raises:
        ValueError: not numbers, not finite, or a different shape.
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
        raise ValueError("a pixel is not a finite number")
    return image
