"""Predictions by a moving average of weights and BatchNorm statistics, against one that is computed here."""

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import METHODS, build
from tiny import BatchNormNet, Fit, MakeTrainer, TinyPart, TinySequence, small_net
from torch import Tensor, nn

from ddn_lightning import (
    ER,
    SCR,
    ConfigurationError,
    DERPlusPlus,
    Forgetting,
    GDumb,
    ICaRL,
    ReplayMethod,
    TemporalEnsemble,
    load,
)

DECAY = 0.8


class Recorder(ER):
    """Computes the average after each step, and predicts test images with it."""

    expected: dict[str, Tensor]
    steps = 0
    compared = 0

    def begin_task(self) -> None:
        if self.steps == 0:
            self.expected = {name: value.double() for name, value in self.numbers().items()}

    def numbers(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def after_step(self) -> None:
        self.steps += 1
        decay = min(DECAY, self.steps / (self.steps + 1))
        for name, value in self.numbers().items():
            mean = decay * self.expected[name] + (1 - decay) * value.double()
            self.expected[name] = mean if value.is_floating_point() else value

    def validation_step(self, batch: Any, batch_index: int) -> Tensor:
        scores = super().validation_step(batch, batch_index)
        if self.steps and self.running_buffers is None:
            network = copy.deepcopy(self.network).eval()
            network.load_state_dict(self.expected)
            assert torch.allclose(network(self.normalised(batch.images)), scores, atol=1e-5)
            assert not torch.allclose(self.network.eval()(self.normalised(batch.images)), scores, atol=1e-3)
            self.compared += 1
        return scores


def test_accuracy_is_that_of_the_average(fit: Fit) -> None:
    method = fit(lambda: build(Recorder, backbone=BatchNormNet(), evaluate_average=DECAY))
    assert isinstance(method, Recorder)
    assert method.compared == 1 + 1 + 1  # a batch after each task
    images = method.normalised(torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8))
    network = copy.deepcopy(method.network)
    network.load_state_dict(method.expected)
    assert torch.allclose(method.eval()(images), network.eval()(images), atol=1e-5)
    assert torch.equal(method.train()(images), method.network(images))


def test_training_is_that_of_the_method_alone(fit: Fit) -> None:
    alone, ensemble = (fit(lambda kind=kind: build(kind)) for kind in (ER, TemporalEnsemble))
    assert difference(alone.network.state_dict(), ensemble.network.state_dict()) is None
    assert ensemble.average is not None
    assert difference(alone.network.state_dict(), ensemble.average.network.state_dict()) is not None


def test_statistics_are_calibrated_through_the_average(fit: Fit) -> None:
    forgetting = Forgetting(statistics="both")
    method = fit(lambda: build(ER, backbone=BatchNormNet(), evaluate_average=DECAY), callbacks=[forgetting])
    assert method.average is not None
    buffers = forgetting.calibrated_buffers(method)  # type: ignore[arg-type]
    assert {name.partition(".")[0] for name in buffers} == {"average"}
    reference = copy.deepcopy(method.average.network)
    layer = next(part for part in reference.modules() if isinstance(part, nn.BatchNorm2d))
    layer.reset_running_stats()
    layer.momentum = None
    stored = method.memory[method.memory.slots]
    reference.train()(method.normalised(stored.images))
    (mean,) = [value for name, value in buffers.items() if name.endswith("running_mean")]
    assert torch.allclose(mean, layer.running_mean, atol=1e-5)
    assert not method.calibrated_accuracy_matrix.equal(method.accuracy_matrix)


@pytest.mark.parametrize("kind", [TemporalEnsemble, DERPlusPlus, SCR, ICaRL])
def test_a_resumed_run_has_the_same_average(
    kind: type[ReplayMethod], tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    def run(path: Path | None = None, **options: Any) -> tuple[ReplayMethod, Any]:
        torch.manual_seed(0)
        method, trainer = build(kind, backbone=BatchNormNet(), evaluate_average=DECAY), make_trainer(**options)
        trainer.fit(method, TinySequence(batch_size=6), ckpt_path=path)
        return method, trainer

    whole, _ = run()
    _, stopped = run(max_steps=7)
    stopped.save_checkpoint(tmp_path / "a.ckpt")
    resumed, trainer = run(tmp_path / "a.ckpt")
    assert difference(whole.state_dict(), resumed.state_dict()) is None
    trainer.save_checkpoint(tmp_path / "b.ckpt")
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(load(tmp_path / "b.ckpt").predict(images).probabilities, whole.predict(images).probabilities)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_have_the_average_of_one(fit: Fit) -> None:
    def averaged(**options: Any) -> dict[str, Tensor]:
        method = fit(lambda: build(TemporalEnsemble, backbone=small_net()).double(), **options)
        assert method.average is not None
        return dict(method.average.named_parameters())

    one, two = averaged(), averaged(devices=2, strategy="ddp_fork")
    assert all(torch.allclose(value, two[name]) for name, value in one.items())


def test_the_average_grows_with_new_classes(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.fit(build(TemporalEnsemble), TinyPart((0, 6)))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    grown = load(tmp_path / "a.ckpt")
    make_trainer().fit(grown, TinyPart((0, 6)).followed_by(TinyPart((6, 10))))
    assert grown.eval()(torch.ones(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("kind", [m for m in METHODS if "evaluate_average" in inspect.signature(m).parameters])
def test_every_method_predicts_by_an_average_or_says_why_not(fit: Fit, kind: type[ReplayMethod]) -> None:
    if kind.cannot_average:
        with pytest.raises(ConfigurationError, match=f"{kind.__name__} cannot take evaluate_average: it "):
            build(kind, evaluate_average=DECAY)
        return
    method = fit(lambda: build(kind, evaluate_average=DECAY)).eval()
    images = method.normalised(torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8))
    by_average = method.class_scores(images)
    method.average = None
    assert not torch.equal(by_average, method.class_scores(images))


def test_gdumb_and_half_precision_are_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ConfigurationError, match="GDumb cannot take evaluate_average: it trains a new network"):
        build(GDumb, evaluate_average=0.9)
    with pytest.raises(ConfigurationError, match="precision must be one of .* with TemporalEnsemble"):
        make_trainer(precision="bf16-true").fit(build(TemporalEnsemble), TinySequence(batch_size=6))
    with pytest.raises(ConfigurationError, match="evaluate_average must be .* got 1.5"):
        build(ER, evaluate_average=1.5)
