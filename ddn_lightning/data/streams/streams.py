"""All streams of a task sequence, applied one after the other."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ddn_lightning.data.plan import Plan
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.random_streams import generator_for

NO_STREAM: dict[str, Any] = {"stream": [], "stream_seed": 0, "plan": None, "domains": []}  # in a checkpoint


class Streams:
    """The streams in their order, each with random numbers of its own.

    Args:
        given: One stream, several or none.
        seed: Seed of all of them. One stream does not shift the random numbers of another.
        has_domains: Whether the data has domains of its own.
    """

    def __init__(self, given: Stream | Sequence[Stream] | None, seed: int = 0, has_domains: bool = False) -> None:
        self.streams = () if given is None else (given,) if isinstance(given, Stream) else tuple(given)
        self.seed = seed
        self.has_domains = has_domains
        self._check()

    def __iter__(self) -> Iterator[Stream]:
        return iter(self.streams)

    def __len__(self) -> int:
        return len(self.streams)

    @property
    def is_by_domain(self) -> bool:
        """Whether every task has all classes, with other images."""
        return self.has_domains or any(stream.is_by_domain for stream in self)

    @property
    def has_disjoint_classes(self) -> bool:
        """Whether each class comes in a single task."""
        return not self.has_domains and all(stream.has_disjoint_classes for stream in self)

    @property
    def tells_boundaries(self) -> bool:
        """Whether a method is told a task's classes when the task begins."""
        return all(stream.tells_boundaries for stream in self)

    def change(self, plan: Plan, train: bool) -> Plan:
        """The plan of the training or test samples after all streams."""
        for stream in self:
            generator = generator_for(self.seed, type(stream).__name__)
            plan = stream.change(plan, generator) if train else stream.change_test(plan)
        return plan

    @property
    def changes_images(self) -> bool:
        """Whether images differ by task."""
        return any(map(_changes_images, self))

    def change_images(self, images: Tensor, task: int, num_tasks: int) -> Tensor:
        """The images of a task after all streams."""
        for stream in self:
            generator = generator_for(self.seed, f"{type(stream).__name__} of task {task}")
            images = stream.change_images(images, task, num_tasks, generator)
        return images

    def resume_state(self, plan: Plan | None) -> dict[str, Any]:
        """What a resumed run must share; an evaluation only the streams that change the test images, ``domains``."""
        if not self.streams:
            return NO_STREAM
        domains = [str(stream) for stream in self if _changes_images(stream)]
        return {
            "stream": [str(stream) for stream in self],
            "stream_seed": self.seed,
            "plan": None if plan is None else plan.checksum,
            "domains": [*domains, f"stream_seed={self.seed}"] if domains else [],
        }

    def _check(self) -> None:
        names = [type(stream).__name__ for stream in self]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"stream must have each kind once, got {', '.join(names)}")
        if len(moving := [type(stream).__name__ for stream in self if not stream.tells_boundaries]) > 1:
            raise ConfigurationError(f"stream must have one of {', '.join(moving)}: each moves samples between tasks")
        places = [place for place, stream in enumerate(self) if _changes_images(stream)]
        if places and (self.has_domains or places != [0]):
            reason = "the data has domains of its own" if self.has_domains else "one stream of domains must come first"
            raise ConfigurationError(f"stream must not have {names[places[-1]]} here, got {', '.join(names)}: {reason}")


def _changes_images(stream: Stream) -> bool:
    return stream.is_by_domain or type(stream).change_images is not Stream.change_images
