import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddn_lightning import ConfigurationError, ReservoirBuffer, Samples


def numbered(start: int, stop: int, **fields: Tensor) -> Samples:
    """Samples whose label is their number in the stream."""
    labels = torch.arange(start, stop)
    return Samples(labels.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 2, 2), labels, **fields)


def contents(buffer: ReservoirBuffer) -> list[int]:
    return buffer[torch.arange(len(buffer))].labels.tolist()


def algorithm_r(sizes: list[int], buffer_size: int, seed: int) -> list[int]:
    """The textbook loop: one sample, one random number."""
    generator = torch.Generator().manual_seed(seed)
    slots: list[int] = []
    for number in range(sum(sizes)):
        if number < buffer_size:
            slots.append(number)
            continue
        slot = int(torch.rand(1, generator=generator, dtype=torch.float64).item() * (number + 1))
        if slot < buffer_size:
            slots[slot] = number
    return slots


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 2**31))
def test_batches_of_any_size_give_what_the_textbook_loop_gives(sizes: list[int], buffer_size: int, seed: int) -> None:
    buffer = ReservoirBuffer(buffer_size, seed)
    start = 0
    for size in sizes:
        before = contents(buffer) if len(buffer) else []
        changed = buffer.add(numbered(start, start + size)).tolist()
        after = contents(buffer)
        assert changed == [i for i, label in enumerate(after) if i >= len(before) or label != before[i]]
        start += size
    assert contents(buffer) == algorithm_r(sizes, buffer_size, seed)


def test_every_sample_survives_with_equal_probability() -> None:
    """Chi-square over 1,500 streams of 40 samples into 8 slots: 39 degrees of freedom, 99.9 % below 72.1."""
    streams, offered, kept = 1500, 40, 8
    counts = torch.zeros(offered)
    for seed in range(streams):
        buffer = ReservoirBuffer(kept, seed)
        for start in range(0, offered, 10):
            buffer.add(numbered(start, start + 10))
        counts[contents(buffer)] += 1
    expected = streams * kept / offered
    # a sample is in or out: the variance of a count is expected * (1 - kept / offered)
    chi_square = ((counts - expected) ** 2).sum() / (expected * (1 - kept / offered)) * (offered - 1) / offered
    assert 14 < chi_square < 72.1


def test_draws_are_uniform_and_without_replacement() -> None:
    buffer = ReservoirBuffer(10)
    buffer.add(numbered(0, 10))
    counts = torch.zeros(10)
    for _ in range(2000):
        slots = buffer.draw(4)
        assert len(slots.unique()) == 4
        counts[slots] += 1
    assert ((counts - 800) ** 2).sum() / (800 * 0.6) * 0.9 < 27.9  # 9 degrees of freedom, 99.9 %


def test_a_draw_returns_at_most_the_stored_samples_with_their_slots() -> None:
    buffer = ReservoirBuffer(10)
    assert len(buffer.draw(4)) == 0
    buffer.add(numbered(0, 3, tasks=torch.tensor([0, 1, 0])))
    drawn = buffer[buffer.draw(8)]
    assert sorted(drawn.labels.tolist()) == [0, 1, 2]
    assert drawn.slots is not None
    assert drawn.slots.tolist() == drawn.labels.tolist()
    assert drawn.images.dtype == torch.uint8


def test_a_draw_from_old_tasks_with_its_own_generator_does_not_shift_later_draws() -> None:
    def filled() -> ReservoirBuffer:
        buffer = ReservoirBuffer(20)
        buffer.add(numbered(0, 20, tasks=torch.arange(20) % 4))
        return buffer

    buffer, untouched = filled(), filled()
    old = buffer[buffer.draw(8, tasks=range(2), generator=torch.Generator().manual_seed(1))]
    assert len(old) == 8
    assert set(old.tasks.tolist()) == {0, 1}  # type: ignore[union-attr]
    assert len(buffer.draw(50, tasks=[3], generator=torch.Generator())) == 5
    assert len(buffer.draw(50, tasks=[], generator=torch.Generator())) == 0
    assert torch.equal(buffer.draw(5), untouched.draw(5))


def test_logits_are_stored_with_their_samples() -> None:
    buffer = ReservoirBuffer(5)
    for start in range(0, 40, 10):
        buffer.add(numbered(start, start + 10, logits=torch.arange(start, start + 10.0)[:, None].repeat(1, 3)))
    held = buffer[torch.arange(5)]
    assert held.logits is not None
    assert torch.equal(held.logits[:, 0].long(), held.labels)
    assert torch.equal(held.images[:, 0, 0, 0].long(), held.labels)
    with pytest.raises(ValueError, match=r"stores \['images', 'labels', 'logits'\], got samples with"):
        buffer.add(numbered(0, 1))


def saved_and_loaded(buffer: ReservoirBuffer) -> ReservoirBuffer:
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    loaded = ReservoirBuffer(buffer.buffer_size, seed=12345)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    return loaded


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["add", "draw", "save"]), st.integers(1, 12)), max_size=20))
def test_saving_and_loading_anywhere_changes_nothing(actions: list[tuple[str, int]]) -> None:
    def play(save: bool) -> list[Any]:
        buffer, offered, history = ReservoirBuffer(7, seed=3), 0, []
        for action, number in actions:
            if action == "add":
                history.append(buffer.add(numbered(offered, offered + number)).tolist())
                offered += number
            elif action == "draw":
                history.append(buffer.draw(number).tolist())
            elif save:
                buffer = saved_and_loaded(buffer)
        return [*history, buffer.seen, contents(buffer) if len(buffer) else None]

    assert play(save=True) == play(save=False)


def test_a_half_filled_memory_saves_only_its_samples() -> None:
    buffer = ReservoirBuffer(10_000)
    buffer.add(numbered(0, 3))
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    assert file.tell() < 20_000


def test_another_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="buffer_size is 4, but the checkpoint's memory has 7 slots"):
        ReservoirBuffer(4).load_state_dict(ReservoirBuffer(7).state_dict())
    with pytest.raises(ConfigurationError, match="buffer_size must be positive, got -5"):
        ReservoirBuffer(-5)


def test_an_empty_memory_has_no_samples_of_any_task() -> None:
    memory = ReservoirBuffer(5)
    assert memory.slots_of(range(3)).tolist() == []
    assert memory.draw(4, range(3)).tolist() == []


def large_memory(number: int, tasks: int = 2) -> ReservoirBuffer:
    buffer = ReservoirBuffer(buffer_size=number)
    images, labels = torch.zeros(number, 1, 1, 1, dtype=torch.uint8), torch.arange(number)
    buffer.add(Samples(images, labels, tasks=labels % tasks))
    return buffer


@pytest.mark.parametrize("tasks", [None, [1], [0, 2]])
def test_draws_from_a_large_memory_are_uniform_and_without_replacement(tasks: list[int] | None) -> None:
    """Chi-square tests of which slots are drawn, in eight equal parts, at the first and at any place of a draw."""
    buffer, size = large_memory(6000, tasks=3), 32
    eligible = buffer.slots if tasks is None else buffer.slots_of(tasks)
    draws = torch.stack([buffer.draw(size, tasks) for _ in range(1500)])
    assert torch.isin(draws, eligible).all()
    assert all(len(draw.unique()) == size for draw in draws)
    part = torch.searchsorted(eligible, draws) * 8 // len(eligible)
    for chosen in (part[:, 0], part[:, -1], part.flatten()):
        counts = chosen.bincount(minlength=8).double()
        statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert statistic < 24.3  # the 99.9 % quantile with seven degrees of freedom
    pairs = (part[:, 0] * 8 + part[:, 1]).bincount(minlength=64).double()
    assert ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < 103.4  # and with 63


def test_few_eligible_samples_of_a_large_memory_are_all_drawn() -> None:
    buffer = large_memory(6000, tasks=600)
    assert sorted(buffer.draw(32, [7]).tolist()) == list(range(7, 6000, 600))


class Written(TorchDispatchMode):
    """Counts the elements that operations write."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func._schema.is_mutable and not func.is_view:
            self.number += sum(one.numel() for one in tree_leaves(result) if isinstance(one, Tensor))
        return result


def test_draws_and_offers_do_not_cost_more_with_a_larger_memory() -> None:
    written = []
    for number in (5_000, 50_000):
        buffer = large_memory(number)
        offered = Samples(torch.zeros(32, 1, 1, 1, dtype=torch.uint8), torch.arange(32), tasks=torch.arange(32) % 2)
        with Written() as mode:
            for _ in range(20):
                _ = buffer[buffer.draw(32)], buffer.draw(32, [0]), buffer.add(offered)
        written.append(mode.number)
    assert written[1] <= 1.2 * written[0]
