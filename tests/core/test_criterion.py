"""The criterion is the loss of every draw: the method's, a distiller's and the control's."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import seed_everything
from tiny import TinySequence, random_samples, small_net
from torch import Tensor, nn
from torch.nn import functional

import ddn_lightning
from ddn_lightning import ER, MIR, ConfigurationError, DataDistillNet, ReplayMethod, cross_entropy
from ddn_lightning.cli import main
from ddn_lightning.samples import Criterion

Fit = Callable[..., ReplayMethod]
QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 1.0])
WEIGHTED = nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1, reduction="none")


def plain(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="none")


def test_the_mean_is_over_samples_of_the_weighted_and_smoothed_losses() -> None:
    logits, samples = torch.randn(5, 6), random_samples(5)
    samples.criterion = WEIGHTED
    log_probabilities = logits.log_softmax(dim=1)
    by_hand = torch.zeros(())
    for row, label in zip(log_probabilities, samples.labels, strict=True):
        by_hand -= 0.9 * WEIGHTS[label] * row[label] + 0.1 / 6 * (WEIGHTS * row).sum()
    torch.testing.assert_close(cross_entropy(logits, samples), by_hand / 5)


def made(make: Callable[..., ReplayMethod], criterion: Criterion | None) -> Callable[[], ReplayMethod]:
    sizes = {"num_classes": 6, "buffer_size": 12, "replay_batch_size": 5}
    return lambda: make(small_net(), **sizes, lr=0.1, criterion=criterion)


MAKERS = [
    ER,
    partial(ER, batches="concatenated"),
    partial(ER, old_memory_weight=1.0),
    MIR,
    lambda *args, **kwargs: ER(*args, distiller=DataDistillNet(), **kwargs),
]


@pytest.mark.parametrize("make", MAKERS, ids=["er", "concatenated", "control", "mir", "ddn"])
def test_cross_entropy_given_is_the_default_bit_for_bit(make: Callable[..., ReplayMethod], fit: Fit) -> None:
    given, default = fit(made(make, plain)), fit(made(make, None))
    assert all(torch.equal(a, b) for a, b in zip(given.parameters(), default.parameters(), strict=True))


@pytest.mark.parametrize("make", MAKERS, ids=["er", "concatenated", "control", "mir", "ddn"])
def test_every_draw_is_measured_by_it(make: Callable[..., ReplayMethod], fit: Fit) -> None:
    """Nothing moves where it is constant: neither the network nor the distiller, but for soft labels' own term."""

    def constant(logits: Tensor, labels: Tensor) -> Tensor:
        return 0 * plain(logits, labels)

    method = fit(made(make, constant))
    seed_everything(0, verbose=False)
    before = made(make, constant)()
    part = "network" if method.distiller is None else "distiller"
    pairs = zip(getattr(method, part).parameters(), getattr(before, part).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_weights_of_a_loaded_method_need_no_criterion(fit: Fit) -> None:
    method = fit(made(ER, WEIGHTED))
    method.trainer.save_checkpoint("trained.ckpt")
    loaded = ddn_lightning.load("trained.ckpt", backbone=small_net())
    images = TinySequence().load(train=False)[0]
    assert torch.equal(loaded.predict(images).labels, method.predict(images).labels)


def test_it_must_give_a_loss_for_each_sample() -> None:
    with pytest.raises(ConfigurationError, match=r'as with reduction="none", got float32 of shape \(\) for two'):
        made(ER, nn.CrossEntropyLoss())()
    with pytest.raises(ConfigurationError, match="criterion must take logits of 6 classes, but does not"):
        made(ER, nn.CrossEntropyLoss(weight=torch.ones(4), reduction="none"))()


@pytest.mark.slow
def test_it_is_an_option_of_the_command_line() -> None:
    criterion = ["--model.criterion=torch.nn.CrossEntropyLoss", "--model.criterion.label_smoothing=0.1"]
    criterion += ["--model.criterion.reduction=none", "--trainer.max_steps=3"]
    assert main(["fit", "-c", str(QUICKSTART), "--name", "mine", *criterion]) == 0
    assert "label_smoothing: 0.1" in Path("runs/mine/config.yaml").read_text()
