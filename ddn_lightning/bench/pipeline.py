"""What comes before and after the network: augmentation and memory."""

from collections.abc import Callable

import torch
from torchvision.transforms import v2

from ddn_lightning.bench.subject import RandomImages, Workload
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.samples import Samples

OURS, PER_IMAGE = "whole batch", "torchvision, image by image"
MEMORY_SIZES = (200, 50_000)


def augmentations(workload: Workload) -> dict[str, Callable[[], object]]:
    """A batch with a crop and flip of each image's own, by us and by torchvision."""
    sequence = RandomImages(workload)
    images = torch.randint(256, (workload.batch, 3, workload.image_size, workload.image_size), dtype=torch.uint8)
    on_device = images.to(workload.device)
    generator = torch.Generator().manual_seed(0)
    transform = v2.Compose(
        [
            v2.RandomCrop(workload.image_size, sequence.padding),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(sequence.mean, sequence.std),
        ]
    )
    return {
        OURS: lambda: sequence.transform(on_device, generator),
        PER_IMAGE: lambda: torch.stack([transform(image) for image in images]).to(workload.device),
    }


def memories(workload: Workload) -> dict[str, Callable[[], object]]:
    """A batch offered to a full reservoir and one drawn from its old tasks, for several sizes of it."""
    return {f"{size:,} images": _add_and_draw(workload, size) for size in MEMORY_SIZES}


def _add_and_draw(workload: Workload, buffer_size: int) -> Callable[[], object]:
    def samples(number: int, task: int) -> Samples:
        shape = (number, 3, workload.image_size, workload.image_size)
        images = torch.zeros(shape, dtype=torch.uint8)
        labels = torch.zeros(number, dtype=torch.long)
        return Samples(images, labels, tasks=torch.full((number,), task)).to(workload.device)

    memory = ReservoirBuffer(buffer_size)
    memory.add(samples(buffer_size, task=0))
    batch = samples(workload.batch, task=1)

    def add_and_draw() -> None:
        memory.add(batch)
        memory[memory.draw(workload.batch, tasks=[0])]

    return add_and_draw
