"""Memories compared with loops over single samples."""

from collections import defaultdict, deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reservoir_buffer import numbered

from ddn_lightning import ClassBalancedReservoir, ConfigurationError, ReservoirBuffer, RingBuffer, Samples, SlotBuffer

BATCHES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=8)


def stream(batches: list[list[int]]) -> list[Samples]:
    """Samples whose images are their numbers."""
    starts = [sum(map(len, batches[:i])) for i in range(len(batches))]
    return [
        Samples(numbered(start, start + len(labels)).images, torch.tensor(labels), tasks=torch.tensor(labels) // 2)
        for start, labels in zip(starts, batches, strict=True)
    ]


def held(buffer: SlotBuffer) -> dict[int, set[int]]:
    """The numbers of the stored samples by class."""
    found = defaultdict(set)
    samples = buffer[buffer.slots]
    for number, label in zip(samples.images[:, 0, 0, 0].tolist(), samples.labels.tolist(), strict=True):
        found[label].add(number)
    return dict(found)


@settings(deadline=None, max_examples=60)
@given(BATCHES, st.integers(1, 15), st.integers(0, 2**31))
def test_balanced_classes_hold_their_smallest_keys(batches: list[list[int]], size: int, seed: int) -> None:
    buffer = ClassBalancedReservoir(size, seed)
    generator = torch.Generator().manual_seed(seed)
    keys: dict[int, list[tuple[float, int]]] = defaultdict(list)
    number = 0
    for samples in stream(batches):
        drawn = torch.rand(len(samples), generator=generator, dtype=torch.float64).tolist()
        for key, label in zip(drawn, samples.labels.tolist(), strict=True):
            keys[label].append((key, number))
            number += 1
        buffer.add(samples)
        # all samples ever offered, by their rank in their class and then by key: the first of them are held
        ranked = sorted((rank, *one, label) for label, own in keys.items() for rank, one in enumerate(sorted(own)))
        expected = defaultdict(set)
        for _, _, n, label in ranked[:size]:
            expected[label].add(n)
        assert held(buffer) == dict(expected)
        assert len(buffer) == min(number, size)


def test_a_rare_class_is_kept_whole_and_a_frequent_one_evenly() -> None:
    """Chi-square over 2,000 streams, of whose 40 samples of one class 8 are kept: 39 degrees of freedom."""
    counts = torch.zeros(40)
    for seed in range(2000):
        buffer = ClassBalancedReservoir(10, seed)
        for samples in stream([[0] * 20, [1, 1] + [0] * 20]):
            buffer.add(samples)
        kept = held(buffer)
        assert kept[1] == {20, 21}
        numbers = torch.tensor(sorted(kept[0]))
        counts[torch.where(numbers < 20, numbers, numbers - 2)] += 1
    expected = 2000 * 8 / 40
    assert ((counts - expected).square() / expected).sum() < 72.1  # 99.9 %


@settings(deadline=None, max_examples=60)
@given(BATCHES, st.integers(4, 15))
def test_a_ring_holds_the_newest_of_each_class(batches: list[list[int]], size: int) -> None:
    buffer = RingBuffer(size, num_classes=4)
    rings: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=size // 4))
    number = 0
    for samples in stream(batches):
        before = dict(zip(buffer.slots.tolist(), _numbers(buffer), strict=True))
        changed = buffer.add(samples).tolist()
        for label in samples.labels.tolist():
            rings[label].append(number)
            number += 1
        assert held(buffer) == {label: set(ring) for label, ring in rings.items()}
        after = dict(zip(buffer.slots.tolist(), _numbers(buffer), strict=True))
        assert changed == [slot for slot in after if after[slot] != before.get(slot)]
        assert set(buffer.draw(100).tolist()) == set(after)
        assert set(buffer.slots_of([1]).tolist()) == {
            slot for slot in after if int(buffer[torch.tensor([slot])].labels) > 1
        }


def _numbers(buffer: SlotBuffer) -> list[int]:
    return buffer[buffer.slots].images[:, 0, 0, 0].tolist() if len(buffer) else []


def test_a_ring_without_a_slot_for_each_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="buffer_size must give each of 20 classes a slot, got 10"):
        RingBuffer(10, num_classes=20).add(stream([[0]])[0])


@pytest.mark.parametrize("policy", [ReservoirBuffer, ClassBalancedReservoir, lambda *a: RingBuffer(*a, num_classes=4)])
def test_a_restored_memory_continues_identically(policy: type[SlotBuffer]) -> None:
    batches = stream([[0, 0, 1], [2, 1, 0, 3, 3], [3] * 9, [0, 1, 2, 3] * 3])
    whole, first, second = policy(9, 5), policy(9, 5), policy(9, 1)
    for samples in batches:
        whole.add(samples)
    for samples in batches[:2]:
        first.add(samples)
    second.load_state_dict(first.state_dict())
    for samples in batches[2:]:
        second.add(samples)
    assert held(second) == held(whole)
    assert torch.equal(second.draw(5), whole.draw(5))


class Choosing(SlotBuffer):
    """Returns what a test gives it."""

    def __init__(self, chosen: object) -> None:
        super().__init__(buffer_size=9)
        self.chosen = chosen

    def choose(self, samples: Samples, method: object) -> torch.Tensor:
        return self.chosen  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (torch.arange(2), r"int64 of shape \(2,\)"),
        (torch.tensor([True, False, True]), r"bool of shape \(3,\)"),
        (torch.rand(3), r"float32 of shape \(3,\)"),
        ([0, 1, 2], "a list of 3"),
        (torch.tensor([0, 9, 1]), "9"),
        (torch.tensor([0, -2, 1]), "-2"),
        (torch.arange(3, device="meta"), "them on meta"),
    ],
)
def test_slots_that_do_not_exist_are_refused_in_one_line(chosen: object, found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Choosing.choose must return 3 integers from -1 to 8.* got {found}$"):
        Choosing(chosen).add(stream([[0, 1, 2]])[0])


def test_slots_may_be_integers_of_any_size() -> None:
    buffer = Choosing(torch.tensor([4, -1, 2], dtype=torch.int32))
    assert buffer.add(stream([[0, 1, 2]])[0]).tolist() == buffer.slots.tolist() == [2, 4]


def test_an_attribute_that_a_checkpoint_would_lose_is_refused_with_the_first_batch() -> None:
    class Queue(ReservoirBuffer):
        def clear(self) -> None:
            super().clear()
            self.newest: deque[int] = deque()
            self.score = max  # a function is no state

    with pytest.raises(ConfigurationError, match="Queue.newest must be something that a checkpoint can hold.* deque"):
        Queue(9).add(stream([[0, 1, 2]])[0])
