"""Replay for an unchanged LightningModule: what it sees, what is measured, and that a resumed run continues exactly."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from tiny import BatchNormNet, DropoutNet, TinyPart, TinySequence, quiet_trainer, small_net
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessRaisedException
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from ddn_lightning import (
    ER,
    ClassBalancedReservoir,
    ConfigurationError,
    GradientSelection,
    LossAwareReservoir,
    Memory,
    Replay,
    RingBuffer,
)
from ddn_lightning.cli import main
from ddn_lightning.runs.recorded_run import read_run

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*log_every_n_steps", "ignore:.*have no `validation_step`", "ignore:.*callbacks used to create"
)


class Plain(LightningModule):
    """A module as anybody writes it, with SGD."""

    def __init__(self, backbone: Callable[[], nn.Module] = small_net, num_classes: int = 6) -> None:
        super().__init__()
        self.backbone = backbone()
        self.head = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone(images))
        return scores

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self(images), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class AdamWithDropout(Plain):
    """Dropout and BatchNorm, AdamW, and a schedule over the whole sequence."""

    def __init__(self) -> None:
        super().__init__(DropoutNet)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": OneCycleLR(optimizer, 0.01, total_steps=steps), "interval": "step"}]


class Seen(Callback):
    """Keeps the batches that the module receives."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self.batches.append(batch)


def trained(
    module: Callable[[], LightningModule] = Plain,
    replay: Replay | None = None,
    data: dict[str, Any] | None = None,
    ckpt_path: Path | None = None,
    callbacks: tuple[Callback, ...] = (),
    seed: int = 0,
    **trainer: Any,
) -> tuple[LightningModule, Replay]:
    """A module trained on three tasks, and its Replay."""
    seed_everything(seed, verbose=False)
    fitted, replay = module(), replay or Replay(buffer_size=10, replay_batch_size=5)
    fit = quiet_trainer(callbacks=[replay, *callbacks], **trainer).fit
    fit(fitted, TinySequence(**{"batch_size": 12, "epochs_per_task": 2, **(data or {})}), ckpt_path=ckpt_path)
    return fitted, replay


def assert_equal(one: tuple[LightningModule, Replay], other: tuple[LightningModule, Replay]) -> None:
    """Weights, buffers, matrices and memory are equal, bit for bit."""
    for (name, a), b in zip(one[0].state_dict().items(), other[0].state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for name in ("accuracy_matrix", "task_il_matrix"):
        assert torch.equal(getattr(one[1], name).nan_to_num(-1), getattr(other[1], name).nan_to_num(-1))
    memories = [replay.memory[replay.memory.slots] for _, replay in (one, other)]
    assert torch.equal(memories[0].images, memories[1].images)
    assert torch.equal(memories[0].labels, memories[1].labels)


@pytest.mark.parametrize("backbone", [small_net, BatchNormNet])
def test_a_module_with_our_network_and_sgd_equals_er(backbone: Callable[[], Any]) -> None:
    module, replay = trained(lambda: Plain(backbone))
    seed_everything(0, verbose=False)
    reference = Plain(backbone)
    er = ER(reference.backbone, 6, buffer_size=10, replay_batch_size=5, lr=0.1, batches="concatenated")
    er.head.load_state_dict(reference.head.state_dict())
    seed_everything(0, verbose=False)
    quiet_trainer().fit(er, TinySequence(batch_size=12, epochs_per_task=2))
    assert torch.equal(replay.memory.slots, er.memory.slots)
    assert torch.equal(replay.memory[replay.memory.slots].images, er.memory[er.memory.slots].images)
    for a, b in zip(module.parameters(), er.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert torch.equal(replay.accuracy_matrix.nan_to_num(-1), er.accuracy_matrix.nan_to_num(-1))
    assert torch.equal(replay.task_il_matrix.nan_to_num(-1), er.task_il_matrix.nan_to_num(-1))


def test_each_batch_is_the_incoming_one_joined_with_a_draw_and_normalised() -> None:
    seen = Seen()
    _, replay = trained(callbacks=(seen,))
    sizes = [len(labels) for _, labels in seen.batches]
    assert sizes == [12] + [17] * 11  # the memory is empty before the first batch
    for (images, labels), task in zip(seen.batches, [0] * 4 + [1] * 4 + [2] * 4, strict=True):
        assert images.dtype == torch.float32
        assert set((labels[:12] // 2).tolist()) == {task}
        assert set((labels[12:] // 2).tolist()) <= set(range(task + 1))
    assert replay.memory.seen == 144


def test_a_function_gives_batches_another_form_and_another_reads_the_scores() -> None:
    class ByName(Plain):
        def forward(self, pixel_values: Tensor) -> Any:  # type: ignore[override]
            return {"logits": super().forward(pixel_values)}

        def training_step(self, batch: Any, batch_index: int) -> Tensor:
            return functional.cross_entropy(self(batch["pixel_values"])["logits"], batch["labels"])

        validation_step = training_step

    replay = Replay(
        10,
        5,
        batch=lambda samples: {"pixel_values": samples.images, "labels": samples.labels},
        scores=lambda module, images: module(pixel_values=images)["logits"],
    )
    assert_equal(trained(ByName, replay), trained())


def test_an_own_augmentation_resumes_exactly(tmp_path: Path) -> None:
    def replay() -> Replay:
        return Replay(10, 5, transform=v2.RandomAffine(20))

    saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    whole = trained(AdamWithDropout, replay(), callbacks=(saving,), enable_checkpointing=True)
    assert_equal(trained(AdamWithDropout, replay(), ckpt_path=tmp_path / "step=5.ckpt", seed=1), whole)
    usual, _ = trained(AdamWithDropout)
    assert not torch.equal(whole[0].head.weight, usual.head.weight)  # type: ignore[arg-type]


def test_hooks_of_the_module_on_batches_come_after_the_join() -> None:
    class Brighter(Plain):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            images, labels = batch
            return images + 1, labels

    seen, plain = Seen(), Seen()
    with pytest.warns(UserWarning, match="implementation from `LightningModule`"):
        trained(Brighter, callbacks=(seen,))
    trained(callbacks=(plain,))
    assert torch.equal(seen.batches[-1][0], plain.batches[-1][0] + 1)


@pytest.mark.parametrize("memory", [ClassBalancedReservoir, RingBuffer, LossAwareReservoir, GradientSelection])
def test_any_memory_chooses_as_in_er(memory: type[Memory]) -> None:
    _, replay = trained(replay=Replay(10, 5, memory=memory()))
    seed_everything(0, verbose=False)
    reference = Plain()
    er = ER(reference.backbone, 6, memory=memory(), buffer_size=10, replay_batch_size=5, lr=0.1, batches="concatenated")
    er.head.load_state_dict(reference.head.state_dict())
    seed_everything(0, verbose=False)
    quiet_trainer().fit(er, TinySequence(batch_size=12, epochs_per_task=2))
    assert torch.equal(replay.memory[replay.memory.slots].labels, er.memory[er.memory.slots].labels)


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 8, 11])
def test_a_run_stopped_at_any_batch_resumes_exactly(steps: int, tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    whole = trained(AdamWithDropout, callbacks=(saving,), enable_checkpointing=True)
    assert_equal(trained(AdamWithDropout, ckpt_path=tmp_path / f"step={steps}.ckpt", seed=1), whole)


def test_a_run_resumes_exactly_from_checkpoints_of_epochs_with_averaged_weights(tmp_path: Path) -> None:
    def run(*callbacks: Callback, **options: Any) -> tuple[LightningModule, Replay]:
        averaging = EMAWeightAveraging(decay=0.8)
        return trained(AdamWithDropout, callbacks=(averaging, *callbacks), **options)

    saving = ModelCheckpoint(
        tmp_path, every_n_epochs=1, save_on_train_epoch_end=True, save_top_k=-1, filename="{epoch}"
    )
    whole = run(saving, enable_checkpointing=True)
    assert_equal(run(ckpt_path=tmp_path / "epoch=3.ckpt"), whole)


def test_a_row_is_that_of_the_averaged_weights_in_any_order_of_the_callbacks() -> None:
    def run(*callbacks: Callback) -> LightningModule:
        seed_everything(0, verbose=False)
        module = Plain()
        quiet_trainer(callbacks=list(callbacks)).fit(module, TinySequence(batch_size=12))
        return module

    first, last = Replay(10, 5), Replay(10, 5)
    run(first, EMAWeightAveraging(decay=0.8))
    module = run(EMAWeightAveraging(decay=0.8), last)  # has its averaged weights after training
    assert torch.equal(first.accuracy_matrix.nan_to_num(-1), last.accuracy_matrix.nan_to_num(-1))
    data = TinySequence(batch_size=12)
    data.setup("test")
    with torch.no_grad():
        hits = module(data.transform(data.test_set.images)).argmax(dim=1) == data.test_set.labels
    per_task = [100 * hits[data.test_set.tasks == task].float().mean() for task in range(3)]
    torch.testing.assert_close(first.accuracy_matrix[-1], torch.stack(per_task))


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16-mixed"},
        {"precision": "bf16-true"},
        {"accumulate_grad_batches": 2},
        {"gradient_clip_val": 0.5},
        {"max_steps": 5},
        {"fast_dev_run": 2},
        {"barebones": True, "logger": None, "enable_checkpointing": None},
    ],
    ids=str,
)
def test_options_of_the_trainer_are_lightnings(options: dict[str, Any]) -> None:
    if "barebones" in options:
        options = {**options, "enable_progress_bar": None, "enable_model_summary": None, "num_sanity_val_steps": None}
    _, replay = trained(**options)
    tasks = 1 if "max_steps" in options else 3
    assert (~replay.accuracy_matrix.isnan()).sum() == tasks * (tasks + 1) // 2


def test_a_checkpoint_within_an_accumulation_has_lightnings_step(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "data": {"batch_size": 6}}
    whole = trained(AdamWithDropout, callbacks=(saving,), enable_checkpointing=True, **options)
    assert_equal(trained(AdamWithDropout, ckpt_path=tmp_path / "step=3.ckpt", **options), whole)


def test_a_validation_split_is_measured_and_the_test_images_once() -> None:
    _, replay = trained(data={"validation_share": 0.25})
    assert len(replay.test_accuracies) == 3
    assert replay.accuracy_matrix[-1].isfinite().all()


def test_the_module_may_evaluate_itself_on_the_same_batches() -> None:
    class WithValidation(Plain):
        def validation_step(self, batch: Any, batch_index: int) -> None:
            images, labels = batch
            self.log("hits", (self(images).argmax(dim=1) == labels).float().mean())

        test_step = validation_step

    module, replay = trained(WithValidation)
    (found,) = quiet_trainer().test(module, TinySequence(), verbose=False)
    assert 100 * found["hits"] == pytest.approx(float(replay.accuracy_matrix[-1].mean()))


def test_a_trained_module_continues_with_further_classes(tmp_path: Path) -> None:
    def module() -> LightningModule:
        return Plain(num_classes=10)

    seed_everything(0, verbose=False)
    first, replay = TinyPart((0, 6)), Replay(10, 5)
    trainer = quiet_trainer(callbacks=[replay])
    trainer.fit(module(), first)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    grown = Replay(10, 5)
    both = TinyPart((0, 6)).followed_by(TinyPart((6, 10)))
    quiet_trainer(callbacks=[grown]).fit(module(), both, ckpt_path=tmp_path / "first.ckpt")
    assert torch.equal(grown.accuracy_matrix[:3, :3].nan_to_num(-1), replay.accuracy_matrix.nan_to_num(-1))
    assert grown.accuracy_matrix[-1].isfinite().all()
    assert set((grown.memory.labels // 2).tolist()) >= {0, 3, 4}


class Shares(Callback):
    """Notes the memory's labels of each rank."""

    def on_train_end(self, trainer: Any, module: Any) -> None:
        replay = next(callback for callback in trainer.callbacks if isinstance(callback, Replay))
        labels = replay.memory[replay.memory.slots].labels
        trainer.callback_metrics["labels"] = labels
        gathered = [torch.empty_like(labels) for _ in range(trainer.world_size)]
        torch.distributed.all_gather(gathered, labels)
        assert all(torch.equal(one, labels) for one in gathered)


def test_two_processes_are_one() -> None:
    one, replay = trained(replay=Replay(10, 4))
    seed_everything(0, verbose=False)
    two, trainer = Plain(), quiet_trainer(devices=2, strategy="ddp_fork", callbacks=[Replay(10, 4), Shares()])
    trainer.fit(two, TinySequence(batch_size=12, epochs_per_task=2))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert torch.equal(trainer.callback_metrics["labels"], replay.memory[replay.memory.slots].labels)
    matrix = trainer.callback_metrics["accuracy_matrix"]
    assert torch.equal(matrix.nan_to_num(-1), replay.accuracy_matrix.nan_to_num(-1))


def test_without_replay_a_module_gets_tuples_and_forgets(tmp_path: Path) -> None:
    def run(path: Path | None, seed: int, *callbacks: Callback, **options: Any) -> tuple[LightningModule, Seen]:
        seed_everything(seed, verbose=False)
        module, seen = Plain(), Seen()
        data = TinySequence(batch_size=12, epochs_per_task=4)
        quiet_trainer(callbacks=[seen, *callbacks], **options).fit(module, data, ckpt_path=path)
        return module, seen

    saving = ModelCheckpoint(tmp_path, every_n_train_steps=11, filename="{step}")
    module, seen = run(None, 0, saving, enable_checkpointing=True)
    assert [len(batch) for batch in seen.batches] == [2] * 24
    images, labels = zip(*seen.batches, strict=True)
    assert set(torch.cat(labels[:8]).tolist()) == {0, 1}
    assert not torch.equal(images[0].sort(dim=0).values, images[2].sort(dim=0).values)  # augmented in each epoch anew
    data = TinySequence()
    data.setup("test")
    with torch.no_grad():
        scores = module(data.transform(data.test_set.images))
    assert set(scores.argmax(dim=1).tolist()) <= {4, 5}
    resumed, _ = run(tmp_path / "step=22.ckpt", 1)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), resumed.parameters(), strict=True))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"module": lambda: ER(small_net(), 6)}, "Replay is for modules of your own, and ER has a memory already"),
    (
        {"module": lambda: Plain(num_classes=4)},
        "must give a score for each image and class, (1, 6) or more, got",
    ),
    ({"module": lambda: Plain(lambda: nn.Linear(3, 8))}, "Plain must score normalised images of shape (1, 1, 8, 8)"),
    ({"callbacks": (EarlyStopping("x"),)}, "callbacks must not contain EarlyStopping"),
    ({"max_epochs": 2}, "max_epochs must be 6"),
    (
        {"devices": 2, "strategy": "ddp_fork", "data": {"batch_size": 9}},
        "batch_size must be a multiple of the 2 devices",
    ),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[reason[:30] for _, reason in REFUSED])
def test_what_cannot_work_is_refused_before_training(options: dict[str, Any], reason: str) -> None:
    expected = ProcessRaisedException if "devices" in options else ConfigurationError
    with pytest.raises(expected, match=re.escape(reason)):
        trained(**options)


def test_without_draws_it_only_measures() -> None:
    seen = Seen()
    _, replay = trained(replay=Replay(10, replay_batch_size=0), callbacks=(seen,), data={"epochs_per_task": 6})
    assert {len(labels) for _, labels in seen.batches} == {12}
    assert (replay.accuracy_matrix[2, :2] == 0).all()  # forgotten: the newest classes are predicted
    assert replay.accuracy_matrix[2, 2] > 0


def test_runs_are_reported_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        for name, size in (("plain", 0), ("replay", 5)):
            trained(replay=Replay(10, size, folder=tmp_path / "runs" / f"{name}-{seed}"), seed=seed)
    found = read_run(tmp_path / "runs" / "replay-1")
    assert found.results is not None
    assert (found.problems, found.is_finished) == ([], True)
    _, replay = trained(replay=Replay(10, 5), seed=1)
    torch.testing.assert_close(found.results.matrix, replay.accuracy_matrix, equal_nan=True, rtol=0, atol=1e-3)
    assert (found.results.method, found.results.plugin, found.results.seed) == ("Plain", "Replay", 1)
    assert (found.config["replay.replay_batch_size"], found.config["data.init_args.batch_size"]) == (5, 12)
    assert main(["compare", str(tmp_path / "runs")]) == 0
    table = capsys.readouterr().out
    assert "Plain + Replay" in table
    assert main(["report", str(tmp_path / "runs"), "-o", "page.html"]) == 0
    assert "Plain + Replay" in Path("page.html").read_text()


def test_a_folder_must_be_new_or_resumed(tmp_path: Path) -> None:
    def replay() -> Replay:
        return Replay(10, 5, folder=tmp_path / "run")

    saving = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=5, save_top_k=-1, filename="{step}")
    trained(replay=replay(), callbacks=(saving,), enable_checkpointing=True)
    with pytest.raises(ConfigurationError, match="folder must be new, or the run be resumed with ckpt_path="):
        trained(replay=replay())
    trained(replay=replay(), ckpt_path=tmp_path / "kept" / "step=5.ckpt")
    assert read_run(tmp_path / "run").is_finished


def test_data_and_module_must_fit_each_other() -> None:
    with pytest.raises(ConfigurationError, match="as_tuples must be left out for ER"):
        quiet_trainer().fit(ER(small_net(), 6), TinySequence(batch_size=12, as_tuples=True))
    with pytest.raises(ConfigurationError, match="Replay needs a TaskSequence such as SplitDigits"):
        quiet_trainer(callbacks=[Replay()]).fit(Plain(), DataLoader([(torch.zeros(1, 8, 8), 0)]))


def test_a_memory_that_compares_gradients_needs_backbone_and_head() -> None:
    class Whole(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(self.backbone, self.head)
            del self.backbone, self.head

        def forward(self, images: Tensor) -> Tensor:
            scores: Tensor = self.net(images)
            return scores

    with pytest.raises(ConfigurationError, match="the module must have the parts backbone and head, got net"):
        trained(Whole, Replay(10, 5, memory=GradientSelection()))
