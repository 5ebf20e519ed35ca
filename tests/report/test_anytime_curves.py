"""The page shows continual evaluation by groups of seeds, from what the runs have recorded."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ddn_lightning.cli import main
from ddn_lightning.report.anytime import MEASURES, anytime_groups, anytime_pictures, anytime_table
from ddn_lightning.report.figures.anytime import Band, anytime_figure, anytime_tasks_figure
from ddn_lightning.report.figures.run_figures import pictures_of
from ddn_lightning.runs.anytime import AnytimeRecord, Evaluation, write_anytime
from ddn_lightning.runs.recorded_run import RecordedRun, read_run

NAN = math.nan
STEPS = [(4, 0), (8, 0), (12, 1), (16, 1)]


def measured(recorded: Path, seed: int, steps: Sequence[tuple[int, int]] = STEPS, images: int = 40) -> RecordedRun:
    """A copy of a run with evaluations of two of its five tasks, which depend on the seed."""
    folder = Path(f"runs/seed{seed}-{len(steps)}-{images}")
    shutil.copytree(recorded / "er", folder, ignore=shutil.ignore_patterns("figures", "*.npz"))
    results = json.loads((folder / "results.json").read_text())
    anytime = dict.fromkeys(MEASURES.values(), 50.0 + seed) | {"forward_transfer": None, "images": images, "seed": 0}
    results |= {"seed": seed, "seconds": 20.0, "anytime": anytime | {"seconds": 1.0, "statistics": "running"}}
    (folder / "results.json").write_text(json.dumps(results))
    later = (NAN, NAN, NAN)
    rows = [Evaluation(s, t, s, (90.0 - 30 * t + seed, 80.0 + s if t else NAN, *later)) for s, t in steps]
    write_anytime(folder, AnytimeRecord(rows))
    return read_run(folder)


def test_seeds_measured_alike_are_one_row_with_mean_and_cost(recorded_runs: Path) -> None:
    runs = [measured(recorded_runs, seed) for seed in (0, 1, 2)]
    assert not [problem for run in runs for problem in run.problems]
    plain = read_run(recorded_runs / "er")
    again = runs[0]  # the same seed must not count twice
    (group,) = anytime_groups([*runs, plain, again])
    assert [run.results.seed for run in group.runs if run.results] == [0, 1, 2]
    table = anytime_table([group])
    titles = [column.title for column in table.columns]
    assert "FWT" not in titles  # nobody has measured it
    ((_, *cells),) = table.rows
    assert [cell.text for cell in cells] == ["51.00 ± 1.00 (3)"] * 7 + ["4 of 40 images", "5.0 %"]


def test_runs_measured_at_other_steps_or_on_other_images_are_no_seeds_of_each_other(recorded_runs: Path) -> None:
    runs = [measured(recorded_runs, 0), measured(recorded_runs, 1, STEPS[1:]), measured(recorded_runs, 2, images=20)]
    groups = anytime_groups(runs)
    assert [len(group.runs) for group in groups] == [1, 1, 1]
    assert len({group.name for group in groups}) == 3


def test_the_curves_have_the_mean_and_the_deviation_over_seeds_and_mark_the_switch(recorded_runs: Path) -> None:
    (group,) = anytime_groups([measured(recorded_runs, seed) for seed in (0, 2)])
    first, second, *rest = group.tasks
    assert first.mean.tolist() == [91, 91, 61, 61]
    assert first.std is not None
    assert first.std.tolist() == pytest.approx([math.sqrt(2)] * 4)
    assert second.mean.nan_to_num(-1).tolist() == [-1, -1, 92, 96]
    assert all(band.mean.isnan().all() for band in rest)
    accuracy, forgetting, plasticity = (band.mean for band in group.curves)
    assert accuracy.tolist() == [91, 91, (61 + 92) / 2, (61 + 96) / 2]
    assert forgetting.nan_to_num(-1).tolist() == [-1, -1, 30, 30]
    assert plasticity.tolist() == [91, 91, 92, 96]
    assert group.records[0].switches == [8]
    pictures = anytime_pictures([group])
    assert [picture.name for picture in pictures] == ["anytime", "anytime_tasks"]
    panel = pictures[0].figure.axes[0]
    assert list(panel.lines[0].get_ydata()) == accuracy.tolist()
    assert list(panel.lines[1].get_xdata()) == [8, 8]
    assert len(panel.collections) == 1  # the band


def test_a_single_run_has_lines_without_a_band(recorded_runs: Path) -> None:
    run = measured(recorded_runs, 0)
    figure = next(picture.figure for picture in pictures_of(run) if picture.name == "anytime")
    (axes,) = figure.axes
    assert not axes.collections
    assert list(axes.lines[0].get_ydata()) == [90, 90, 60, 60]
    band = Band.of(torch.tensor([1, 2]), torch.tensor([[50.0, 60.0]]))
    assert not anytime_tasks_figure([band], [1]).axes[0].collections
    assert len(anytime_figure({"a": [band] * 3, "b": [band] * 3}, []).axes[2].lines) == 2


def test_the_page_has_the_section_only_for_runs_that_were_measured(recorded_runs: Path) -> None:
    for seed in (0, 1):
        measured(recorded_runs, seed)
    assert main(["report", "runs", "-o", "with.html"]) == 0
    page = Path("with.html").read_text()
    assert "Within tasks" in page
    assert "50.50 ± 0.71 (2)" in page
    assert "could not be drawn" not in page
    assert main(["report", str(recorded_runs / "er"), "-o", "without.html"]) == 0
    assert "Within tasks" not in Path("without.html").read_text()


def test_a_damaged_file_is_named_and_the_rest_of_the_run_is_read(recorded_runs: Path) -> None:
    run = measured(recorded_runs, 0)
    (run.folder / "anytime.csv").write_text("step,task\n1\n")
    found = read_run(run.folder)
    assert found.anytime is None
    assert [problem.split(" (")[0] for problem in found.problems] == ["anytime.csv cannot be read"]
    assert found.is_finished
    assert anytime_groups([found]) == []
