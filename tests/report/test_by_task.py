"""More classes than an axis can name are shown by task, with the numbers of the classes behind them."""

from pathlib import Path

import pytest
import torch
from made_up import made_up_run

from ddn_lightning.report.figures.predictions import by_task_figure, is_shown_by_task, shares_by_task
from ddn_lightning.report.figures.run_figures import pictures_of
from ddn_lightning.runs.recorded_run import read_run


def test_shares_are_summed_over_a_tasks_classes_and_averaged_over_its_true_ones() -> None:
    chance = torch.Generator().manual_seed(0)
    shares = torch.rand(30, 30, generator=chance).softmax(dim=1)
    shares[4] = torch.nan  # a class without images
    task = torch.randint(3, (30,), generator=chance)
    found = shares_by_task(shares, torch.stack([task == number for number in range(3)]))
    for true in range(3):
        rows = [label for label in range(30) if task[label] == true and label != 4]
        for other in range(3):
            sums = [sum(float(shares[row, label]) for label in range(30) if task[label] == other) for row in rows]
            assert float(found[true, other]) == pytest.approx(sum(sums) / len(sums))
    assert found.sum(dim=1).tolist() == pytest.approx([1.0] * 3)


def test_classes_keep_their_names_if_they_are_few_or_come_in_several_tasks() -> None:
    def of(tasks: int, classes: int) -> torch.Tensor:
        return torch.eye(tasks, dtype=torch.bool).repeat_interleave(classes // tasks, dim=1)

    assert is_shown_by_task(of(10, 100))
    assert not is_shown_by_task(of(5, 20))
    assert not is_shown_by_task(of(1, 100))
    assert is_shown_by_task(torch.nn.functional.pad(of(10, 100), (0, 7)))  # outputs for classes to come
    assert not is_shown_by_task(torch.ones(3, 100, dtype=torch.bool))  # domains


def test_a_table_of_tasks_has_percentages_in_its_cells() -> None:
    axes, _ = by_task_figure({"ER, seed 0": torch.tensor([[0.75, 0.25], [torch.nan, torch.nan]])}, "task").axes
    assert [text.get_text() for text in axes.texts] == ["75", "25", "", ""]
    assert axes.get_title() == "ER, seed 0"


def test_the_figures_of_a_hundred_classes_say_that_they_are_by_task() -> None:
    pictures = {one.name: one for one in pictures_of(read_run(made_up_run(Path("run"), plugin="DataDistillNet")))}
    for name in ("confusion", "probability", "soft_labels"):
        assert pictures[name].title.endswith(": 100 classes, summed by task")
        (axes, *_) = pictures[name].figure.axes
        assert [label.get_text() for label in axes.get_xticklabels()] == [str(task) for task in range(1, 11)]
