"""Files of images: as pixels, as a corpus, on a page."""

import base64
import logging
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from triptych.data import Image, ImageFiles, as_image, read_image
from triptych.data.images import PNG_ADDRESS, as_address, as_png

SIZES = st.integers(1, 9)


@given(channels=st.sampled_from([1, 3]), height=SIZES, width=SIZES, seed=st.integers(0, 99))
def test_a_file_is_read_as_it_was_written(channels: int, height: int, width: int, seed: int) -> None:
    """By pillow, and by ours."""
    pixels = np.random.default_rng(seed).integers(256, size=(channels, height, width)).astype(np.uint8)
    image = Image((channels, height, width), pixels.tobytes())
    with Pillow.open(BytesIO(as_png(image))) as file:
        assert file.mode == {1: "L", 3: "RGB"}[channels]
        read = np.asarray(file).reshape(height, width, channels).transpose(2, 0, 1)
    assert np.array_equal(read, pixels)
    assert read_image(Path("a"), as_png(image), channels=channels) == (image, ())
    assert np.allclose(np.asarray(image), pixels / 255)
    assert Image.of(np.asarray(image)) == image
    assert base64.b64decode(as_address(image).removeprefix(PNG_ADDRESS)) == as_png(image)


def test_steps_of_brightness() -> None:
    image = Image.of(np.array([[[0.0, 0.5, 1.0, 2.0, -1.0]]]), brightest=16)
    assert image.content == bytes([0, 8, 16, 16, 0])
    assert np.asarray(image).tolist() == [[[0, 0.5, 1, 1, 0]]]
    assert np.asarray(image, dtype=np.float64).dtype == np.float64
    assert np.array_equal(as_image(image, (1, 1, 5)), np.asarray(image))
    assert repr(image) == repr(Image.of(np.asarray(image), brightest=16)) != repr(Image.of(np.asarray(image)))


def saved(picture: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def test_images_are_made_alike() -> None:
    grey, colours = Pillow.new("L", (4, 2), 51), Pillow.new("RGB", (4, 2), (255, 0, 0))
    image, done = read_image(Path("a"), saved(grey), channels=3)
    assert (image.shape, done) == ((3, 2, 4), ("converted to colour",))
    assert np.allclose(np.asarray(image), 0.2)
    image, done = read_image(Path("a"), saved(colours), channels=1)
    assert (image.shape, done) == ((1, 2, 4), ("converted to grey",))
    assert np.allclose(np.asarray(image), 76 / 255)  # ITU-R 601-2: 0.299 of red
    image, done = read_image(Path("a"), saved(colours), channels=3, size=(4, 4))
    assert (image.shape, done) == ((3, 4, 4), ("stretched",))
    transparent = Pillow.new("RGBA", (4, 2), (255, 0, 0, 10))
    opaque, done = read_image(Path("a"), saved(transparent), channels=3)
    assert (opaque, done) == (read_image(Path("a"), saved(colours), channels=3)[0], ("made opaque",))
    deep = Pillow.fromarray(np.array([[0, 257, 32768, 65535]], np.uint16))
    for channels, made in ((1, ()), (3, ("converted to colour",))):
        image, done = read_image(Path("a"), saved(deep), channels=channels)
        assert done == ("rounded to 8 bits", *made)
        assert np.array_equal(np.asarray(image)[0] * 255, [[0, 1, 128, 255]])
    for kind in ("I", "F"):
        with pytest.raises(ValueError, match="a: the white level of 32-bit pixels is unknown; expected 8 or 16 bits"):
            read_image(Path("a"), saved(Pillow.new(kind, (4, 2), 1), "TIFF"), channels=1)
    lying = Pillow.new("L", (4, 2))
    lying.putpixel((0, 0), 255)
    exif = Pillow.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    image, _ = read_image(Path("a"), saved(lying, "PNG", exif=exif), channels=1)
    assert image.shape == (1, 4, 2)
    assert np.asarray(image)[0, 0, 1] == 1
    with pytest.raises(ValueError, match="a: not a readable image"):
        read_image(Path("a"), b"no image", channels=1)
    with pytest.raises(ValueError, match="a: not a readable image"):
        read_image(Path("a"), saved(colours)[:50], channels=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    for i in range(6):
        Pillow.new("L", (4, 4), 20 * i).save(tmp_path / "pictures" / f"{i}.png")
    rows = [f"pictures/{i}.png\tgrey of {i}\t{'ab'[i % 2]}" for i in range(6)]
    (tmp_path / "table.tsv").write_text("\n".join(["file\tsaid\tkind", *rows]) + "\n")
    return tmp_path


def corpus(folder: Path, **options: Any) -> ImageFiles:
    settings: dict[str, Any] = {
        "train": "table.tsv", "validation": None, "test": 0.34, "image": "file", "target": "said", "label": "kind",
        "channels": 1, "size": None, "split_seed": 1,
    }  # fmt: skip
    return ImageFiles(dir=str(folder), **settings | options)


def test_images_with_captions_and_classes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits = corpus(folder).splits()
    assert (len(splits.train), len(splits.test)) == (4, 2)
    assert corpus(folder).info.labels == ("a", "b")
    for example in (*splits.train, *splits.test):
        number = int(Path(example.text).stem)
        assert (example.target, example.label) == (f"grey of {number}", "ab"[number % 2])
        assert np.allclose(np.asarray(example.image), 20 * number / 255)
    assert not caplog.records
    Pillow.new("RGB", (5, 3), (0, 0, 255)).save(folder / "pictures" / "2.png")
    with caplog.at_level(logging.WARNING):
        changed = corpus(folder, size=[4, 4]).splits()
    assert {example.image.shape for example in (*changed.train, *changed.test) if example.image} == {(1, 4, 4)}
    said = [record.getMessage() for record in caplog.records]
    assert said == ["1 of 6 images of table.tsv were converted to grey", "1 of 6 images of table.tsv were stretched"]


def test_mistakes(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no column text \(data.target=text\); the columns are file, said, kind"):
        corpus(folder, target="text").splits()
    with pytest.raises(ValueError, match=r"data.channels=2: expected 1 \(grey\) or 3 \(red, green and blue\)"):
        corpus(folder, channels=2)
    with pytest.raises(ValueError, match=r"data.size=\[4\]: expected null, or \[height, width\]"):
        corpus(folder, size=[4])
    (folder / "pictures" / "2.png").write_text("no image")
    with pytest.raises(ValueError, match=r"table.tsv, line 4: .*2.png: not a readable image"):
        corpus(folder).splits()
    (folder / "pictures" / "2.png").unlink()
    with pytest.raises(ValueError, match=r"table.tsv, line 4: .*2.png: no such file"):
        corpus(folder).splits()
    (folder / "table.tsv").write_text("file\tsaid\tkind\n\tx\ta\n")
    with pytest.raises(ValueError, match=r"table.tsv, line 2: file is \"\"; expected an image, or the path of a file"):
        corpus(folder).splits()
