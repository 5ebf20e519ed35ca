"""A folder per domain and class: the tasks are the domains."""

from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from tiny import Fit, MakeTrainer, SmallNet

from ddn_lightning import ER, ConfigurationError, ICaRL, RotatedImages, SplitDomainFolder

DOMAINS, CLASSES = ("clipart", "photo", "sketch"), ("ant", "bee")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Four training images and two test images of two classes in each of three domains, of one grey level each."""
    for split, number in (("train", 4), ("test", 2)):
        for place, domain in enumerate(DOMAINS):
            for label, name in enumerate(CLASSES):
                folder = tmp_path / "tree" / split / domain / name
                folder.mkdir(parents=True)
                for index in range(number):
                    pixels = numpy.full((8, 8, 3), 80 * place + 20 * label + index, dtype=numpy.uint8)
                    Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "tree"


def test_every_domain_is_a_task_with_all_classes(tree: Path) -> None:
    data = SplitDomainFolder(str(tree))
    data.setup("fit")
    assert (data.num_tasks, data.domains, data.class_names) == (3, list(DOMAINS), list(CLASSES))
    for split, number in ((data.train_set, 4), (data.test_set, 2)):
        assert split.tasks is not None
        assert split.tasks.equal((split.images[:, 0, 0, 0] // 80).long())
        assert split.labels.equal((split.images[:, 0, 0, 0] % 80 // 20).long())
        assert len(split) == 3 * 2 * number
    assert data.is_class_of_task.all()
    assert [row.tolist() for row in data.task_classes] == [[0, 1]] * 3


def test_images_of_each_class_in_each_domain_are_held_out(tree: Path) -> None:
    data = SplitDomainFolder(str(tree), validation_share=0.25)
    data.setup("fit")
    for split, number in ((data.train_set, 3), (data.val_set, 1)):
        assert split.tasks is not None
        assert split.tasks.equal((split.images[:, 0, 0, 0] // 80).long())
        assert split.labels.equal((split.images[:, 0, 0, 0] % 80 // 20).long())
        assert (2 * split.tasks + split.labels).bincount().tolist() == [number] * 6


def test_domains_are_learned_and_measured_one_by_one(fit: Fit, tree: Path) -> None:
    data = SplitDomainFolder(str(tree), batch_size=4, padding=0)
    learned = fit(lambda: ER(SmallNet(in_channels=3), num_classes=2, buffer_size=8), data)
    assert learned.accuracy_matrix.isnan().equal(torch.ones(3, 3).triu(1).bool())
    assert set(learned.memory[learned.memory.slots].tasks.tolist()) == {0, 1, 2}


def test_methods_that_need_new_classes_and_domains_on_top_are_refused(make_trainer: MakeTrainer, tree: Path) -> None:
    method = ICaRL(SmallNet(in_channels=3), num_classes=2, buffer_size=8)
    with pytest.raises(ConfigurationError, match="ICaRL cannot learn this sequence, where a class comes in several"):
        make_trainer().fit(method, SplitDomainFolder(str(tree), batch_size=4))
    with pytest.raises(ConfigurationError, match="RotatedImages here.*the data has domains of its own"):
        SplitDomainFolder(str(tree), stream=RotatedImages())


def test_domains_with_other_classes_are_refused(tree: Path) -> None:
    (tree / "test" / "sketch" / "bee").rename(tree / "test" / "sketch" / "cow")
    with pytest.raises(ConfigurationError, match=r"every domain must have the same classes, but \['bee', 'cow'\]"):
        SplitDomainFolder(str(tree))
