import torch
from every_method import build
from test_resume import assert_equal, outcome
from tiny import Fit

from ddn_lightning import ER, RAR, RandAugment


def test_it_is_replay_with_ten_steps_per_batch_and_the_published_augmentation(fit: Fit) -> None:
    """Bit for bit, so that resume, ranks and distillers work as in ER."""
    method = fit(lambda: RAR(build(ER).backbone, num_classes=6, buffer_size=10), max_steps=80)
    given = {"replay_steps": 10, "rand_augment": RandAugment(operations=1, magnitude=14)}
    same = fit(lambda: ER(build(ER).backbone, num_classes=6, buffer_size=10, **given), max_steps=80)
    plain = fit(lambda: ER(build(ER).backbone, num_classes=6, buffer_size=10, replay_steps=10), max_steps=80)
    assert_equal(outcome(method), outcome(same))
    assert not torch.equal(method.head.weight, plain.head.weight)
