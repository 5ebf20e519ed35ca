"""Split Digits: the 8x8 handwritten digits of scikit-learn. Real images, no download, seconds per run."""

from typing import Any

import torch
from torch import Tensor

from ddn_lightning.data.task_sequence import TaskSequence


class SplitDigits(TaskSequence):
    """The 1,797 handwritten digits that come with scikit-learn, in five tasks of two digits.

    Origin: E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository,
    1998. A fixed fifth of each class is the test split. There is no augmentation: mirroring or cropping changes a
    digit's class.

    Args:
        num_tasks: Number of tasks; must divide the number of classes.
        **kwargs: Arguments of :class:`TaskSequence`.
    """

    name = "digits"
    mean = (0.3054,)  # of the training split, in [0, 1]
    std = (0.3760,)
    padding = 0
    flip = False
    num_classes = 10

    def __init__(self, num_tasks: int = 5, **kwargs: Any) -> None:
        super().__init__(num_tasks=num_tasks, **kwargs)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The fixed, stratified 80/20 split."""
        from sklearn.datasets import load_digits  # here: importing scikit-learn slows down every start
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        parts = train_test_split(digits.images, digits.target, test_size=0.2, stratify=digits.target, random_state=0)
        images, labels = (parts[0], parts[2]) if train else (parts[1], parts[3])
        pixels = torch.from_numpy(images * (255 / 16)).round().to(torch.uint8)  # from 0-16
        return pixels.unsqueeze(1), torch.from_numpy(labels).long()
