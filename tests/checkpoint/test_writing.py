"""A checkpoint is written as a stream: a large memory is not copied on its way to the file."""

import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ddn_lightning import ReservoirBuffer, RingBuffer, Samples
from ddn_lightning.checkpoint.files import read_checkpoint, write_checkpoint


def samples(number: int) -> Samples:
    labels = torch.arange(number) % 10
    images = torch.randint(256, (number, 3, 16, 16), dtype=torch.uint8)
    return Samples(images, labels, torch.randn(number, 10).bfloat16(), tasks=labels // 2)


def is_shared(content: Tensor, field: Tensor) -> bool:
    return content.untyped_storage().data_ptr() == field.untyped_storage().data_ptr()


@pytest.mark.parametrize("number", [500, 1000])
def test_filled_slots_in_order_are_saved_without_a_copy(number: int) -> None:
    memory, stored = ReservoirBuffer(1000), samples(number)
    memory.add(stored)
    contents = memory.state_dict()["contents"]
    for name, content in contents.items():
        assert torch.equal(content, getattr(stored, name))
        assert is_shared(content, memory._fields[name])
        assert content.untyped_storage().nbytes() == content.numel() * content.element_size()


def test_filled_slots_with_gaps_are_copied() -> None:
    memory = RingBuffer(num_classes=10, buffer_size=1000)
    memory.add(samples(30))
    assert memory.slots.tolist() != list(range(30))
    contents = memory.state_dict()["contents"]
    assert torch.equal(contents["images"], memory[memory.slots].images)
    assert not is_shared(contents["images"], memory._fields["images"])


def test_writing_a_large_memory_takes_a_tenth_of_its_size(tmp_path: Path) -> None:
    memory = ReservoirBuffer(5000)
    memory.add(samples(5000))
    size = memory._fields["images"].nbytes
    tracemalloc.start()
    write_checkpoint({"memory": memory.state_dict()}, tmp_path / "last.ckpt")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 10
    saved = read_checkpoint(tmp_path / "last.ckpt")["memory"]  # checks the checksum of each entry
    restored = ReservoirBuffer(5000)
    restored.load_state_dict(saved)
    assert torch.equal(restored[restored.slots].images, memory[memory.slots].images)
    assert not is_shared(restored._fields["images"], memory._fields["images"])


def test_an_error_of_the_file_system_is_raised_as_it_is() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        write_checkpoint({"weights": torch.ones(100_000)}, Path("/dev/full"))
