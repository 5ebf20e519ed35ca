"""What we have measured, and that the manual shows exactly that."""

import re
import shlex
from itertools import product
from pathlib import Path

import pytest

from ddn_lightning.cli import main
from study.measured import measured_runs, measured_table

ROOT = Path(__file__).parents[2]
HEADER = "data,network,setting,buffer_size,method,plugin,options,seed,acc,fm,per_task,"
HEADER_LINE = f"{HEADER}calibrated_acc,calibrated_fm,cpu_minutes,command\n"
TEXT = f"""{HEADER_LINE}\
cifar10,ResNet18 width 20,online,200,er,none,,12,30,50,20 40,33,20,1.5,ddn fit 2
cifar10,ResNet18 width 20,online,200,er,none,,11,34,,28 40,35,,2.5,ddn fit 1
cifar10,ResNet18 width 20,online,200,er,none,old_memory_weight=1,11,36,30,35 45,,,2,ddn fit 3
cifar10,ResNet18 width 20,online,200,er,ddn,,11,40,30,35 45,,,9,ddn fit 4
cifar10,ResNet18 width 20,online,200,er,ddn,,12,32,30,25 39,,,9,ddn fit 5
cifar10,ResNet18 width 20,online,200,er,ddn,"alpha=1, beta=0",11,38,30,31 45,,,9,ddn fit 6
cifar10@16,ResNet18 width 16,online,200,er,none,,11,50,20,45 55,,,60,ddn fit 7
cifar10@16,ResNet18 width 16,online,200,er,none,,5,90,10,90 90,,,60,ddn fit 8
"""


def test_runs_are_averaged_over_seeds_that_served_for_nothing_else() -> None:
    lines = measured_table(measured_runs(TEXT)).splitlines()
    assert lines[0] == "**cifar10, ResNet18 width 20, online, M = 200**"
    assert lines[4:9] == [
        "| ER | 11 12 | 32.00 ± 2.83 | 50.00 | 36.05 / 49.99 | - | - | -2.00 (1) | 2.0 |",
        "| ER, calibrated | 11 12 | 34.00 ± 1.41 | 20.00 | - | +2.00 (2) | -30.00 (1) | - | 2.0 |",
        "| ER, old_memory_weight=1 | 11 | 36.00 | 30.00 | - | +2.00 (1) | - | - | 2.0 |",
        "| ER + DDN | 11 12 | 36.00 ± 5.66 | 30.00 ± 0.00 | 41.93 / 35.28 | +4.00 (2) | -20.00 (1) | +4.00 (1) | 9.0 |",
        "| ER + DDN, alpha=1, beta=0 | 11 | 38.00 | 30.00 | - | +4.00 (1) | - | +2.00 (1) | 9.0 |",
    ]
    assert lines[10:13] == ["```bash", "ddn fit 2", "```"]
    assert lines[14] == "**cifar10@16, ResNet18 width 16, online, M = 200**"
    assert lines[18:] == ["| ER | 11 | 50.00 | 20.00 | - | - | - | - | 60.0 |", "", "```bash", "ddn fit 7", "```"]


def test_er_comes_first_and_then_the_other_methods_by_name() -> None:
    others = "".join(
        f"cifar10,ResNet18 width 20,online,200,{m},none,,11,50,20,45,,,1,ddn fit 9\n" for m in ("pcr", "bic")
    )
    lines = measured_table(measured_runs(TEXT.replace(HEADER_LINE, HEADER_LINE + others))).splitlines()
    assert [line.split(" | ")[0] for line in lines[4:11]] == [
        *("| ER", "| ER, calibrated", "| ER, old_memory_weight=1", "| ER + DDN", "| ER + DDN, alpha=1, beta=0"),
        *("| BiC", "| PCR"),
    ]
    assert lines[12:14] == ["```bash", "ddn fit 2"]


def test_rows_are_read_as_they_are_written() -> None:
    run = measured_runs(TEXT)[5]
    assert (run.group.options, run.seed, run.acc, run.per_task) == ("alpha=1, beta=0", 11, 38.0, (31.0, 45.0))
    assert measured_runs(TEXT)[1].fm is None


def test_without_runs_to_report_there_is_no_table() -> None:
    assert measured_table([run for run in measured_runs(TEXT) if run.seed == 5]) == ""


def test_each_measured_run_is_there_once_and_adds_up() -> None:
    runs = measured_runs()
    assert len({(run.group, run.seed) for run in runs}) == len(runs)
    for run in runs:
        assert abs(sum(run.per_task) / len(run.per_task) - run.acc) < 0.02, run


def test_accuracy_and_forgetting_are_those_of_the_recorded_matrices() -> None:
    recorded = [run for run in measured_runs() if run.matrix]
    assert recorded
    for run in recorded:
        assert run.version
        assert run.matrix[-1] == run.per_task
        assert bool(run.calibrated_matrix) == (run.calibrated_acc is not None)
        recorded_values = [(run.matrix, run.acc, run.fm)]
        if run.calibrated_matrix:
            recorded_values.append((run.calibrated_matrix, run.calibrated_acc, run.calibrated_fm))
        for matrix, acc, fm in recorded_values:
            assert [len(row) for row in matrix] == list(range(1, len(matrix) + 1))
            *before, last = matrix
            drops = [max(row[task] for row in matrix[task:]) - last[task] for task in range(len(before))]
            assert sum(last) / len(last) == pytest.approx(acc, abs=0.02), run
            assert fm is None or sum(drops) / len(drops) == pytest.approx(fm, abs=0.02), run


def some_commands() -> list[str]:
    """Of the recorded commands, some that have between them every word that any has with its method and plug-in."""
    some, covered = [], set[tuple[str, str]]()
    for command in sorted({run.command for run in measured_runs()}, key=lambda text: (-len(text.split()), text)):
        words = [word for word in command.split() if not re.fullmatch(r"[\d.]+", word)]
        files = [word for word in words if "/method/" in word or "/plugin/" in word] or [""]
        if not covered.issuperset(pairs := set(product(files, words))):
            covered |= pairs
            some.append(command)
    return some


@pytest.mark.parametrize("command", some_commands())
def test_each_command_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)
    assert program == "ddn"
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--print_config"])
    assert not stopped.value.code
