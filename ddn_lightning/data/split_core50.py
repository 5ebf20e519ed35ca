"""CORe50: fifty objects filmed in eleven sessions, by new classes or by new sessions."""

import os
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.data.image_tree import ImageFile, list_images
from ddn_lightning.data.split_image_folder import SplitImageFolder

TEST_SESSIONS = ("s3", "s7", "s10")
TRAINING_SESSIONS = ("s1", "s2", "s4", "s5", "s6", "s8", "s9", "s11")
NEW_CLASSES = [10, *[5] * 8]  # of each task


class SplitCORe50NC(SplitImageFolder):
    """CORe50-NC, new classes: 50 objects in nine tasks, the first of ten and eight of five.

    Origin: V. Lomonaco and D. Maltoni, `CORe50 <https://arxiv.org/abs/1705.03550>`_, 2017. Sessions 3, 7 and 10 are the
    test split. Objects come in the order of their numbers, where the authors have ten orders of their own.

    Args:
        root: The folder ``core50_128x128``, with ``s1`` to ``s11``, and ``o1`` to ``o50`` in each.
        image_size: Height and width to resize every image to.
        task_sizes: Number of classes of each task.
        **kwargs: Arguments of :class:`SplitImageFolder`.
    """

    name = "core50_nc"

    def __init__(self, root: str, image_size: int = 128, task_sizes: list[int] | None = None, **kwargs: Any) -> None:
        sizes = NEW_CLASSES if task_sizes is None else task_sizes
        super().__init__(root, len(sizes), image_size, task_sizes=sizes, **kwargs)

    def find_classes(self, root: str) -> list[str]:
        """The objects."""
        return [f"o{number}" for number in range(1, 51)]

    def files(self, split: str) -> list[ImageFile]:
        """The images of a split, session by session."""
        sessions = TRAINING_SESSIONS if split == "train" else TEST_SESSIONS
        return [file for session in sessions for file in self._session(session)]

    def _session(self, session: str) -> list[ImageFile]:
        return list_images([os.path.join(self._reader.root, session, name) for name in self.class_names])


class SplitCORe50NI(SplitCORe50NC):
    """CORe50-NI, new instances: eight tasks, each a session with all 50 objects.

    As :class:`SplitCORe50NC`. The benchmark has one fixed test split of three other sessions. Each task is measured
    here on every eighth of its images, so that the final average accuracy is that on all of them. Forgetting has no
    meaning: no test image belongs to a training session.

    Args:
        root: As for :class:`SplitCORe50NC`.
        image_size: Height and width to resize every image to.
        **kwargs: Arguments of :class:`SplitImageFolder`; the number of tasks is that of the sessions.
    """

    name = "core50_ni"
    has_domains = True

    def __init__(self, root: str, image_size: int = 128, **kwargs: Any) -> None:
        SplitImageFolder.__init__(self, root, len(TRAINING_SESSIONS), image_size, **kwargs)

    def load_tasks(self, train: bool) -> Tensor:
        """The session of each training image; for test images every eighth."""
        number = len(TRAINING_SESSIONS)
        if not train:
            return torch.arange(len(self.files("test"))) % number
        sizes = [len(self._session(session)) for session in TRAINING_SESSIONS]
        return torch.arange(number).repeat_interleave(torch.tensor(sizes))
