"""The accuracy matrix on screens of any width."""

import io
import re

import pytest
import torch
from rich.console import Console
from torch import Tensor

from ddn_lightning.callbacks.accuracy_table import accuracy_tables
from ddn_lightning.metrics.accuracy_matrix import summary


def a_matrix(tasks: int, measured: int) -> Tensor:
    """Every value is another one, and the first of each row 100."""
    matrix = torch.arange(tasks * tasks).view(tasks, tasks) / tasks**2 * 90 + 9.87
    matrix[:, 0] = 100
    is_known = torch.ones(tasks, tasks, dtype=torch.bool).tril() & (torch.arange(tasks)[:, None] < measured)
    return matrix.masked_fill(~is_known, torch.nan)


def shown(matrix: Tensor, width: int) -> str:
    text = io.StringIO()
    console = Console(width=width, file=text)
    for table in accuracy_tables(matrix, summary, "ER on digits", width):
        console.print(table)
    return text.getvalue()


@pytest.mark.parametrize("measured", [1, 7, None])
@pytest.mark.parametrize("width", [60, 80, 110, 200])
@pytest.mark.parametrize("tasks", [1, 2, 5, 10, 20])
def test_every_value_is_shown_in_full(tasks: int, width: int, measured: int | None) -> None:
    matrix = a_matrix(tasks, measured or tasks)
    text = shown(matrix, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    numbers = re.findall(r"\d+\.\d+", text)
    digits = len(numbers[0].partition(".")[2])
    known = [f"{value:.{digits}f}" for row in matrix.tolist() for value in row if value == value]
    for value in known:
        numbers.remove(value)  # raises if it is not there
    rows = int((~matrix[:, 0].isnan()).sum())
    assert len(numbers) == 2 * rows  # ACC and FM


def test_five_tasks_have_room_for_names_and_two_digits_in_80_columns() -> None:
    text = shown(a_matrix(5, 5), 80)
    assert all(name in text for name in ("learned", "task 5", "ACC", "FM", "100.00"))


def test_only_measured_tasks_are_shown() -> None:
    assert "task 3" not in shown(a_matrix(10, 2), 80)
    assert accuracy_tables(a_matrix(10, 0), summary, "", 80) == []
