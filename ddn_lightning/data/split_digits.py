"""Split Digits: scikit-learn's bundled 8x8 handwritten digits. Real images, no download, seconds per run."""

from typing import Any

import torch
from torch import Tensor

from ddn_lightning.data.task_sequence import TaskSequence


class SplitDigits(TaskSequence):
    """The 1,797 handwritten digits that come with scikit-learn, in five tasks of two digits.

    Origin: E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository,
    1998. A fifth of each class, always the same one, is the test split. A digit that is mirrored or cut off is another
    digit or none, so there is no augmentation.

    Args:
        num_tasks: Into how many tasks of equally many classes to split.
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
        from sklearn.datasets import load_digits  # here: importing scikit-learn would slow down every start
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        parts = train_test_split(digits.images, digits.target, test_size=0.2, stratify=digits.target, random_state=0)
        images, labels = (parts[0], parts[2]) if train else (parts[1], parts[3])
        pixels = torch.from_numpy(images * (255 / 16)).round().to(torch.uint8)  # they come as 0 ... 16
        return pixels.unsqueeze(1), torch.from_numpy(labels).long()
