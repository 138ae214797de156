"""Images that Pillow wrote, in each of its modes and in many formats, beside Pillow's own pixels."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from triptych.data import read_image

HEIGHT, WIDTH = 6, 5
EXACT = {
    "png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "tiff": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"),
    "bmp": ("1", "L", "P", "RGB", "RGBA"),
    "gif": ("1", "L", "P"),
    "webp": ("RGB", "RGBA"),
    "ppm": ("1", "L", "RGB", "I;16"),
    "tga": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "jp2": ("L", "LA", "RGB", "RGBA", "I;16"),
}
"""Formats without loss, and the modes that Pillow writes in them."""


def made(mode: str) -> Pillow.Image:
    draw = np.random.default_rng(0)
    if mode == "I;16":
        return Pillow.fromarray(draw.integers(0, 2**16, (HEIGHT, WIDTH), dtype=np.uint16))
    coloured = Pillow.fromarray(draw.integers(0, 2**8, (HEIGHT, WIDTH, 3), dtype=np.uint8))
    if mode == "P":
        return coloured.quantize(8)
    if mode in ("LA", "RGBA"):
        coloured.putalpha(Pillow.fromarray(draw.integers(0, 2**8, (HEIGHT, WIDTH), dtype=np.uint8)))
    return coloured.convert(mode)


def pixels_of(image: Pillow.Image, channels: int) -> np.ndarray:
    """The bytes that are expected: of 16 bits the nearest of 8."""
    if image.mode == "I;16":
        grey = np.rint(np.asarray(image, np.float64) / 65535 * 255).astype(np.uint8)
        return np.repeat(grey[None], channels, axis=0)
    converted = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return converted.reshape(HEIGHT, WIDTH, channels).transpose(2, 0, 1)


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in EXACT.items() for mode in modes])
def test_pixels_are_those_that_were_written(kind: str, mode: str, tmp_path: Path) -> None:
    image = made(mode)
    image.save(tmp_path / f"x.{kind}", **{"lossless": True, "exact": True} if kind == "webp" else {})
    for channels in (1, 3):
        found, done = read_image(tmp_path / f"x.{kind}", channels=channels)
        expected = pixels_of(image, channels)
        assert found.shape == expected.shape
        assert found.content == expected.tobytes()
        assert ("rounded to 8 bits" in done) == (mode == "I;16")


@pytest.mark.parametrize("kind", ["P2", "P5"])
@pytest.mark.parametrize("brightest", [255, 256, 1023, 4095, 65535])
def test_pgm_of_any_depth_by_its_definition(kind: str, brightest: int) -> None:
    """https://netpbm.sourceforge.net/doc/pgm.html: white is the number in the header."""
    values = np.random.default_rng(1).integers(0, brightest + 1, (HEIGHT, WIDTH))
    values[0, :2] = 0, brightest
    body = values.astype(">u2" if brightest > 255 else "u1").tobytes()
    text = " ".join(map(str, values.flatten())).encode()
    content = f"{kind} {WIDTH} {HEIGHT} {brightest}\n".encode() + (text if kind == "P2" else body)
    image, done = read_image(Path("x.pgm"), content, channels=1)
    found = np.frombuffer(image.content, np.uint8).reshape(HEIGHT, WIDTH)
    assert np.abs(found - values / brightest * 255).max() <= 0.51  # rounded to 16 bits first
    assert done == (("rounded to 8 bits",) if brightest > 255 else ())


@pytest.mark.parametrize("kind", ["jpeg", "avif"])
def test_pixels_with_losses_are_those_that_pillow_reads(kind: str) -> None:
    for mode in ("L", "RGB", "CMYK") if kind == "jpeg" else ("L", "RGB"):
        file = BytesIO()
        made(mode).save(file, kind)
        for channels in (1, 3):
            found, _ = read_image(Path(f"x.{kind}"), file.getvalue(), channels=channels)
            assert found.content == pixels_of(Pillow.open(file), channels).tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_as_the_camera_was_held(orientation: int) -> None:
    """By the eight orientations of EXIF."""
    image, file = made("L"), BytesIO()
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    image.save(file, "png", exif=exif)
    pixels = np.asarray(image)
    by_number = [pixels, pixels[:, ::-1], pixels[::-1, ::-1], pixels[::-1], pixels.T, pixels.T[:, ::-1],
                 pixels.T[::-1, ::-1], pixels.T[::-1]]  # fmt: skip
    found, _ = read_image(Path("x.png"), file.getvalue(), channels=1)
    assert found.content == by_number[orientation - 1].tobytes()


@pytest.mark.parametrize(("mode", "kind"), [("I", "tiff"), ("F", "tiff"), ("F", "pfm")])
def test_pixels_of_32_bits_are_rejected(mode: str, kind: str, tmp_path: Path) -> None:
    Pillow.fromarray(np.ones((2, 2), np.int32 if mode == "I" else np.float32)).save(tmp_path / f"x.{kind}")
    with pytest.raises(ValueError, match=rf"x\.{kind}: the white level of 32-bit pixels is unknown"):
        read_image(tmp_path / f"x.{kind}", channels=1)
