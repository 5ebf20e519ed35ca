from collections import Counter
from pathlib import Path

import pytest
import torch
from every_method import SaveAlways, build
from test_resume import assert_equal, outcome
from tiny import Fit, TinySequence, small_net
from torch import Tensor
from torchvision.transforms import v2

from ddn_lightning import ER, ConfigurationError, FrozenFeatures, RandAugment, ReplayMethod

NAMES = [*v2.RandAugment._AUGMENTATION_SPACE]


def by_torchvision(image: Tensor, name: str, sign: int, magnitude: int) -> Tensor:
    """One operation of torchvision's RandAugment on one image."""
    levels, is_signed = v2.RandAugment._AUGMENTATION_SPACE[name]
    values = levels(31, *image.shape[-2:])
    value = 0.0 if values is None else float(values[magnitude]) * (sign if is_signed else 1)
    augment = v2.RandAugment()
    changed: Tensor = augment._apply_image_or_video_transform(image, name, value, augment.interpolation, augment._fill)
    return changed


@pytest.mark.parametrize(("channels", "magnitude"), [(1, 30), (3, 0), (3, 14)])
def test_each_image_is_changed_by_one_of_torchvisions_operations(channels: int, magnitude: int) -> None:
    """Brute force: every operation with every sign, on every image alone; and all of them occur."""
    images = torch.randint(40, 200, (100, channels, 20, 19), dtype=torch.uint8)
    augmented = RandAugment(operations=1, magnitude=magnitude)(images, torch.Generator().manual_seed(0))
    found: Counter[str] = Counter()
    for before, after in zip(images, augmented, strict=True):
        candidates = {(name, sign): by_torchvision(before, name, sign, magnitude) for name in NAMES for sign in (1, -1)}
        matching = [name for (name, _), image in candidates.items() if (image.int() - after.int()).abs().max() <= 1]
        assert matching  # up to a grey level, as torchvision's magnitudes are rounded
        found[matching[0]] += 1
    if magnitude == 14:
        assert found.keys() == set(NAMES)


def test_one_seed_repeats_and_operations_follow_each_other() -> None:
    images = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    augment = RandAugment(operations=2, magnitude=20)
    first, again = (augment(images, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, augment(images, torch.Generator().manual_seed(2)))
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(28, (2, 40), generator=generator)
    expected = augment._changed(augment._changed(images, drawn[0]), drawn[1])
    assert torch.equal(first, expected)


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (1, 1, 8, 8), (1, 3, 1, 1), (2, 3, 2, 5)])
def test_shares_of_few_images_and_small_images_are_augmented(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        images = torch.randint(256, shape, dtype=torch.uint8)
        assert RandAugment(magnitude=30)(images, generator).shape == shape


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_ranks_and_a_resumed_run_augment_as_one(fit: Fit, tmp_path: Path) -> None:
    def trained(**arguments: object) -> ReplayMethod:
        def make() -> ReplayMethod:
            return build(ER, None, small_net(), rand_augment=RandAugment(magnitude=20)).double()

        return fit(make, TinySequence(batch_size=5, drop_last=False), **arguments)

    one = trained(enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    several = trained(devices=2, strategy="ddp_fork")
    for name, parameter in one.named_parameters():
        assert (parameter - several.get_parameter(name)).abs().max() < 1e-9, name
    assert_equal(outcome(trained(ckpt_path=tmp_path / "step7.ckpt", seed=9)), outcome(one))


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="magnitude must be from 0 to 30, got 31"):
        RandAugment(magnitude=31)
    with pytest.raises(ConfigurationError, match="operations must be positive, got 0"):
        RandAugment(operations=0)
    with pytest.raises(ConfigurationError, match="RandAugment needs images with 1 or 3 channels, got 2"):
        RandAugment()(torch.zeros(1, 2, 4, 4, dtype=torch.uint8), torch.Generator())
    with pytest.raises(ConfigurationError, match="rand_augment must be an object of class RandAugment, got 2"):
        build(ER, rand_augment=2)
    with pytest.raises(ConfigurationError, match="RandAugment changes the images of the memory, which holds features"):
        build(ER, backbone=FrozenFeatures(small_net()), rand_augment=RandAugment())
