"""A memory that stores samples unchanged; subclasses decide which."""

import copy
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.construction import PLAIN
from ddn_lightning.checkpoint.growth import overlaid
from ddn_lightning.distributed import moved
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.memory.memory import LARGE, OF_ANY_MEMORY, Memory, MemoryOwner, field_lengths, size_in_bytes
from ddn_lightning.samples import Samples

HOST_FIELDS = ("tasks",)  # used to select slots on the host
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
OF_ANY_BUFFER = (*OF_ANY_MEMORY, "seen", "_filled", "_fields")  # attributes that no policy chooses by


class SlotBuffer(Memory):
    """Stores samples unchanged. A subclass, such as :class:`ReservoirBuffer`, chooses the slot of each sample.

    Images are stored as ``uint8``, not augmented, on the device of the first batch. Slots are chosen on the host, so
    that all ranks choose alike; the reservoir waits for no device to do so.

    A subclass may choose by attributes of its own: numbers, strings, host tensors, and lists or dictionaries of these.
    They are saved with the samples, so that a resumed run chooses alike. :meth:`clear` sets their initial values.

    Args:
        buffer_size: Number of slots; by default the method's ``buffer_size``.
        seed: Seed of the generator behind :meth:`add` and :meth:`draw`.
    """

    def __init__(self, buffer_size: int | None = None, seed: int = 0) -> None:
        super().__init__(buffer_size, seed)
        self.clear()

    @abstractmethod
    def choose(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """The slot of each sample of a batch, as integers on the host; -1 to skip a sample.

        If several samples go to one slot, the last is stored.

        Args:
            samples: The batch over all ranks, not augmented; its images and labels are on the device.
            method: The method right after its step on the batch; ``None`` outside a fit.
        """

    def clear(self) -> None:
        """Remove all samples."""
        self.seen = 0
        self._filled = torch.empty(0, dtype=torch.long)
        self._fields: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def slots(self) -> Tensor:
        """The filled slots."""
        return self._filled

    @property
    def labels(self) -> Tensor:
        """Classes of the stored samples."""
        if not self._fields:
            return torch.empty(0, dtype=torch.long)
        return self._fields["labels"][moved(self.slots, self._device)]

    def __getitem__(self, slots: Tensor) -> Samples:
        """The samples in these slots, with their slots."""
        on_device = moved(slots, self._device)
        found = {name: field[slots if name in HOST_FIELDS else on_device] for name, field in self._fields.items()}
        return Samples(found["images"], found["labels"], found.get("logits"), found.get("tasks"), slots)

    def add(self, samples: Samples, method: MemoryOwner | None = None) -> Tensor:
        """Offer the samples of a batch in their order.

        Returns:
            The slots with new samples, ascending and on the host.
        """
        slots = self._checked_slots(self.choose(samples, method), len(samples))
        if not self.seen:
            self._check_policy()
        self.seen += len(samples)
        rows = (slots >= 0).nonzero().squeeze(1)
        slots, order = slots[rows].sort(stable=True)
        is_last_write = torch.ones_like(slots, dtype=torch.bool)
        is_last_write[:-1] = slots[1:] != slots[:-1]  # duplicate indices in one write are undefined
        slots, rows = slots[is_last_write], rows[order][is_last_write]
        self._write(slots, rows, samples)
        if len(self._filled) < self.buffer_size:
            self._filled = torch.unique(torch.cat([self._filled, slots]))
        return slots

    def draw(self, size: int, tasks: Iterable[int] | None = None, generator: torch.Generator | None = None) -> Tensor:
        """As in the base class; of a large memory without a look at every slot, unless few are eligible."""
        if tasks is None or len(self) < LARGE:
            return super().draw(size, tasks, generator)
        tasks = list(tasks)
        found = super().draw(4 * size, None, generator)
        found = found[torch.isin(self._tasks()[found], torch.tensor(tasks))]  # the first are a uniform draw of these
        return found[:size] if len(found) >= size else super().draw(size, tasks, generator)

    def slots_of(self, tasks: Iterable[int]) -> Tensor:
        """The slots with samples of these tasks, ascending."""
        if not len(self.slots):
            return self.slots
        is_eligible = torch.isin(self._tasks()[self.slots], torch.tensor(list(tasks)))
        return self.slots[is_eligible]

    def _tasks(self) -> Tensor:
        """The task of the sample in each slot."""
        if "tasks" not in self._fields:
            raise ValueError("tasks must be given with the stored samples to draw by task")
        return self._fields["tasks"]

    def overwrite_images(self, slots: Tensor, images: Tensor) -> None:
        """Replace the images in filled slots; labels, tasks and logits stay."""
        self._fields["images"][moved(slots, self._device)] = images

    def overwrite_logits(self, slots: Tensor, logits: Tensor) -> None:
        """Replace the logits in filled slots."""
        field = self._fields["logits"]
        field[moved(slots, self._device)] = logits.to(field.dtype)

    def to(self, device: torch.device) -> None:
        """Move the samples to a device, after loading a checkpoint."""
        for name, field in self._fields.items():
            if name not in HOST_FIELDS:
                self._fields[name] = field.to(device)

    def full_bytes(self, form: Samples) -> int:
        """Bytes of the samples, of the list of filled slots, and of the attributes of the subclass."""
        return super().full_bytes(form) + 8 * self.buffer_size + size_in_bytes(self._policy())

    def state_dict(self) -> dict[str, Any]:
        """The full state for an exact resume; loads with ``weights_only=True``.

        As in ``torch``, its tensors may be those of the memory: save or copy them before more samples are added.
        """
        contents = {name: self._content_of(field) for name, field in self._fields.items()}
        return {
            "buffer_size": self.buffer_size,
            "seen": self.seen,
            "generator": self.generator.get_state(),
            "contents": contents,
            "slots": self.slots.clone(),
            "policy": copy.deepcopy(self._policy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a memory of the same size and class."""
        checks.mapping("memory", state, ("buffer_size", "seen", "generator", "contents", "slots", "policy"))
        if state["buffer_size"] != self.buffer_size:
            raise ConfigurationError(
                f"buffer_size is {self.buffer_size}, but the checkpoint's memory has {state['buffer_size']} slots"
            )
        seen = checks.integer("memory/seen", state["seen"])
        contents = checks.mapping("memory/contents", state["contents"], ("images", "labels") if seen else ())
        filled = checks.tensor("memory/slots", state["slots"], torch.int64, (None,), 0, self.buffer_size - 1)
        if not torch.equal(filled, torch.unique(filled)):
            checks.refuse("memory/slots", "each slot once, ascending", filled.tolist())
        lengths = field_lengths(contents)
        if any(number != len(filled) for number in lengths or [0]):
            raise ConfigurationError(f"the checkpoint's memory holds {lengths} of the {seen} samples it has seen")
        generator = checks.generator_state("memory/generator", state["generator"])
        policy = self._checked_policy(state["policy"])
        self.clear()
        vars(self).update(policy)
        self.seen, self._filled = seen, filled
        self.generator.set_state(generator.get_state())
        for name, content in contents.items():
            self._fields[name] = content.new_zeros((self.buffer_size, *content.shape[1:]))
            self._fields[name][filled] = content

    def grown_state(self, state: dict[str, Any], num_classes: int) -> dict[str, Any]:
        """With logits of new classes, each as low as the sample's lowest: none is likelier than a known class."""
        contents = checks.mapping("memory/contents", state.get("contents"))
        logits = contents.get("logits")
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            return state
        lowest = logits.min(dim=1, keepdim=True).values.repeat(1, num_classes)
        return {**state, "contents": {**contents, "logits": overlaid(logits, lowest)}}

    def _content_of(self, field: Tensor) -> Tensor:
        """The samples of a field on the host: the field's own memory where the first slots are filled."""
        number = len(self.slots)
        if field.device.type != "cpu" or number == 0 or self.slots[-1] != number - 1:
            return field[moved(self.slots, field.device)].cpu()
        content = field[:number]
        storage = field.untyped_storage()[: content.numel() * field.element_size()]  # a file holds whole storages
        return torch.empty(0, dtype=field.dtype).set_(storage, 0, content.shape, content.stride())

    def _checked_slots(self, slots: object, number: int) -> Tensor:
        """What :meth:`choose` returned, if it is a slot, or -1, for each sample."""
        expected = f"{type(self).__name__}.choose must return {number} integers from -1 to {self.buffer_size - 1}"
        if not isinstance(slots, Tensor) or slots.shape != (number,) or slots.dtype not in INTEGERS:
            raise ConfigurationError(f"{expected}, one for each sample, got {checks.described(slots)}")
        if slots.device.type != "cpu":
            raise ConfigurationError(f"{expected} on the host, got them on {slots.device}")
        if (is_wrong := (slots < -1) | (slots >= self.buffer_size)).any():
            raise ConfigurationError(f"{expected}, got {slots[is_wrong][0]}")
        return slots.long()

    def _policy(self) -> dict[str, Any]:
        """The attributes of the subclass that a checkpoint can hold."""
        return {name: value for name, value in vars(self).items() if name not in OF_ANY_BUFFER and _is_saved(value)}

    def _check_policy(self) -> None:
        """Refuse attributes that would be lost in a checkpoint; functions and arguments are there anyway."""
        known = [id(argument) for argument in self.constructor_arguments.values()]
        for name in vars(self).keys() - self._policy().keys() - set(OF_ANY_BUFFER):
            value = getattr(self, name)
            if not callable(value) and id(value) not in known:
                raise ConfigurationError(
                    f"{type(self).__name__}.{name} must be something that a checkpoint can hold: a number, a string, a "
                    f"tensor, or a list or dictionary of these, got a {type(value).__name__}"
                )

    def _checked_policy(self, saved: object) -> dict[str, Any]:
        """The saved attributes, if those that are tensors fit, and are finite where they begin so."""
        own = self._policy()
        found = checks.mapping("memory/policy", saved, own)
        for name, value in found.items():
            part, initial = f"memory/policy/{name}", own.get(name)
            if name in OF_ANY_BUFFER or not _is_saved(value):
                checks.refuse(part, "an attribute of the memory", value)
            if isinstance(initial, Tensor) and initial.isfinite().all():
                checks.tensor(part, value, initial.dtype, [None] * initial.dim())
        return copy.deepcopy(found)

    def _write(self, slots: Tensor, rows: Tensor, samples: Samples) -> None:
        fields = {name: getattr(samples, name) for name in ("images", "labels", "logits", "tasks")}
        given = {name: field for name, field in fields.items() if field is not None}
        if not self._fields:
            self._fields = {name: f.new_zeros((self.buffer_size, *f.shape[1:])) for name, f in given.items()}
        if given.keys() != self._fields.keys():
            raise ValueError(f"this memory stores {sorted(self._fields)}, got samples with {sorted(given)}")
        self._widen_logits(given.get("logits"))
        slots_on_device, rows_on_device = (moved(index, self._device) for index in (slots, rows))
        for name, field in self._fields.items():
            if name in HOST_FIELDS:
                field[slots] = given[name][rows]
            else:
                field[slots_on_device] = given[name][rows_on_device].to(field.dtype)

    def _widen_logits(self, incoming: Tensor | None) -> None:
        """Convert the stored logits to the wider dtype, if a run was resumed in another precision."""
        if incoming is not None and incoming.dtype != self._fields["logits"].dtype:
            wider = torch.promote_types(incoming.dtype, self._fields["logits"].dtype)
            self._fields["logits"] = self._fields["logits"].to(wider)

    @property
    def _device(self) -> torch.device:
        return self._fields["labels"].device


def _is_saved(value: object) -> bool:
    """Whether a checkpoint that loads with ``weights_only=True`` can hold a value."""
    if isinstance(value, dict):
        return all(isinstance(key, PLAIN) and _is_saved(one) for key, one in value.items())
    return all(map(_is_saved, value)) if isinstance(value, list | tuple) else isinstance(value, (*PLAIN, Tensor))
