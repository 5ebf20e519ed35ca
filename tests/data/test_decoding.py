"""An image is read as its viewer shows it."""

import struct
import zlib
from pathlib import Path

import numpy
import pytest
from numpy.typing import NDArray
from PIL import ExifTags, Image

from ddn_lightning.data.decoding import decode_image, decode_images, decode_pixels
from ddn_lightning.data.image_tree import list_images
from ddn_lightning.errors import ConfigurationError

# what a camera that was held like this stores, by what the picture shows
STORED = {
    1: lambda pixels: pixels,
    2: numpy.fliplr,
    3: lambda pixels: numpy.rot90(pixels, 2),
    4: numpy.flipud,
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: numpy.rot90(pixels, 1),
    7: lambda pixels: numpy.rot90(pixels, 2).transpose(1, 0, 2),
    8: lambda pixels: numpy.rot90(pixels, -1),
}


def picture() -> NDArray[numpy.uint8]:
    return numpy.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=numpy.uint8)


def exif(orientation: int) -> Image.Exif:
    data = Image.Exif()
    data[ExifTags.Base.Orientation] = orientation
    return data


@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
@pytest.mark.parametrize("orientation", STORED)
def test_a_rotated_image_is_turned_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    stored = Image.fromarray(numpy.ascontiguousarray(STORED[orientation](picture())))
    stored.save(tmp_path / f"a.{suffix}", exif=exif(orientation), **({"lossless": True} if suffix == "webp" else {}))

    assert numpy.array_equal(decode_image(str(tmp_path / f"a.{suffix}"), None).pixels, picture())


def test_a_rotated_photo_is_turned_before_it_is_resized(tmp_path: Path) -> None:
    pixels = numpy.zeros((32, 64, 3), dtype=numpy.uint8)
    pixels[:, 32:] = 255  # bright on the right
    Image.fromarray(numpy.rot90(pixels, 1)).save(tmp_path / "a.jpg", exif=exif(6))

    found = decode_image(str(tmp_path / "a.jpg"), 8).pixels

    assert found[:, :3].max() < 20
    assert found[:, 5:].min() > 235


def photo(mode: str) -> Image.Image:
    smooth = Image.fromarray(picture()).resize((90, 60), Image.Resampling.BICUBIC)
    return smooth.convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_photo_has_the_pixels_that_pillow_decodes(tmp_path: Path, mode: str) -> None:
    photo(mode).save(tmp_path / "a.jpg", quality=90)
    with Image.open(tmp_path / "a.jpg") as image:
        expected = image.convert("RGB")
    assert numpy.array_equal(decode_image(str(tmp_path / "a.jpg"), None).pixels, numpy.asarray(expected))
    resized = numpy.asarray(expected.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert abs(decode_image(str(tmp_path / "a.jpg"), 32).pixels - resized).max() <= 1


def test_only_a_photo_is_resized_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in ("jpg", "png"):
        photo("RGB").save(tmp_path / f"a.{suffix}")
    expected = photo("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    assert numpy.array_equal(decode_image(str(tmp_path / "a.png"), 16).pixels, numpy.asarray(expected))
    monkeypatch.delattr(Image.Image, "resize")
    assert decode_image(str(tmp_path / "a.jpg"), 16).pixels.shape == (16, 16, 3)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_invalid_orientation_is_ignored(tmp_path: Path, orientation: int) -> None:
    Image.fromarray(picture()).save(tmp_path / "a.png", exif=exif(orientation))

    assert numpy.array_equal(decode_image(str(tmp_path / "a.png"), None).pixels, picture())


def test_damaged_exif_data_does_not_hide_the_image(tmp_path: Path) -> None:
    whole = exif(6).tobytes()
    for length in range(6, len(whole)):
        Image.fromarray(picture()).save(tmp_path / "a.png", exif=whole[:length])
        assert decode_image(str(tmp_path / "a.png"), None).pixels.size == picture().size


def transparent(mode: str) -> Image.Image:
    """Left half opaque black, right half invisible, under which there is black as well."""
    image = Image.new("LA" if mode == "LA" else "RGBA", (4, 4))
    image.paste((0, 255) if mode == "LA" else (0, 0, 0, 255), (0, 0, 2, 4))  # type: ignore[arg-type]
    if mode != "P":
        return image
    indexed = Image.new("P", (4, 4), 1)
    indexed.putpalette([0, 0, 0, 0, 0, 0])
    indexed.paste(0, (0, 0, 2, 4))
    return indexed


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_become_white_with_a_note(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"transparency": 1} if mode == "P" else {}
    transparent(mode).save(tmp_path / "a.png", **options)
    Image.new("RGBA", (4, 4), (10, 20, 30, 255)).save(tmp_path / "b.png")  # opaque

    images = decode_images(list_images([str(tmp_path)]), None, "")

    assert (images[0, :, :, :2] == 0).all()
    assert (images[0, :, :, 2:] == 255).all()
    assert images[1, :, 0, 0].tolist() == [10, 20, 30]
    expected = f"note: 1 of 2 images are transparent, such as {tmp_path}/a.png: they get a white background"
    assert expected in capsys.readouterr().err


def test_half_transparent_pixels_are_mixed_with_white(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (0, 100, 200, 51)).save(tmp_path / "a.png")

    assert decode_image(str(tmp_path / "a.png"), 2).pixels[0, 0].tolist() == [204, 224, 244]


def grey(value: int) -> NDArray[numpy.uint8]:
    return numpy.full((4, 6, 3), value, dtype=numpy.uint8)


def png_of_16_bits(path: Path, values: NDArray[numpy.uint16]) -> None:
    """A colour PNG, which Pillow reads but does not write."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def test_colours_of_16_bits_are_scaled_to_8(tmp_path: Path) -> None:
    low = numpy.random.default_rng(1).integers(0, 256, (4, 6, 3), dtype=numpy.uint16)
    png_of_16_bits(tmp_path / "a.png", picture().astype(numpy.uint16) * 256 + low)
    assert numpy.array_equal(decode_image(str(tmp_path / "a.png"), None).pixels, picture())


@pytest.mark.parametrize(
    ("suffix", "dtype"), [("png", numpy.uint16), ("tif", numpy.uint16), ("tif", numpy.int32), ("tif", numpy.float32)]
)
def test_grey_of_more_than_8_bits_is_refused(tmp_path: Path, suffix: str, dtype: type) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(numpy.full((4, 6), 40000, dtype=dtype)).save(path)
    with pytest.raises(ConfigurationError, match=f"^cannot decode the image {path}: .* 8 bits per channel, got mode"):
        decode_image(str(path), None)
    with Image.open(path) as image, pytest.raises(ConfigurationError, match="8 bits per channel, got mode"):
        decode_pixels(image, None)


def test_inks_of_a_jpeg_become_the_colours_that_they_print(tmp_path: Path) -> None:
    for inks, colour in (((0, 0, 0, 0), 255), ((0, 0, 0, 255), 0), ((0, 255, 255, 0), (255, 0, 0))):
        Image.new("CMYK", (8, 8), inks).save(tmp_path / "a.jpg", quality=95)
        with Image.open(tmp_path / "a.jpg") as image:
            assert image.mode == "CMYK"
        found = decode_image(str(tmp_path / "a.jpg"), None).pixels.astype(int)
        assert abs(found - colour).max() <= 6


def test_a_palette_may_be_transparent_in_part(tmp_path: Path) -> None:
    indexed = Image.new("P", (4, 4), 1)
    indexed.putpalette([0, 0, 0, 200, 100, 0])
    indexed.save(tmp_path / "a.png", transparency=bytes([255, 51]))
    assert decode_image(str(tmp_path / "a.png"), None).pixels[0, 0].tolist() == [244, 224, 204]


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "tif"])
def test_the_first_frame_of_an_animation_counts(tmp_path: Path, suffix: str) -> None:
    first, *others = (Image.fromarray(grey(value)) for value in (40, 120, 200))
    options = {"lossless": True} if suffix == "webp" else {}
    first.save(tmp_path / f"a.{suffix}", save_all=True, append_images=others, **options)
    with Image.open(tmp_path / f"a.{suffix}") as image:
        assert image.n_frames == 3
    assert numpy.array_equal(decode_image(str(tmp_path / f"a.{suffix}"), None).pixels, grey(40))
