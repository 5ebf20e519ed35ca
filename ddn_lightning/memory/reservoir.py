"""Reservoir memory: a uniform sample of everything seen so far, in a fixed number of slots."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.devices import moved
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.memory.memory import Memory
from ddn_lightning.samples import Samples

HOST_FIELDS = ("tasks",)  # only ever used to select slots, which happens on the host


class ReservoirBuffer(Memory):
    """Keeps every sample of a stream with equal probability (Vitter's algorithm R, doi:10.1145/3147.3165).

    Images stay as they came (``uint8``, not augmented) on the device of the first batch. Slots are chosen on the host
    by a generator of the buffer's own, so that a device never has to be waited for and every rank chooses alike.

    Args:
        buffer_size: Number of slots.
        seed: Seed of the generator behind :meth:`add` and :meth:`draw`.

    Example:
        >>> buffer = ReservoirBuffer(buffer_size=2)
        >>> buffer.add(Samples(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5)))
        tensor([0, 1])
        >>> len(buffer), buffer.seen
        (2, 5)
        >>> len(buffer[buffer.draw(32)])
        2
    """

    def __init__(self, buffer_size: int, seed: int = 0) -> None:
        super().__init__(buffer_size, seed)
        self.seen = 0
        self._fields: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return min(self.seen, self.buffer_size)

    @property
    def labels(self) -> Tensor:
        """Classes of what the filled slots hold."""
        return self._fields["labels"][: len(self)] if self._fields else torch.empty(0, dtype=torch.long)

    def __getitem__(self, slots: Tensor) -> Samples:
        """What the slots hold, with the slots noted down."""
        on_device = moved(slots, self._device)
        found = {name: field[slots if name in HOST_FIELDS else on_device] for name, field in self._fields.items()}
        return Samples(found["images"], found["labels"], found.get("logits"), found.get("tasks"), slots)

    def add(self, samples: Samples) -> Tensor:
        """Offer a batch to the reservoir, in its order.

        Returns:
            The slots that hold something new, ascending and on the host.
        """
        turn = torch.arange(self.seen, self.seen + len(samples))  # how many samples were offered before each
        free = min(max(self.buffer_size - self.seen, 0), len(samples))  # so many find a slot that is empty
        chance = torch.rand(len(samples) - free, generator=self.generator, dtype=torch.float64)
        slots = torch.cat([turn[:free], (chance * (turn[free:] + 1)).long()])  # uniform in 0 ... turn, both included
        self.seen += len(samples)

        kept = (slots < self.buffer_size).nonzero().squeeze(1)
        slots, order = slots[kept].sort(stable=True)
        is_last_write = torch.ones_like(slots, dtype=torch.bool)
        is_last_write[:-1] = slots[1:] != slots[:-1]  # writing a slot twice at once would be undefined
        slots, kept = slots[is_last_write], kept[order][is_last_write]
        self._write(slots, kept, samples)
        return slots

    def slots_of(self, tasks: Iterable[int]) -> Tensor:
        """The filled slots that hold samples of these tasks, ascending."""
        if "tasks" not in self._fields:
            raise ValueError("draw(tasks=...) needs a buffer whose samples carry their task")
        is_eligible = torch.isin(self._fields["tasks"][: len(self)], torch.tensor(list(tasks)))
        return is_eligible.nonzero().squeeze(1)

    def overwrite_images(self, slots: Tensor, images: Tensor) -> None:
        """Put other images into slots that are filled; everything else about them stays."""
        self._fields["images"][moved(slots, self._device)] = images

    def to(self, device: torch.device) -> None:
        """Move the contents, as after loading a checkpoint."""
        for name, field in self._fields.items():
            if name not in HOST_FIELDS:
                self._fields[name] = field.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped; loads with ``weights_only=True``."""
        # a slice alone would save the whole storage behind it
        contents = {name: field[: len(self)].cpu().clone() for name, field in self._fields.items()}
        return {
            "buffer_size": self.buffer_size,
            "seen": self.seen,
            "generator": self.generator.get_state(),
            "contents": contents,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved buffer of the same size."""
        checks.mapping("memory", state, ("buffer_size", "seen", "generator", "contents"))
        if state["buffer_size"] != self.buffer_size:
            raise ConfigurationError(
                f"buffer_size is {self.buffer_size}, but the checkpoint's memory has {state['buffer_size']} slots"
            )
        seen = checks.integer("memory/seen", state["seen"])
        contents = checks.mapping("memory/contents", state["contents"], ("images", "labels") if seen else ())
        held = [len(content) if isinstance(content, Tensor) and content.dim() else -1 for content in contents.values()]
        if any(number != min(seen, self.buffer_size) for number in held or [0]):
            raise ConfigurationError(f"the checkpoint's memory holds {held} of the {seen} samples it has seen")
        generator = checks.generator_state("memory/generator", state["generator"])
        self.seen = seen
        self.generator.set_state(generator.get_state())
        self._fields = {}
        for name, content in contents.items():
            self._fields[name] = content.new_zeros((self.buffer_size, *content.shape[1:]))
            self._fields[name][: len(content)] = content

    def _write(self, slots: Tensor, rows: Tensor, samples: Samples) -> None:
        incoming = {
            "images": samples.images,
            "labels": samples.labels,
            "logits": samples.logits,
            "tasks": samples.tasks,
        }
        given = {name: field for name, field in incoming.items() if field is not None}
        if not self._fields:
            self._fields = {name: f.new_zeros((self.buffer_size, *f.shape[1:])) for name, f in given.items()}
        if given.keys() != self._fields.keys():
            raise ValueError(f"this buffer stores {sorted(self._fields)}, got samples with {sorted(given)}")
        self._widen_logits(given.get("logits"))
        slots_on_device, rows_on_device = (moved(index, self._device) for index in (slots, rows))
        for name, field in self._fields.items():
            if name in HOST_FIELDS:
                field[slots] = given[name][rows]
            else:
                field[slots_on_device] = given[name][rows_on_device].to(field.dtype)

    def _widen_logits(self, incoming: Tensor | None) -> None:
        """A run that is resumed in another precision brings logits of another type: keep the wider of both."""
        if incoming is not None and incoming.dtype != self._fields["logits"].dtype:
            wider = torch.promote_types(incoming.dtype, self._fields["logits"].dtype)
            self._fields["logits"] = self._fields["logits"].to(wider)

    @property
    def _device(self) -> torch.device:
        return self._fields["labels"].device
