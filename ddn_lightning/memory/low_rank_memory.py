"""Low-rank memory: synthetic images, each channel a product of two thin matrices, matched to incoming batches."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.checkpoint import checks
from ddn_lightning.distributed import moved, take_from_first_rank
from ddn_lightning.errors import ConfigurationError, check_momentum, check_not_negative, check_positive
from ddn_lightning.memory.distribution_matching import (
    SiameseAugmentation,
    matching_loss,
    random_features,
    random_network,
)
from ddn_lightning.memory.exemplar_set import rank_in_class
from ddn_lightning.memory.memory import Memory, MemoryOwner, field_lengths
from ddn_lightning.samples import Samples

MEAN, DEVIATION = 127.5, 64.0  # grey levels that standardise pixels, roughly, for any data
FACTORS = ("left", "right")
HOST_FIELDS = ("labels", "tasks")  # used to select slots on the host
FLOAT = 4  # bytes of a number in a factor
EPSILON = 1e-12  # for images without a gradient
Init = Literal["real", "noise"]


class LowRankMemory(Memory):
    """Learns low-rank images whose mean features match those of the incoming samples, class by class.

    Each channel of an image is a product of a (height, rank) and a (rank, width) matrix, so the numbers of one full
    image store ``height * width / (rank * (height + width))`` images: 8 of 32 x 32 at rank 2. As in the literature,
    size is counted in numbers, although a factor takes four bytes and a pixel one, and momentum is not counted.

    All classes seen share the memory equally. A class's images begin as its first incoming ones at this rank, until
    its share is full. Each incoming batch is matched by the images of its classes, within a budget of steps per task.

    Args:
        buffer_size: Size in full images, by default the method's ``buffer_size``.
        seed: Random seed.
        rank: Rank of each channel.
        init: How images begin: ``real``, the nearest of this rank to an incoming image, or ``noise``, as in the
            original, which takes 20,000 steps from there.
        matching_steps: Maximum number of matching steps per task.
        matching_steps_per_batch: Matching steps on each incoming batch.
        matching_lr: Root mean square of a step of a factor. Gradients are normalised, since their norm depends on the
            number of features and of images. On CIFAR-10, with 80 images of a class, a step of the original has about
            0.01; from noise, so small steps get nowhere within the budget.
        matching_momentum: Momentum of the steps.
        matching_width: Channels of the random networks.
        matching_batch_size: Maximum number of images per step.
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        seed: int = 0,
        rank: int = 2,
        init: Init = "real",
        matching_steps: int = 100,
        matching_steps_per_batch: int = 1,
        matching_lr: float = 0.01,
        matching_momentum: float = 0.5,
        matching_width: int = 128,
        matching_batch_size: int = 256,
    ) -> None:
        super().__init__(buffer_size, seed)
        check_positive(
            rank=rank,
            matching_steps_per_batch=matching_steps_per_batch,
            matching_lr=matching_lr,
            matching_width=matching_width,
            matching_batch_size=matching_batch_size,
        )
        check_not_negative(matching_steps=matching_steps)
        check_momentum(matching_momentum=matching_momentum)
        self.rank = rank
        self.init = init
        self.matching_steps = matching_steps
        self.matching_steps_per_batch = matching_steps_per_batch
        self.matching_lr = matching_lr
        self.learning_rates = {"memory.matching_lr": matching_lr}
        self.matching_momentum = matching_momentum
        self.matching_width = matching_width
        self.matching_batch_size = matching_batch_size
        self.clear()

    def check(self, num_classes: int, image_shape: Sequence[int]) -> None:
        """Refuse a memory that is too small for all classes."""
        self.images_per_class(image_shape, num_classes)

    def clear(self) -> None:
        """Remove all images and reset the step count."""
        self.task, self.steps_taken = -1, 0
        self._fields: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labels(self) -> Tensor:
        """Classes of the images, on the host."""
        return self._fields["labels"] if self._fields else torch.empty(0, dtype=torch.long)

    def __getitem__(self, slots: Tensor) -> Samples:
        images = self._standardised(moved(slots, self._device))
        images = (MEAN + DEVIATION * images).round().clamp(0, 255).to(torch.uint8)
        labels = moved(self._fields["labels"][slots], self._device)
        return Samples(images, labels, tasks=self._fields["tasks"][slots], slots=slots)

    @property
    def image_units(self) -> float:
        """Size of the factors, in full images."""
        if not len(self):
            return 0.0
        height, width = self._fields["left"].shape[2], self._fields["right"].shape[3]
        return len(self) * self.rank * (height + width) / (height * width)

    def images_per_class(self, shape: Sequence[int], num_classes: int) -> int:
        """Number of images per class; raises if there is no room for one.

        Args:
            shape: Shape of an image, ending with height and width.
            num_classes: Number of classes that share the memory.
        """
        height, width = shape[-2:]
        number = self.buffer_size * height * width // (num_classes * self.rank * (height + width))
        if not number:
            raise ConfigurationError(
                f"buffer_size must have room for an image of rank {self.rank} of each of {num_classes} classes, got "
                f"{self.buffer_size}"
            )
        return number

    def full_bytes(self, form: Samples) -> int:
        """Bytes of the factors, their momentum, labels and tasks: as many images as fit with any number of classes."""
        assert form.tasks is not None
        channels, height, width = form.images.shape[1:]
        number = self.buffer_size * height * width // (self.rank * (height + width))
        factors = 2 * FLOAT * channels * self.rank * (height + width)  # and momentum
        return number * (factors + form.labels.nbytes + form.tasks.nbytes)

    def add(self, samples: Samples, method: MemoryOwner | None = None) -> Tensor:
        """Make room for new classes and take matching steps. Returns no slots, since stored images are only updated."""
        assert samples.tasks is not None
        labels = samples.labels.cpu()
        self._make_room(samples, labels)
        if (task := int(samples.tasks.max())) != self.task:
            self.task, self.steps_taken = task, 0
        real = standardised(samples.images)
        number = min(self.matching_steps_per_batch, self.matching_steps - self.steps_taken)
        losses = [self._match(real, labels) for _ in range(number)]
        self.steps_taken += len(losses)
        self.loss = torch.stack(losses).amax() if losses else None
        return torch.empty(0, dtype=torch.long)

    def slots_of(self, tasks: Iterable[int]) -> Tensor:
        """The slots with images of these tasks."""
        if not self._fields:
            return torch.empty(0, dtype=torch.long)
        return torch.isin(self._fields["tasks"], torch.tensor(list(tasks))).nonzero().squeeze(1)

    def to(self, device: torch.device) -> None:
        """Move the factors to a device."""
        for name, field in self._fields.items():
            self._fields[name] = field.cpu() if name in HOST_FIELDS else field.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Factors, momentum and step count."""
        return {
            "buffer_size": self.buffer_size,
            "rank": self.rank,
            "task": self.task,
            "steps_taken": self.steps_taken,
            "generator": self.generator.get_state(),
            "contents": {name: field.cpu().clone() for name, field in self._fields.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a memory of the same size and rank."""
        names = ("buffer_size", "rank", "task", "steps_taken", "generator", "contents")
        checks.mapping("memory", state, names)
        for name, own in (("buffer_size", self.buffer_size), ("rank", self.rank)):
            if state[name] != own:
                raise ConfigurationError(f"{name} is {own}, but that of the checkpoint's memory is {state[name]}")
        task = checks.integer("memory/task", state["task"], least=-1)
        steps_taken = checks.integer("memory/steps_taken", state["steps_taken"], most=self.matching_steps)
        contents = checks.mapping("memory/contents", state["contents"])
        lengths = field_lengths(contents)
        if len(set(lengths)) != (task >= 0):  # all fields are equally long, and empty before the first task
            raise ConfigurationError(f"the checkpoint's memory of {task + 1} tasks holds {lengths} images")
        if contents:
            self._check_contents(contents)
            if (newest := int(contents["tasks"].max())) > task:  # a task of known classes begins no images
                checks.refuse("memory/task", f"at least that of the newest images, {newest}", task)
        generator = checks.generator_state("memory/generator", state["generator"])
        self.task, self.steps_taken = task, steps_taken
        self.generator.set_state(generator.get_state())
        self._fields = dict(contents)

    def _check_contents(self, contents: dict[str, Any]) -> None:
        """Check the shapes and types of factors, momentum, labels and tasks."""
        part = "memory/contents"
        checks.mapping(part, contents, ("left", "right", "left_momentum", "right_momentum", "labels", "tasks"))
        left = checks.tensor(f"{part}/left", contents["left"], None, (None, None, None, self.rank))
        right = checks.tensor(f"{part}/right", contents["right"], None, (*left.shape[:2], self.rank, None))
        for name, like in (("left_momentum", left), ("right_momentum", right)):
            checks.tensor(f"{part}/{name}", contents[name], like.dtype, like.shape)
        for name in ("labels", "tasks"):
            checks.tensor(f"{part}/{name}", contents[name], torch.int64, left.shape[:1], least=0)

    def _make_room(self, samples: Samples, labels: Tensor) -> None:
        """Divide the memory among all classes, including those of a batch, and begin images in the room of these."""
        known = self.labels
        share = self.images_per_class(samples.images.shape, len(torch.unique(torch.cat([known, labels]))))
        begin = self._begin_real if self.init == "real" else self._begin_noise
        if begun := begin(samples, labels, share):
            kept = (rank_in_class(known) < share).nonzero().squeeze(1)
            held = {name: field[moved(kept, field.device)] for name, field in self._fields.items()}
            parts = [held, *begun] if held else begun
            self._fields = {name: torch.cat([part[name] for part in parts]) for name in begun[0]}

    def _begin_real(self, samples: Samples, labels: Tensor, share: int) -> list[dict[str, Tensor]]:
        """Incoming images, while there is room in their class."""
        assert samples.tasks is not None
        places = rank_in_class(torch.cat([self.labels, labels]))[len(self) :]
        chosen = (places < share).nonzero().squeeze(1)
        if not len(chosen):
            return []
        images = samples.images[moved(chosen, samples.images.device)]
        left, right = low_rank_factors(standardised(images), self.rank)  # waits for a GPU, until the share is full
        take_from_first_rank([left, right])
        return [new_fields(left, right, labels[chosen], samples.tasks[chosen])]

    def _begin_noise(self, samples: Samples, labels: Tensor, share: int) -> list[dict[str, Tensor]]:
        """The whole share of each new class."""
        assert samples.tasks is not None
        channels, height, width = samples.images.shape[1:]
        device = samples.images.device
        begun = []
        for label in torch.unique(labels[~torch.isin(labels, self.labels)]):
            left = moved(torch.randn(share, channels, height, self.rank, generator=self.generator), device)
            right = moved(torch.randn(share, channels, self.rank, width, generator=self.generator), device)
            task = samples.tasks[labels == label][0]
            begun.append(new_fields(left, right, label.repeat(share), task.repeat(share)))
        return begun

    @property
    def _device(self) -> torch.device:
        return self._fields["left"].device

    def _standardised(self, slots: Tensor) -> Tensor:
        return self._fields["left"][slots] @ self._fields["right"][slots]

    @torch.enable_grad()
    def _match(self, real: Tensor, labels: Tensor) -> Tensor:
        """One SGD step on the distance between mean features; the returned loss is not finite if a factor is not."""
        eligible = torch.isin(self.labels, labels).nonzero().squeeze(1)
        chosen = eligible[torch.randperm(len(eligible), generator=self.generator)[: self.matching_batch_size]]
        slots = moved(chosen, self._device)
        factors = [self._fields[name][slots].requires_grad_() for name in FACTORS]
        augment = SiameseAugmentation.draw(self.generator)
        network = random_network(self.generator, real, self.matching_width)
        both = torch.cat([augment(real), augment(factors[0] @ factors[1])])
        features = random_features(both, network)
        loss = matching_loss(features[: len(real)], labels, features[len(real) :], self.labels[chosen])
        for name, gradient in zip(FACTORS, torch.autograd.grad(loss, factors), strict=True):
            size = gradient.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
            step = self.matching_momentum * self._fields[f"{name}_momentum"][slots] + gradient / (size + EPSILON)
            take_from_first_rank([step])
            self._fields[f"{name}_momentum"][slots] = step
            self._fields[name][slots] -= self.matching_lr * step
        # NaN factors would be hidden by the conversion to bytes: make the loss NaN, too
        largest = [self._fields[name].abs().amax() for name in FACTORS]
        return loss.detach() + 0 * torch.stack(largest).amax()


def standardised(images: Tensor) -> Tensor:
    """Raw images with a mean of about zero and a deviation of about one."""
    return (images.float() - MEAN) / DEVIATION


def low_rank_factors(images: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors (..., height, rank) and (..., rank, width) of the images of this rank that are nearest to these.

    >>> left, right = low_rank_factors(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), rank=1)
    >>> (left @ right).round()
    tensor([[3., 0.],
            [0., 0.]])
    """
    left, values, right = torch.linalg.svd(images, full_matrices=False)
    roots = values[..., :rank].sqrt()
    missing = rank - roots.shape[-1]  # positive if the rank exceeds that of any such image
    left, right = left[..., :rank] * roots[..., None, :], roots[..., None] * right[..., :rank, :]
    return functional.pad(left, (0, missing)), functional.pad(right, (0, 0, 0, missing))


def new_fields(left: Tensor, right: Tensor, labels: Tensor, tasks: Tensor) -> dict[str, Tensor]:
    """All that is stored of images with these factors: no momentum yet."""
    momentum = {"left_momentum": torch.zeros_like(left), "right_momentum": torch.zeros_like(right)}
    return {"left": left, "right": right, **momentum, "labels": labels, "tasks": tasks}
