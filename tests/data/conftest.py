"""A small image tree, and a list of the images decoded."""

from pathlib import Path

import numpy
import pytest
from PIL import Image

from ddn_lightning.data import decoding
from ddn_lightning.data.decoding import Decoded

CLASSES = ("ant", "bee", "cat", "dog")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two training images and one test image of each of four classes."""
    generator = numpy.random.default_rng(0)
    for split, number in (("train", 2), ("test", 1)):
        for name in CLASSES:
            folder = tmp_path / "tree" / split / name
            folder.mkdir(parents=True)
            for index in range(number):
                pixels = generator.integers(0, 256, (6, 5, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "tree"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the images that were decoded, in any order."""
    paths = []
    original = decoding.decode_image

    def decode_image(path: str, image_size: int | None) -> Decoded:
        paths.append(path)
        return original(path, image_size)

    monkeypatch.setattr(decoding, "decode_image", decode_image)
    return paths
