"""Valid return values of a dataset's load, and the errors for all others."""

from typing import Any

import numpy
import pytest
import torch
from tiny import TinySequence
from torch import Tensor

from ddn_lightning.errors import ConfigurationError

IMAGES, LABELS = TinySequence().load(train=True)


class Loading(TinySequence):
    """Returns given images and labels; valid test images by default."""

    def __init__(self, train: Any, test: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.train, self.test = train, test

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        returned: tuple[Tensor, Tensor] = self.train if train else self.test or super().load(train=False)
        return returned


class Colour(Loading):
    mean, std = (0.5,) * 3, (0.5,) * 3


def message_of(sequence: TinySequence) -> str:
    with pytest.raises(ConfigurationError) as error:
        sequence.setup("fit")
    return str(error.value)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (IMAGES / 255, "got float32 in [0, 1]: convert with .mul(255).round().to(torch.uint8)"),
        (IMAGES.float(), ": convert with .to(torch.uint8)"),
        (IMAGES.long(), ": convert with .to(torch.uint8)"),
        ((IMAGES / 255 - 0.5) / 0.25, ": return the raw pixels, they are normalised by mean and std later"),
        (torch.full(IMAGES.shape, torch.nan), "got float32 in [nan, nan]"),
        (IMAGES[:, 0], "got the shape (72, 8, 8): add the channel with .unsqueeze(1)"),
        (IMAGES.flatten(1), "got the shape (72, 64)"),
        (IMAGES.expand(-1, 3, -1, -1), "as many channels as mean and std have numbers, 1, got the shape (72, 3, 8, 8)"),
        (IMAGES.permute(0, 2, 3, 1), "the channels come last, move them with .permute(0, 3, 1, 2)"),
    ],
)
def test_images_of_a_wrong_type_or_shape_are_refused(images: Tensor, expected: str) -> None:
    message = message_of(Loading((images, LABELS)))
    demanded = "load(train=True) must return uint8 images (number, channels, height, width) with values 0-255"
    assert message.startswith(demanded)
    assert expected in message


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (LABELS + 1, "labels from 0 to 5, for num_classes = 6, got 1 to 6: they count from 1, subtract 1"),
        (LABELS - 1, "labels from 0 to 5, for num_classes = 6, got -1 to 4"),
        (LABELS * 2, "labels from 0 to 5, for num_classes = 6, got 0 to 10"),
        (LABELS.float(), "labels as int64, got torch.float32: convert with .long()"),
        (LABELS > 2, "labels as int64, got torch.bool"),
        (LABELS[:-1], "one label for each of its 72 images, got the shape (71,)"),
        (LABELS[:, None], "got the shape (72, 1): flatten them with .flatten()"),
        (LABELS[LABELS < 2].repeat(3), "images of every task, but has none of task 2, which is classes [2, 3]"),
    ],
)
def test_invalid_labels_are_refused(labels: Tensor, expected: str) -> None:
    message = message_of(Loading((IMAGES, labels)))
    assert message.startswith("load(train=True) must return")
    assert expected in message


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16])
def test_labels_of_other_integer_types_are_converted(dtype: torch.dtype) -> None:
    sequence = Loading((IMAGES, LABELS.to(dtype)))
    sequence.setup("fit")
    assert sequence.train_set.labels.dtype == torch.int64
    assert torch.equal(sequence.train_set.labels, LABELS)
    assert len(sequence.training_samples(1)) == 24


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ((IMAGES.numpy(), LABELS.numpy()), "ndarray, ndarray: convert with torch.as_tensor"),
        ((IMAGES, LABELS.tolist()), "Tensor, list: convert with torch.as_tensor"),
        ((list(IMAGES), LABELS), "list, Tensor: join the images with torch.stack"),
        (
            ([IMAGES[0], IMAGES[0, :, :5]], LABELS[:2]),
            "list, Tensor: images of several sizes, such as (1, 5, 8) and (1, 8, 8), must be resized to one",
        ),
        (IMAGES, "Tensor"),
        ((IMAGES, LABELS, LABELS), "Tensor, Tensor, Tensor"),
        (None, "NoneType"),
    ],
)
def test_anything_but_two_tensors_is_refused(returned: Any, found: str) -> None:
    expected = f"load(train=True) must return two tensors, images and labels, got {found}"
    assert message_of(Loading(returned)) == expected


def test_sparse_tensors_are_refused() -> None:
    assert "must return dense tensors, got a sparse one" in message_of(Loading((IMAGES.to_sparse(), LABELS)))


def test_a_task_without_images_is_refused() -> None:
    images, labels = TinySequence().load(train=False)
    rest = labels > 1
    message = message_of(Loading((IMAGES, LABELS), (images[rest], labels[rest])))
    assert message.startswith("load(train=False) must return images of every task, but has none of task 1, which is")
    shuffled = Loading((IMAGES, LABELS), (images[rest], labels[rest]), class_order_seed=1)
    shuffled.setup("fit")  # here each task has another class as well
    assert len(shuffled.test_set) == int(rest.sum())


def test_no_images_at_all_are_refused() -> None:
    assert message_of(Loading((IMAGES[:0], LABELS[:0]))) == "load(train=True) must return at least one image, got none"


def test_test_images_of_another_size_are_refused() -> None:
    images, labels = TinySequence().load(train=False)
    message = message_of(Loading((IMAGES, LABELS), (images[..., :7], labels)))
    assert message.endswith("images of one size, got (channels, height, width) = (1, 8, 8) and (1, 8, 7)")


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        ((125.3,), (0.25,), "mean must be of pixel values in [0, 1], got [125.3]: divide by 255"),
        ((0.5,), (63.0,), "std must be of pixel values in [0, 1], got [63.0]: divide by 255"),
        ((numpy.inf,), (0.25,), "mean must be of pixel values in [0, 1], got [inf]"),
        ((numpy.nan,), (0.25,), "mean must be of pixel values in [0, 1], got [nan]"),
        ((-0.5,), (0.25,), "mean must be of pixel values in [0, 1], got [-0.5]"),
        ((0.5,), (numpy.inf,), "std must be finite, got inf"),
        ((0.5,), (numpy.nan,), "std must be positive, got nan"),
        ((0.5,), (0.0,), "std must be positive, got 0.0"),
        ((0.5, 0.5), (0.25,), "mean and std must have a number for each channel, got 2 and 1 numbers"),
    ],
)
def test_invalid_mean_and_std_are_refused(mean: Any, std: Any, expected: str) -> None:
    kind = type("Wrong", (TinySequence,), {"mean": mean, "std": std})
    with pytest.raises(ConfigurationError) as error:
        kind()
    assert str(error.value) == expected


def test_there_is_a_mean_for_every_channel() -> None:
    assert "as mean and std have numbers, 3, got the shape (72, 1, 8, 8)" in message_of(
        Colour((IMAGES, LABELS), (IMAGES.expand(-1, 3, -1, -1), LABELS))
    )
