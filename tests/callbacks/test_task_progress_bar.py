from collections.abc import Callable
from typing import Any

import pytest
from lightning.pytorch import Trainer
from rich.progress import Progress
from tiny import TinySequence, small_net

from ddn_lightning import ER, LUCIR, TaskProgressBar
from ddn_lightning.callbacks.task_progress_bar import track


def test_the_bar_shows_the_task_and_the_results_so_far(make_trainer: Callable[..., Trainer]) -> None:
    shown: list[dict[str, Any]] = []

    class Watch(TaskProgressBar):
        def get_metrics(self, trainer: Trainer, pl_module: Any) -> dict[str, Any]:
            shown.append(dict(super().get_metrics(trainer, pl_module)))
            return shown[-1]

    method = ER(small_net(), num_classes=6)
    trainer = make_trainer(enable_progress_bar=True, callbacks=[Watch()], log_every_n_steps=1)
    trainer.fit(method, TinySequence(batch_size=12))
    with_task = [metrics for metrics in shown if "task" in metrics]
    assert with_task[0]["task"] == "1/3"
    assert "ACC" not in with_task[0]
    assert with_task[-1]["task"] == "3/3"
    assert float(with_task[-1]["ACC"]) == pytest.approx(method.accuracy_matrix[-1].mean().item(), abs=0.06)
    assert "train/loss" in with_task[-1]
    assert {metrics["FM"] for metrics in with_task if metrics["task"] == "2/3" and "FM" in metrics} >= {"0.0"}


def test_work_at_a_tasks_end_has_a_line_in_the_bar(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, removed = [], []
    add, remove = Progress.add_task, Progress.remove_task

    def watch_add(self: Progress, description: str, start: bool = True, total: float | None = None, *rest: Any) -> Any:
        shown.append((description.split("]")[-1], total))
        return add(self, description, start, total, *rest)

    def watch_remove(self: Progress, line: int) -> None:
        removed.append(line)
        remove(self, line)  # type: ignore[arg-type]

    monkeypatch.setattr(Progress, "add_task", watch_add)
    monkeypatch.setattr(Progress, "remove_task", watch_remove)
    method = LUCIR(small_net(), num_classes=6, fine_tuning_epochs=3)
    trainer = make_trainer(enable_progress_bar=True, callbacks=[TaskProgressBar()])
    trainer.fit(method, TinySequence(batch_size=6))
    stages = [line for line in shown if line[0] in ("choosing exemplars", "fine-tuning the head")]
    assert stages == [("choosing exemplars", 2)] + 2 * [("choosing exemplars", 2), ("fine-tuning the head", 3)]
    assert len(removed) >= len(stages)


def test_without_a_bar_track_only_counts(make_trainer: Callable[..., Trainer]) -> None:
    assert list(track(make_trainer(), 3, "counting")) == [0, 1, 2]
