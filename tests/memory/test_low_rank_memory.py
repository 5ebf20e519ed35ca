import io
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ddn_lightning import ConfigurationError, LowRankMemory, Samples
from ddn_lightning.memory import low_rank_memory as low_rank
from ddn_lightning.memory.distribution_matching import SiameseAugmentation
from ddn_lightning.memory.low_rank_memory import Init


def batch(labels: list[int], size: int = 8, seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (len(labels), 1, size, size), dtype=torch.uint8, generator=generator)
    return Samples(images, torch.tensor(labels), tasks=torch.tensor(labels) // 2)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(6, 40),
    st.integers(1, 2),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=8),
    st.sampled_from(["real", "noise"]),
)
def test_the_budget_is_never_exceeded_and_classes_share_it(
    buffer_size: int, rank: int, stream: list[list[int]], init: Init
) -> None:
    memory = LowRankMemory(buffer_size, rank=rank, init=init, matching_width=4, matching_batch_size=8)
    met: Counter[int] = Counter()
    for labels in stream:
        memory.add(batch(labels))
        met.update(labels)
        held = memory[torch.arange(len(memory))]
        numbers = sum(memory._fields[name].numel() for name in ("left", "right"))
        assert numbers <= buffer_size * 64
        counts = held.labels.bincount(minlength=6)
        share = buffer_size * 64 // (len(met) * rank * 16)
        expected = {label: share if init == "noise" else min(share, number) for label, number in met.items()}
        assert {label: number for label, number in enumerate(counts.tolist()) if number} == expected
        assert torch.equal(held.tasks, held.labels // 2)
        assert torch.equal(memory.slots_of([0]), (held.labels < 2).nonzero().squeeze(1))


def test_images_have_low_rank_and_are_eight_times_as_many() -> None:
    memory = LowRankMemory(buffer_size=4, matching_steps=0)
    memory.add(batch([0, 1] * 20, size=32))
    assert len(memory) == 32
    channels = memory._standardised(torch.arange(32)).flatten(0, 1)
    assert (torch.linalg.matrix_rank(channels) == 2).all()
    held = memory[torch.tensor([4, 21])]
    assert held.images.dtype == torch.uint8
    assert held.labels.tolist() == [0, 1]


def test_images_begin_as_the_nearest_of_their_rank_to_incoming_ones() -> None:
    memory = LowRankMemory(buffer_size=8, matching_steps=0)
    samples = batch([0, 1, 1, 0])
    memory.add(samples)
    held = memory[torch.arange(4)]
    assert torch.equal(held.labels, samples.labels)
    assert torch.equal(held.tasks, samples.tasks)
    for stored, real in zip(held.images[:, 0].numpy(), samples.images[:, 0].numpy(), strict=True):
        left, values, right = np.linalg.svd((real.astype(float) - 127.5) / 64)
        nearest = 127.5 + 64 * (left[:, :2] * values[:2]) @ right[:2]
        assert np.abs(stored - nearest.clip(0, 255)).max() < 0.51


def test_an_image_is_kept_as_it_is_if_the_rank_allows() -> None:
    memory = LowRankMemory(buffer_size=40, rank=9, matching_steps=0)
    samples = batch([0, 1, 1, 0])
    memory.add(samples)
    assert torch.equal(memory[torch.arange(4)].images, samples.images)


def test_a_class_takes_its_first_images_until_its_share_is_full() -> None:
    memory = LowRankMemory(buffer_size=4, rank=1, matching_steps=0)  # 16 images of 8 x 8
    images = torch.arange(24, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)

    def add(numbers: list[int], label: int) -> list[tuple[int, int]]:
        labels = torch.full((len(numbers),), label)
        memory.add(Samples(images[torch.tensor(numbers)], labels, tasks=labels))
        held = memory[torch.arange(len(memory))]
        return list(zip(held.labels.tolist(), held.images.float().mean((1, 2, 3)).int().tolist(), strict=True))

    assert add([0, 1, 2], 0) == [(0, 0), (0, 1), (0, 2)]
    assert add(list(range(3, 24)), 0) == [(0, number) for number in range(16)]
    assert add([20, 21], 1) == [*((0, number) for number in range(8)), (1, 20), (1, 21)]
    assert add([5], 0) == [*((0, number) for number in range(8)), (1, 20), (1, 21)]


def test_images_can_begin_as_noise() -> None:
    memory = LowRankMemory(buffer_size=4, seed=3, init="noise", matching_steps=0)
    memory.add(batch([1, 0]))
    generator = torch.Generator().manual_seed(3)
    for label in (0, 1):
        drawn = [torch.randn(4, 1, *size, generator=generator) for size in ((8, 2), (2, 8))]
        mine = memory.state_dict()["contents"]["labels"] == label
        for name, noise in zip(("left", "right"), drawn, strict=True):
            assert torch.equal(memory.state_dict()["contents"][name][mine], noise)
    with pytest.raises(ConfigurationError, match="init must be one of .*, got 'random'"):
        LowRankMemory(init="random")  # type: ignore[arg-type]


def test_a_memory_that_began_as_noise_is_restored_and_goes_on_with_real_images() -> None:
    before, after = LowRankMemory(8, init="noise", matching_steps=0), LowRankMemory(8, matching_steps=0)
    before.add(batch([0, 1]))
    after.load_state_dict(before.state_dict())
    after.add(batch([0, 1], seed=1))
    assert torch.equal(after.state_dict()["contents"]["left"], before.state_dict()["contents"]["left"])
    after.add(batch([2, 3], seed=2))
    held = after[torch.arange(len(after))]
    assert held.labels.bincount().tolist() == [4, 4, 1, 1]
    assert torch.equal(held.images[:4], before[torch.arange(4)].images)


def test_matching_brings_the_images_nearer_to_the_class_mean() -> None:
    patterns = torch.zeros(2, 1, 8, 8)
    patterns[0, :, :4], patterns[1, :, :, :4] = 255, 255

    def distance(memory: LowRankMemory) -> float:
        held = memory[torch.arange(len(memory))]
        means = torch.stack([held.images[held.labels == label].float().mean(0) for label in (0, 1)])
        return (means - patterns).abs().mean().item()

    memory = LowRankMemory(buffer_size=20, init="noise", matching_width=32, matching_steps=150, matching_lr=0.1)
    labels = torch.tensor([0, 1] * 8)
    samples = Samples(patterns[labels].to(torch.uint8), labels, tasks=torch.zeros(16, dtype=torch.long))
    memory.add(samples)
    before = distance(memory)
    for _ in range(149):
        memory.add(samples)
    assert distance(memory) < 0.8 * before


def test_a_step_is_normalised_descent_with_momentum_on_mean_features(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"matching_width": 5, "matching_lr": 0.3, "matching_momentum": 0.6, "matching_steps": 0}
    memory = LowRankMemory(buffer_size=4, init="noise", **options)  # type: ignore[arg-type]
    samples = batch([0, 0, 1])
    memory.add(samples)
    convolution = nn.Conv2d(1, 5, 3, padding=1)
    changes = [SiameseAugmentation(kind, (0.1, 0.2, 0.8)) for kind in ("colour", "flip", "crop")]
    left = iter(changes)  # one for each step, for real and synthetic images alike
    weights = [(convolution.weight.detach(), convolution.bias.detach())]
    monkeypatch.setattr(low_rank, "random_network", lambda *_: weights)
    monkeypatch.setattr(SiameseAugmentation, "draw", lambda _: next(left))
    features = nn.Sequential(convolution, nn.InstanceNorm2d(5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())

    held = memory.state_dict()["contents"]
    factors = {name: held[name].clone().requires_grad_() for name in ("left", "right")}
    speed = {name: torch.zeros_like(factor) for name, factor in factors.items()}
    memory.matching_steps = memory.matching_steps_per_batch = 3
    memory.add(samples)
    for augment in changes:
        synthetic = features(augment(factors["left"] @ factors["right"]))
        real = features(augment((samples.images.float() - 127.5) / 64))
        losses = [(real[:2].mean(0) - synthetic[held["labels"] == 0].mean(0)).square().sum()]
        losses += [(real[2] - synthetic[held["labels"] == 1].mean(0)).square().sum()]
        gradients = torch.autograd.grad(torch.stack(losses).sum(), list(factors.values()))
        for (name, factor), gradient in zip(factors.items(), gradients, strict=True):
            for image in range(len(factor)):
                length = gradient[image].square().mean().sqrt()
                speed[name][image] = 0.6 * speed[name][image] + gradient[image] / length
            with torch.no_grad():
                factor -= 0.3 * speed[name]
    for name, factor in factors.items():
        assert torch.allclose(memory.state_dict()["contents"][name], factor, atol=1e-4)


def test_matching_steps_are_limited_per_task() -> None:
    memory = LowRankMemory(20, init="noise", matching_width=4, matching_steps=5, matching_steps_per_batch=2)
    taken = []
    for labels in ([0, 1], [0, 1], [0, 1], [0, 1], [2, 3], [2, 3]):
        before = memory.state_dict()["contents"].get("left")
        memory.add(batch(labels))
        taken.append(memory.steps_taken)
        if taken == [2, 4, 5, 5]:
            assert torch.equal(before, memory.state_dict()["contents"]["left"])
    assert taken == [2, 4, 5, 5, 2, 4]


def test_a_restored_memory_continues_identically() -> None:
    first, second = LowRankMemory(12, matching_width=4), LowRankMemory(12, matching_width=4, seed=9)
    first.add(batch([0, 1]))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for memory in (first, second):
        memory.add(batch([0, 3, 2], seed=1))
        memory.draw(3)
    for name, field in first.state_dict()["contents"].items():
        assert torch.equal(field, second.state_dict()["contents"][name])
    assert torch.equal(first.generator.get_state(), second.generator.get_state())
    LowRankMemory(12).load_state_dict(LowRankMemory(12).state_dict())
    with pytest.raises(ConfigurationError, match="rank is 1, but that of the checkpoint's memory is 2"):
        LowRankMemory(12, rank=1).load_state_dict(first.state_dict())


def test_a_memory_without_room_for_every_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="room for an image of rank 2 of each of 5 classes, got 2"):
        LowRankMemory(2).add(batch([0, 1, 2, 3, 4]))
