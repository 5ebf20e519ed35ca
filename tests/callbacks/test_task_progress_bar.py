from collections.abc import Callable
from typing import Any

import pytest
from lightning.pytorch import Trainer
from tiny import TinySequence, small_net

from ddn_lightning import ER, TaskProgressBar


def test_the_bar_says_the_task_and_what_was_measured_so_far(make_trainer: Callable[..., Trainer]) -> None:
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
