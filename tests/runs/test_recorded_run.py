import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ddn_lightning.runs.recorded_run import read_run


def test_a_run_is_read_back(recorded_runs: Path) -> None:
    run = read_run(recorded_runs / "ddn")
    assert (run.name, run.problems) == ("ddn", [])
    assert run.is_finished
    assert run.results is not None
    assert (run.results.title, run.results.seed) == ("ER + DataDistillNet", 1)
    assert run.config["model.init_args.distiller.init_args.alpha"] == 1.0
    assert run.observed is not None
    for task, curve in enumerate(run.task_curves):
        assert list(curve.tasks_learned) == [stage + 1.0 for stage in range(task, 5)]
        assert list(curve.values) == pytest.approx(run.results.matrix[task:, task].tolist(), abs=1e-3)
    entropies = run.curve("distill/label_entropy")
    assert 0 < entropies.tasks_learned[0] < 1 < entropies.tasks_learned[-1] <= 5


def test_a_task_end_that_was_not_logged_moves_no_other(recorded_runs: Path) -> None:
    run = read_run(recorded_runs / "ddn")
    gap = replace(run, rows=[row for row in run.rows if "val/accuracy/task_3" in row or "average_accuracy" not in row])
    assert list(gap.task_curves[0].tasks_learned) == [3.0, 4.0, 5.0]


def test_without_curves_the_accuracy_matrix_is_used(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs / "er", tmp_path / "er")
    logged = read_run(tmp_path / "er").task_curves
    (tmp_path / "er/metrics.csv").unlink()
    for first, second in zip(logged, read_run(tmp_path / "er").task_curves, strict=True):
        assert list(first.tasks_learned) == list(second.tasks_learned)
        assert list(first.values) == pytest.approx(list(second.values), abs=1e-3)


def test_a_name_may_contain_slashes(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs / "er", tmp_path / "a/er")
    assert read_run(tmp_path / "a/er").name == "er"
    config = tmp_path / "a/er/config.yaml"
    config.write_text(config.read_text().replace("\nname: er\n", "\nname: a/er\n"))
    assert read_run(tmp_path / "a/er").name == "a/er"
    (tmp_path / "a").rename(tmp_path / "moved")
    assert read_run(tmp_path / "moved/er").name == "er"


def test_a_stopped_run_reports_its_progress(recorded_runs: Path) -> None:
    run = read_run(recorded_runs / "stopped")
    assert not run.is_finished
    assert run.problems == ["has learned 1 of its 5 tasks"]


def spoil(path: Path, content: bytes | None) -> None:
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("results.json", None, "has no results.json: still training, or stopped"),
        ("results.json", b"{", "results.json cannot be read (JSONDecodeError"),
        ("results.json", b"[1]", "results.json cannot be read (TypeError"),
        ("results.json", b'{"schema": 9}', "results.json cannot be read (ConfigurationError: results.json must be of"),
        ("results.json", b'{"accuracy_matrix": [[1]]}', "results.json cannot be read (TypeError"),
        ("results.json", b"\xff\xfe\x00", "results.json cannot be read (UnicodeDecodeError"),
        ("config.yaml", None, "has no config.yaml: not a run"),
        ("config.yaml", b"a: [", "config.yaml cannot be read"),
        ("config.yaml", b"!!python/object/apply:os.system ['true']", "config.yaml cannot be read (ConstructorError"),
        ("config.yaml", b"- 1", "config.yaml cannot be read (TypeError"),
        ("observations.npz", b"PK", "observations.npz cannot be read"),
        ("observations.npz", b"", "observations.npz cannot be read"),
    ],
)
def test_broken_files_are_reported(
    file: str, content: bytes | None, expected: str, recorded_runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(recorded_runs / "er", tmp_path / "er")
    spoil(tmp_path / "er" / file, content)
    (problem,) = read_run(tmp_path / "er").problems
    assert expected in problem
    assert "\n" not in problem


def test_truncated_and_invalid_rows_of_curves_are_skipped(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs / "er", tmp_path / "er")
    before = read_run(tmp_path / "er").rows
    with (tmp_path / "er/metrics.csv").open("a") as file:
        file.write("nan,inf,x\n\0,1\n7")
    assert list(read_run(tmp_path / "er").rows)[: len(before)] == list(before)


def test_observations_of_another_run_are_refused(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs / "er", tmp_path / "er")
    results = json.loads((tmp_path / "er/results.json").read_text())
    results |= {"accuracy_matrix": [[50.0]], "tasks_finished": 1}
    (tmp_path / "er/results.json").write_text(json.dumps(results))
    run = read_run(tmp_path / "er")
    assert run.observed is None
    assert run.problems == ["has results of 1 tasks, but observations of 5"]
    assert read_run(tmp_path / "er/results.json").problems == ["is not a folder"]
