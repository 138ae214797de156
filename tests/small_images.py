"""Images that cost next to nothing."""

from pathlib import Path

import numpy as np

from triptych.data import Image
from triptych.data.images import as_png

ROWS = ("first", "second", "third", "last")
TO_DRAW = ["task=image_generation", "data=image_files", "data.train=all.tsv", "task.image_size=[4,4]",
           "task.num_channels=1", "task.levels=2", "task.num_inference_steps=4"]  # fmt: skip
"""What ``image_generation`` needs to draw them, besides ``data.dir``."""


def write_small_images(folder: Path, count: int = 124) -> Path:
    """Writes images of 4x4 pixels, and a table of them: a row is white, and the text says which.

    Returns:
        the folder.
    """
    lines = ["file\ttarget"]
    for number in range(count):
        pixels = np.zeros((1, 4, 4))
        pixels[0, number % 4] = 1
        (folder / f"{number}.png").write_bytes(as_png(Image.of(pixels)))
        lines.append(f"{number}.png\tthe {ROWS[number % 4]} row")
    (folder / "all.tsv").write_text("\n".join(lines) + "\n")
    return folder
