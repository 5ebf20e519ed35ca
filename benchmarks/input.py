"""Images per second of one core: decoding files, once for each dataset, and augmenting batches, at each step."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torchvision.transforms import v2

from benchmarks.common import Action, RandomImages, Row, Workload, arguments, finish, interleaved, workload_of
from ddn_lightning.data import decoding

PHOTO, CROP = (375, 500), 224  # height and width of a typical photo, and the size that it is decoded to


def write_photo(path: Path) -> None:
    """Write a JPEG file of smooth noise, whose size on disk is that of a photo."""
    coarse = torch.rand(1, 3, 24, 32, generator=torch.Generator().manual_seed(0))
    pixels = 255 * interpolate(coarse, PHOTO, mode="bicubic").clamp(0, 1) + 8 * torch.randn(1, 3, *PHOTO)
    Image.fromarray(pixels[0].clamp(0, 255).byte().permute(1, 2, 0).numpy()).save(path, quality=90)


def actions_on(photo: Path, workload: Workload) -> dict[str, tuple[Action, int]]:
    """Decoding, our augmentation and torchvision's, with the number of images of a call."""
    sequence, images = RandomImages(workload), workload.images(workload.batch)
    generator, transform = torch.Generator().manual_seed(0), torchvision_transform(sequence)
    return {
        "decode a photo": (partial(decoding.decode_image, str(photo), CROP), 1),
        "decode a photo, resized by Pillow (before)": (partial(decode_by_pillow, photo), 1),
        "augment a batch": (lambda: sequence.transform(images, generator), workload.batch),
        "augment by torchvision, image by image": (
            lambda: torch.stack([transform(image) for image in images]),
            workload.batch,
        ),
    }


def decode_by_pillow(photo: Path) -> object:
    """Decode and resize as the package did before."""
    with Image.open(photo) as image:
        return numpy.asarray(image.convert("RGB").resize((CROP, CROP), Image.Resampling.BILINEAR))


def torchvision_transform(sequence: RandomImages) -> v2.Transform:
    """The augmentation of a sequence, for single images."""
    steps = [
        v2.RandomCrop(sequence.workload.image_size, sequence.padding),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(sequence.mean, sequence.std),
    ]
    return v2.Compose(steps)


def measure(workload: Workload, rounds: int, number: int = 10) -> list[Row]:
    """A row for each action."""
    with TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.jpg"
        write_photo(photo)
        actions = actions_on(photo, workload)
        seconds = interleaved({name: action for name, (action, _) in actions.items()}, rounds, number)
    least = {name: min(seconds[name]) / images for name, (_, images) in actions.items()}
    return [{"action": name, "images per second": round(1 / s), "µs an image": 1e6 * s} for name, s in least.items()]


def main() -> None:
    """Measure decoding and augmentation."""
    settings = arguments(__doc__, rounds=5).parse_args()
    rows = measure(workload_of(settings), settings.rounds)
    finish(settings, "Input", {f"A photo of {PHOTO[1]} x {PHOTO[0]} to {CROP} x {CROP}; random crops and flips": rows})


if __name__ == "__main__":
    main()
