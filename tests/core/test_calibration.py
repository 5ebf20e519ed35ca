"""Calibrated statistics change the evaluation and not the training."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import METHODS, SaveAlways, build
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from test_resume import assert_equal, logging_to, outcome, sequence
from tiny import DropoutNet, Fit, MakeTrainer, TinySequence, small_net
from torch import Tensor, nn

from ddn_lightning import CLSER, ER, NCM, SCR, ConfigurationError, Finetune, Forgetting, ICaRL, ReplayMethod

SHIPPED = [method for method in METHODS if method.__module__ != "every_method"]
KEEPING = [method for method in SHIPPED if not issubclass(method, Finetune | NCM)]
MODES = ("running", "memory", "both")
LAYER = "backbone.layers.1.running_mean"


def trained(method: ReplayMethod) -> dict[str, Any]:
    """The outcome of training, without measurements."""
    with method.uncalibrated():
        found = copy.deepcopy(outcome(method))
    for name in ("accuracy_matrix", "task_il_matrix", "calibrated_accuracy_matrix"):
        found["weights"]["_extra_state"]["progress"].pop(name)
    return found


def accuracies(method: ReplayMethod) -> Tensor:
    """Accuracy in percent on each task."""
    data = method.sequence.test_set
    assert data.tasks is not None
    assert method.transform is not None
    is_training = method.training
    with torch.no_grad():
        hits = method.eval().class_scores(method.transform(data.images)).argmax(1) == data.labels
    method.train(is_training)
    return torch.stack([100 * hits[data.tasks == task].float().mean() for task in range(3)])


@pytest.mark.parametrize("method_class", [ER, ICaRL, pytest.param(CLSER, marks=pytest.mark.slow)])
def test_training_is_the_same_in_all_modes_and_both_measures_what_each_does(
    fit: Fit, method_class: type[ReplayMethod]
) -> None:
    runs = {
        mode: fit(lambda: build(method_class), sequence(), callbacks=[Forgetting(statistics=mode)]) for mode in MODES
    }
    for mode in ("memory", "both"):
        assert_equal(trained(runs[mode]), trained(runs["running"]), mode)
        assert_equal(runs[mode].state_dict()[LAYER], runs["both"].state_dict()[LAYER])
    both = runs["both"]
    assert_equal(both.accuracy_matrix, runs["running"].accuracy_matrix)
    assert_equal(both.calibrated_accuracy_matrix, runs["memory"].accuracy_matrix)
    assert not torch.equal(both.calibrated_accuracy_matrix[2], both.accuracy_matrix[2])


@pytest.mark.parametrize("method_class", KEEPING)
def test_a_trained_method_has_the_statistics_it_was_measured_with(fit: Fit, method_class: type[ReplayMethod]) -> None:
    method = fit(lambda: build(method_class), TinySequence(batch_size=6), callbacks=[Forgetting(statistics="both")])
    torch.testing.assert_close(accuracies(method), method.calibrated_accuracy_matrix[2])
    with method.uncalibrated() as calibrated:
        torch.testing.assert_close(accuracies(method), method.accuracy_matrix[2])
        (name,) = [name for name in calibrated if name.endswith(LAYER)]  # of the network that predicts
        assert not torch.equal(calibrated[name], method.get_buffer(name))


def test_the_network_that_is_evaluated_is_calibrated(fit: Fit) -> None:
    method = fit(
        lambda: build(CLSER, evaluate="stable"), TinySequence(batch_size=6), callbacks=[Forgetting(statistics="memory")]
    )
    assert method.running_buffers is not None
    assert method.running_buffers.keys() == {f"averages.stable.{LAYER}", f"averages.stable.{LAYER[:-4]}var"}


@pytest.mark.parametrize("nearest_mean", [ICaRL, SCR])
def test_class_means_are_those_of_the_calibrated_features(fit: Fit, nearest_mean: type[ICaRL | SCR]) -> None:
    method = fit(lambda: build(nearest_mean), callbacks=[Forgetting(statistics="memory")])
    assert isinstance(method, nearest_mean)
    means = method.class_means.clone()
    assert_equal(method._means_of_stored(), means)
    with method.uncalibrated():
        assert not torch.equal(method.class_means, means)
        assert_equal(method._means_of_stored(), method.class_means)


def test_a_checkpoint_resumes_with_running_statistics_and_is_loaded_with_calibrated_ones(
    fit: Fit, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    class SaveWhileEvaluating(Checkpoint):
        def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            trainer.save_checkpoint(tmp_path / f"evaluating{trainer.current_epoch}.ckpt", weights_only=True)

    saving = {"enable_checkpointing": True, "callbacks": [SaveWhileEvaluating(), Forgetting(statistics="memory")]}
    method = fit(lambda: build(ICaRL), **saving)
    method.trainer.save_checkpoint(tmp_path / "trained.ckpt")
    weights = method.state_dict()
    running = method.running_buffers
    assert running is not None
    for name in ("trained", "evaluating2"):
        checkpoint = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
        for buffer, value in running.items():
            assert_equal(checkpoint["state_dict"][buffer], value, f"{name} {buffer}")
            assert_equal(checkpoint["ddn_lightning"]["calibrated_statistics"][buffer], weights[buffer], buffer)
        loaded = ICaRL.load_from_checkpoint(tmp_path / f"{name}.ckpt", backbone=DropoutNet(), weights_only=True)
        assert_equal(loaded.state_dict(), weights)

    images = TinySequence(batch_size=6)
    expected = make_trainer().predict(method, images)
    predicted = make_trainer().predict(build(ICaRL), images, ckpt_path=tmp_path / "trained.ckpt")
    assert_equal(predicted, expected)


@pytest.mark.parametrize("loop", ["validate", "test"])
def test_evaluated_alone_a_checkpoint_gives_what_the_fit_measured(
    fit: Fit, make_trainer: MakeTrainer, loop: str, tmp_path: Path
) -> None:
    methods = {mode: fit(lambda: build(ICaRL), callbacks=[Forgetting(statistics=mode)]) for mode in ("running", "both")}
    split = "val" if loop == "validate" else "test"
    both = methods["both"]
    running, calibrated = (float(m[2].mean()) for m in (both.accuracy_matrix, both.calibrated_accuracy_matrix))
    assert running != calibrated
    for saved_by, method in methods.items():
        path = tmp_path / f"{saved_by}.ckpt"
        method.trainer.save_checkpoint(path)
        for mode in MODES:
            trainer = make_trainer(callbacks=[Forgetting(statistics=mode)])
            (found,) = getattr(trainer, loop)(build(ICaRL), TinySequence(batch_size=6), ckpt_path=path, verbose=False)
            is_calibrated = mode == "memory" or (mode == "running" and saved_by == "both")
            expected = calibrated if is_calibrated else running
            assert found[f"{split}/average_accuracy"] == pytest.approx(expected), (saved_by, mode)
            if mode == "both":
                assert found[f"{split}/calibrated/average_accuracy"] == pytest.approx(calibrated), saved_by


@pytest.mark.parametrize(
    ("mode", "method_class", "how_many"),
    [
        ("both", ICaRL, 4),  # with class means besides
        ("memory", ER, 2),
        *(
            pytest.param(mode, kind, None, marks=pytest.mark.slow)
            for mode in ("memory", "both")
            for kind in (ER, ICaRL)
        ),
    ],
)
def test_resuming_anywhere_changes_nothing(
    fit: Fit, method_class: type[ReplayMethod], mode: Any, how_many: int | None, tmp_path: Path
) -> None:
    def run(folder: Path, *callbacks: Callback, **arguments: Any) -> dict[str, Any]:
        arguments["callbacks"] = [Forgetting(statistics=mode, calibration_batch_size=4), *callbacks]
        arguments |= logging_to(folder)
        return outcome(fit(lambda: build(method_class, momentum=0.9), sequence(), **arguments))

    expected = run(tmp_path / "whole", SaveAlways(tmp_path), enable_checkpointing=True)
    curves = (tmp_path / "whole" / "metrics.csv").read_text()
    assert ("val/calibrated/average_accuracy" in curves) == (mode == "both")
    ends = ["step4", "step20", "epoch5", "evaluated2"]
    checkpoints = [tmp_path / f"{end}.ckpt" for end in ends]
    checkpoints += sorted(set(tmp_path.glob("*.ckpt")) - set(checkpoints))
    for checkpoint in checkpoints[:how_many]:
        torch.load(checkpoint, weights_only=True)
        folder = tmp_path / checkpoint.stem
        shutil.copytree(tmp_path / "whole", folder)
        resumed = run(folder, ckpt_path=checkpoint, seed=99)
        assert (folder / "metrics.csv").read_text() == curves, checkpoint.name
        if checkpoint.stem == "epoch5":  # no training is left, so nothing is drawn
            resumed["random"] = expected["random"]
        assert_equal(resumed, expected, checkpoint.name)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method_class", [ICaRL, pytest.param(ER, marks=pytest.mark.slow)])
def test_two_ranks_calibrate_as_one(fit: Fit, method_class: type[ReplayMethod]) -> None:
    class NormalisedHead(method_class):  # type: ignore[misc, valid-type]
        """Trains in evaluation mode, so that samples are independent and two ranks equal one."""

        def on_train_batch_start(self, *args: Any) -> None:
            super().on_train_batch_start(*args)
            self.backbone.eval()
            self.batch_norm.find_frozen = lambda _: None

    def trained(**arguments: Any) -> ReplayMethod:
        callbacks = [Forgetting(statistics="both", calibration_batch_size=4)]
        return fit(lambda: build(NormalisedHead).double(), callbacks=callbacks, **arguments)

    one, two = trained(), trained(devices=2, strategy="ddp_fork")
    for name, value in one.state_dict().items():
        if isinstance(value, Tensor) and value.is_floating_point() and "matrix" not in name:
            assert (value - two.state_dict()[name]).abs().max() < 1e-9, name
    assert_equal(two.calibrated_accuracy_matrix, one.calibrated_accuracy_matrix)
    assert one.running_buffers is not None
    assert two.running_buffers is not None  # brought back from the forked process
    assert not torch.equal(one.running_buffers[LAYER], one.get_buffer(LAYER))


class Counting(Callback):
    """Counts the forward passes of a network."""

    def __init__(self) -> None:
        self.passes = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        def count(*_: object) -> None:
            self.passes += 1

        pl_module.get_submodule("backbone").register_forward_hook(count)


@pytest.mark.parametrize("mode", ["memory", "both"])
@pytest.mark.parametrize(
    ("method_class", "backbone", "reason"),
    [(ER, small_net, "SmallNet has no BatchNorm"), (Finetune, DropoutNet, "Finetune keeps no samples")],
)
def test_a_note_says_why_nothing_is_calibrated(
    fit: Fit,
    method_class: type[ReplayMethod],
    backbone: Callable[[], Any],
    reason: str,
    mode: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    passes = []
    for statistics in ("running", mode):
        counting = Counting()
        method = fit(
            lambda: build(method_class, backbone=backbone()), callbacks=[counting, Forgetting(statistics=statistics)]
        )
        passes.append(counting.passes)
    assert passes[0] == passes[1]
    assert capsys.readouterr().err == f"note: statistics={mode} has no effect: {reason}\n"
    assert method.calibrated_accuracy_matrix.isnan().all()


@pytest.mark.filterwarnings("ignore:Found 1 module.* in eval mode")
def test_layers_in_evaluation_mode_keep_their_statistics(fit: Fit) -> None:
    class Resting(DropoutNet):
        def __init__(self) -> None:
            super().__init__()
            self.layers.insert(4, nn.BatchNorm2d(8))
            self.layers[1].eval()

    method = fit(lambda: build(ER, backbone=Resting()), callbacks=[Forgetting(statistics="memory")])
    assert method.running_buffers is not None
    assert method.running_buffers.keys() == {f"backbone.layers.4.running_{what}" for what in ("mean", "var")}
    assert_equal(method.get_buffer(LAYER), torch.zeros(4))


def test_a_network_that_draws_while_it_predicts_is_trained_the_same(fit: Fit) -> None:
    class Noisy(DropoutNet):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images + 0.1 * torch.randn_like(images))

    running, both = (
        fit(lambda: build(ER, backbone=Noisy()), callbacks=[Forgetting(statistics=mode)])
        for mode in ("running", "both")
    )
    assert_equal(trained(both), trained(running))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (LAYER, torch.zeros(3), r"must be floating point of shape \(4\)"),
        (LAYER, torch.full((4,), torch.nan), "must be finite everywhere"),
        ("backbone.other", torch.zeros(4), "no buffer 'backbone.other'"),
    ],
)
def test_calibrated_statistics_that_do_not_fit_are_refused(
    fit: Fit, name: str, value: Tensor, reason: str, tmp_path: Path
) -> None:
    method = fit(lambda: build(ER), callbacks=[Forgetting(statistics="memory")])
    method.trainer.save_checkpoint(tmp_path / "changed.ckpt")
    checkpoint = torch.load(tmp_path / "changed.ckpt", weights_only=True)
    checkpoint["ddn_lightning"]["calibrated_statistics"][name] = value
    torch.save(checkpoint, tmp_path / "changed.ckpt")
    with pytest.raises(ConfigurationError, match=reason):
        ER.load_from_checkpoint(tmp_path / "changed.ckpt", backbone=DropoutNet())


def test_resuming_with_other_statistics_prints_a_note(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(lambda: build(ER), enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)])
    fit(lambda: build(ER), ckpt_path=tmp_path / "epoch1.ckpt", callbacks=[Forgetting(statistics="memory")])
    assert "statistics is memory from now on, running in the checkpoint" in capsys.readouterr().err


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="statistics must be one of .*, got 'calibrated'"):
        Forgetting(statistics="calibrated")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="calibration_batch_size must be 2 or more, got 1"):
        Forgetting(calibration_batch_size=1)
