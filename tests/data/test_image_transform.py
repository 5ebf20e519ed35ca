import random
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from tiny import TinySequence, quiet_trainer, small_net
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import v2

import ddn_lightning
from ddn_lightning import ER, ConfigurationError, ImageTransform


def images(size: int = 6, channels: int = 3) -> Tensor:
    return torch.randint(256, (size, channels, 5, 7), dtype=torch.uint8)


def test_without_a_generator_it_normalises() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    raw = images()
    expected = (raw / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.allclose(ImageTransform(mean, std, padding=2, flip=True)(raw), expected, atol=1e-6)


def test_each_image_is_one_of_its_own_crops_and_flips() -> None:
    """Brute force: every crop of the padded image, straight and mirrored; and many different ones occur."""
    raw = images(200, channels=1)
    generator = torch.Generator().manual_seed(0)
    augmented = ImageTransform([0.0], [1 / 255], padding=2, flip=True)(raw, generator).round().to(torch.uint8)
    seen = torch.zeros(5, 5, 2)
    for before, after in zip(raw, augmented, strict=True):
        padded = functional.pad(before, [2] * 4)
        matches = _matches(padded, after)
        assert matches
        seen[matches[0]] += 1
    assert (seen.sum((1, 2)) > 20).all()
    assert (seen.sum((0, 2)) > 20).all()
    assert 70 < seen[..., 1].sum() < 130


def _matches(padded: Tensor, after: Tensor) -> list[tuple[int, int, int]]:
    found = []
    for top in range(5):
        for left in range(5):
            crop = padded[:, top : top + 5, left : left + 7]
            found += [(top, left, flip) for flip in (0, 1) if torch.equal(crop.flip(-1) if flip else crop, after)]
    return found


def test_no_padding_and_no_flip_leave_the_image_and_the_generator_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    raw = images()
    transform = ImageTransform([0.0] * 3, [1.0] * 3)
    assert torch.equal(transform(raw, generator), transform(raw))
    assert torch.equal(generator.get_state(), before)


def test_two_draws_differ_and_one_seed_repeats() -> None:
    transform = ImageTransform([0.0] * 3, [1.0] * 3, padding=2, flip=True)
    raw, generator = images(), torch.Generator().manual_seed(0)
    first, second = transform(raw, generator), transform(raw, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, transform(raw, torch.Generator().manual_seed(0)))


def test_an_own_augmentation_of_batches_is_normalised_after_it() -> None:
    transform = ImageTransform([0.5] * 3, [0.5] * 3, augment=lambda images: images.float() / 255 / 2)
    raw = images()
    torch.testing.assert_close(transform(raw, torch.Generator()), raw / 255 - 1)  # (x / 2 - 0.5) / 0.5
    assert torch.equal(transform(raw), ImageTransform([0.5] * 3, [0.5] * 3)(raw))  # not in an evaluation


def test_those_of_torchvision_change_each_image_in_its_own_way() -> None:
    raw = images(40)
    flipped = ImageTransform([0.0] * 3, [1 / 255] * 3, augment=v2.RandomHorizontalFlip())(raw, torch.Generator())
    is_flipped = torch.tensor([torch.equal(a.byte(), b.flip(-1)) for a, b in zip(flipped, raw, strict=True)])
    is_kept = torch.tensor([torch.equal(a.byte(), b) for a, b in zip(flipped, raw, strict=True)])
    assert torch.equal(is_flipped, ~is_kept)
    assert 10 < is_flipped.sum() < 30


def test_an_own_augmentation_draws_from_the_generator_and_leaves_the_global_states() -> None:
    def noise(batch: Tensor) -> Tensor:
        return torch.rand_like(batch, dtype=torch.float32) * random.random()

    transform, raw = ImageTransform([0.0] * 3, [1.0] * 3, augment=noise), images()
    states = torch.get_rng_state(), random.getstate()
    generator = torch.Generator().manual_seed(3)
    first, second = transform(raw, generator), transform(raw, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, transform(raw, torch.Generator().manual_seed(3)))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_a_method_takes_an_own_augmentation_and_a_loaded_one_normalises(tmp_path: Path) -> None:
    def run(path: Path | None = None, **options: Any) -> ER:
        seed_everything(0, verbose=False)
        method = ER(small_net(), 6, buffer_size=10, replay_batch_size=5, transform=v2.RandomAffine(30))
        quiet_trainer(**options).fit(method, TinySequence(batch_size=12), ckpt_path=path)
        return method

    method = run()
    method.trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = ddn_lightning.load(tmp_path / "last.ckpt", backbone=small_net())
    raw = TinySequence().load(train=False)[0]
    assert torch.equal(loaded.predict(raw).labels, method.predict(raw).labels)
    run(max_steps=3).trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    resumed = run(tmp_path / "stopped.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), method.parameters(), strict=True))


def test_what_an_own_augmentation_must_not_do_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="augment replaces crop and flip"):
        ImageTransform([0.5], [0.5], flip=True, augment=lambda images: images)
    smaller = ImageTransform([0.5] * 3, [0.5] * 3, augment=lambda images: images[..., :3])
    with pytest.raises(ConfigurationError, match=r"images of shape \(6, 3, 5, 7\), got \(6, 3, 5, 3\)"):
        smaller(images(), torch.Generator())


def test_crops_and_flips_send_three_numbers_an_image_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def watched(tensor: Tensor, device: torch.device) -> Tensor:
        sent.append(tensor.numel())
        return tensor.to(device)

    monkeypatch.setattr("ddn_lightning.data.image_transform.moved", watched)
    ImageTransform([0.0] * 3, [1.0] * 3, padding=2, flip=True)(images(6), torch.Generator())
    assert sent == [18]
