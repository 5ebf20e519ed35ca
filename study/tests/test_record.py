"""Finished runs become rows of ``measured.csv``."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from ddn_lightning.cli import main
from study.measured import MEASURED, measured_runs
from study.record import COLUMNS, Job, read_jobs, record, row_of
from study.record import main as record_main

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
GROUP = ("digits", "SmallNet", "offline", "100", "er", "none", "")
FIT = ("fit", "-c", "quickstart", "--seed_everything", "0")


def job(name: str = "er", group: tuple[str, ...] = GROUP, seed: int = 0) -> Job:
    return Job(name, group, seed, FIT)


def test_a_row_has_the_numbers_of_the_results(recorded_runs: Path) -> None:
    row = row_of(recorded_runs / "er", job())
    results = json.loads((recorded_runs / "er" / "results.json").read_text())
    assert row is not None
    assert tuple(row) == COLUMNS
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerow(row)
    (run,) = measured_runs(text.getvalue())
    assert run.acc == pytest.approx(results["average_accuracy"], abs=0.005)
    assert run.fm == pytest.approx(results["forgetting"], abs=0.005)
    assert run.cpu_minutes == pytest.approx(results["cpu_minutes"], abs=0.005)
    assert (run.calibrated_acc, run.calibrated_fm, run.calibrated_matrix) == (None, None, ())
    assert [len(line) for line in run.matrix] == [1, 2, 3, 4, 5]
    assert run.matrix[2][1] == pytest.approx(results["accuracy_matrix"][2][1], abs=0.005)
    assert run.matrix[-1] == run.per_task
    assert run.command == "ddn fit -c quickstart --seed_everything 0"
    assert run.version == results["versions"]["ddn-lightning"]


def test_a_run_evaluated_twice_has_both_matrices() -> None:
    network = ["--model.backbone", "ResNet18", "--model.backbone.width", "2", "--model.backbone.in_channels", "1"]
    short = [
        "--trainer.limit_train_batches",
        "2",
        "--trainer.log_every_n_steps",
        "1",
        "--data.epochs_per_task",
        "1",
        "--forgetting.statistics",
        "both",
    ]
    assert main(["fit", "-c", str(QUICKSTART), *network, *short, "--name", "both"]) == 0
    group = ("digits", "ResNet18 width 2", *GROUP[2:])
    row = row_of(Path("runs/both"), job("both", group))
    results = json.loads(Path("runs/both/results.json").read_text())
    assert row is not None
    assert row["calibrated_acc"] == f"{results['calibrated_average_accuracy']:.2f}"
    assert row["calibrated_matrix"].startswith(f"{results['calibrated_accuracy_matrix'][0][0]:.2f}; ")
    with pytest.raises(ValueError, match="with width 4, got 2"):
        row_of(Path("runs/both"), job("both", ("digits", "ResNet18 width 4", *GROUP[2:])))


def test_only_finished_runs_are_recorded_and_each_once(
    recorded_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "measured.csv"
    shutil.copy(MEASURED, table)
    lines = [{"name": name, "group": [*GROUP], "seed": 0, "cmd": FIT} for name in ("er", "stopped", "none")]
    lines.append({"name": "er", "group": [*GROUP], "seed": 0, "cmd": FIT})  # of another queue
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("\n".join(map(json.dumps, lines)) + "\n")
    record_main([str(jobs), "--runs", str(recorded_runs), "--table", str(table)])
    assert capsys.readouterr().out == f"er\n1 of 4 jobs recorded in {table}\n"
    assert table.read_text().startswith(MEASURED.read_text())
    assert len(measured_runs(table.read_text())) == len(measured_runs()) + 1
    assert record(read_jobs(jobs.read_text()), recorded_runs, table) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (job(seed=1), "with seed 1, got 0"),
        (job(group=(*GROUP[:3], "50", *GROUP[4:])), "with buffer size 50, got 100"),
        (job(group=(*GROUP[:4], "derpp", *GROUP[5:])), "with method derpp, got er"),
    ],
)
def test_the_run_of_another_job_is_refused(wrong: Job, message: str, recorded_runs: Path) -> None:
    with pytest.raises(ValueError, match=message):
        row_of(recorded_runs / "er", wrong)
