import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from rich.console import Console
from rich.progress import Progress
from tiny import TinySequence, small_net

from ddn_lightning import ER, LUCIR, DataDistillNet, TaskProgressBar
from ddn_lightning.callbacks import task_progress_bar
from ddn_lightning.callbacks.task_progress_bar import track


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Console]:
    """Makes the console that both the bar and Lightning write to."""

    def make(is_terminal: bool) -> Console:
        made = Console(file=io.StringIO(), width=80, force_terminal=is_terminal, color_system=None)
        lightning = "lightning.pytorch.callbacks.progress.rich_progress"
        for module in (task_progress_bar.__name__, lightning):
            monkeypatch.setattr(f"{module}.get_console", lambda: made)
        monkeypatch.setattr(f"{lightning}.reconfigure", lambda **_: None)
        return made

    return make


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_bar_is_one_line_of_80_columns(
    make_trainer: Callable[..., Trainer], console: Callable[[bool], Console]
) -> None:
    screen = console(True)
    drawn: list[list[str]] = []

    class Watch(TaskProgressBar):
        def refresh(self, hard: bool = False) -> None:
            super().refresh(hard)
            if self.progress is not None:
                lines = screen.render_lines(self.progress.get_renderable(), pad=False)
                drawn.append(["".join(part.text for part in line).rstrip() for line in lines])

    method = ER(small_net(), num_classes=6, distiller=DataDistillNet())
    trainer = make_trainer(enable_progress_bar=True, callbacks=[Watch()], log_every_n_steps=1)
    trainer.fit(method, TinySequence(batch_size=12, epochs_per_task=2))
    training = [lines for lines in drawn if lines and lines[0].startswith("task")]
    assert {len([line for line in lines if line.startswith("task")]) for lines in training} == {1}
    assert not any(line.startswith(" ") for lines in training for line in lines), "no line is continued"
    assert training[0][0].startswith("task 1/3  epoch 1/2")
    acc = float(method.accuracy_matrix[-1].mean())
    assert re.fullmatch(
        rf"task 3/3  epoch 2/2 \S+ ACC {acc:.1f} FM [0-9.]+  loss [0-9.]+  0:00:00 left", training[-1][0]
    )
    assert "ER + DataDistillNet on tiny: 3 tasks, SmallNet, memory of 200, cpu" in written(screen)


def test_without_a_terminal_each_evaluation_prints_a_line(
    make_trainer: Callable[..., Trainer], console: Callable[[bool], Console]
) -> None:
    screen = console(False)
    bar = TaskProgressBar(folder=Path("runs/mine"))
    method = ER(small_net(), num_classes=6)
    make_trainer(enable_progress_bar=True, callbacks=[bar], log_every_n_steps=1).fit(
        method, TinySequence(batch_size=12)
    )
    first, *lines = written(screen).splitlines()
    assert first == "ER on tiny: 3 tasks, SmallNet, memory of 200, cpu; results in runs/mine/"
    assert [line[:19] for line in lines] == [f"task {task}/3  epoch 1/1" for task in (1, 2, 3)]
    acc = float(method.accuracy_matrix[-1].mean())
    assert f"  ACC {acc:.1f} FM " in lines[-1]


def test_time_left_is_what_the_finished_share_took(
    make_trainer: Callable[..., Trainer], console: Callable[[bool], Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = console(False)
    now = iter(range(0, 10_000, 60))  # a minute between two looks at the clock
    monkeypatch.setattr(task_progress_bar, "monotonic", lambda: next(now))
    trainer = make_trainer(enable_progress_bar=True, callbacks=[TaskProgressBar()])
    trainer.fit(ER(small_net(), num_classes=6), TinySequence(batch_size=12))
    assert [line.split()[-2] for line in written(screen).splitlines()[1:]] == ["0:02:00", "0:01:00", "0:00:00"]


def test_work_at_a_tasks_end_has_a_line_in_the_bar(
    make_trainer: Callable[..., Trainer], console: Callable[[bool], Console], monkeypatch: pytest.MonkeyPatch
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
    console(True)
    method = LUCIR(small_net(), num_classes=6, fine_tuning_epochs=3)
    trainer = make_trainer(enable_progress_bar=True, callbacks=[TaskProgressBar()])
    trainer.fit(method, TinySequence(batch_size=6))
    stages = [line for line in shown if line[0] in ("choosing exemplars", "fine-tuning the head")]
    assert stages == [("choosing exemplars", 2)] + 2 * [("choosing exemplars", 2), ("fine-tuning the head", 3)]
    assert len(removed) >= len(stages)


def test_without_a_bar_track_only_counts(make_trainer: Callable[..., Trainer]) -> None:
    assert list(track(make_trainer(), 3, "counting")) == [0, 1, 2]
