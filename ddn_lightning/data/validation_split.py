"""The validation split: training images that are held out, so that choices are not made on the test images."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.data.data_record import checksum
from ddn_lightning.data.plan import Plan, random_rank
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive, check_share
from ddn_lightning.random_streams import generator_for

NO_VALIDATION: dict[str, Any] = {"validation": None}  # in a checkpoint


@dataclass(frozen=True)
class ValidationSplit:
    """How many training images of each class are held out; in data with domains, of each class in each domain.

    Args:
        share: Share of each class, rounded, at least one image.
        per_class: Number of images of each class.
        seed: Chooses the images. It is not the run's: runs with different seeds are measured on the same images.
    """

    share: float | None = None
    per_class: int | None = None
    seed: int = 0

    @classmethod
    def of(cls, share: float | None, per_class: int | None, seed: int) -> "ValidationSplit | None":
        """The split, or ``None`` if neither a share nor a number is given; both are refused."""
        if share is not None and per_class is not None:
            raise ConfigurationError(
                f"validation_share and validation_per_class exclude each other, got {share} and {per_class}"
            )
        if share is not None:
            check_share(validation_share=share)
        if per_class is not None:
            check_positive(validation_per_class=per_class)
        check_not_negative(validation_seed=seed)
        return None if share is None and per_class is None else cls(share, per_class, seed)

    def is_held_out(self, plan: Plan) -> Tensor:
        """Whether each entry of the plan of all training images is held out; refuse to take all of a class.

        The same images whatever the order of the classes.
        """
        num_classes = plan.is_class_of_task.shape[1]
        groups = plan.tasks * num_classes + plan.labels
        sizes = groups.bincount()
        if self.per_class is not None:
            number = torch.full_like(sizes, self.per_class)
        else:
            assert self.share is not None
            number = (sizes.double() * self.share).round().long().clamp_min(1)
        if len(emptied := ((sizes > 0) & (number >= sizes)).nonzero().flatten()):
            task, label = divmod(int(emptied[0]), num_classes)
            option, value = ("share", self.share) if self.per_class is None else ("per_class", self.per_class)
            raise ConfigurationError(
                f"validation_{option} must leave training images of every class, got {value}, which takes "
                f"{int(number[emptied[0]])} of the {int(sizes[emptied[0]])} images of class {label} in task {task + 1}"
            )
        return random_rank(groups, generator_for(self.seed, "validation split")) < number[groups]

    def record(self, images: Tensor) -> dict[str, Any]:
        """Which images are held out, as JSON values: the options, and a checksum of the images' numbers."""
        return {**asdict(self), "images": len(images), "checksum": checksum(images)}
