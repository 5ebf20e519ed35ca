"""``ddn compare`` on run folders."""

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddn_lightning.cli import main

DDN = {"class_path": "ddn_lightning.DataDistillNet", "init_args": {"alpha": 1.0}}


def write_run(name: str, seed: int, acc: float, fm: float = 30.0, model: Any = None, **results: Any) -> None:
    options = {"buffer_size": 50, "lr": 0.03, "old_memory_weight": 0.0, "distiller": None, **(model or {})}
    config = {
        "seed_everything": seed,
        "name": name,
        "model": {"class_path": "ddn_lightning.ER", "init_args": options},
        "data": {"class_path": "ddn_lightning.SplitDigits", "init_args": {"epochs_per_task": 1}},
    }
    plugin = None if options["distiller"] is None else "DataDistillNet"
    whole = {"status": "complete", "average_accuracy": acc, "forgetting": fm, "accuracy_matrix": [[90.0, None], [1, 2]]}
    whole |= {"tasks_finished": 2, "seed": seed, "method": "ER", "plugin": plugin, "dataset": "digits"}
    whole |= {"buffer_size": 50, "cpu_minutes": 2.0 if plugin is None else 5.0, **results}
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "results.json").write_text(json.dumps(whole))


def write_runs(effect: float, seeds: int = 5, **results: Any) -> None:
    """ER, its control and ER with DDN on the same seeds; the seeds matter more than the noise."""
    chance = random.Random(1)
    for seed in range(20, 20 + seeds):
        level = chance.gauss(40, 6)
        write_run(f"er-{seed}", seed, level + chance.gauss(0, 0.3), **results)
        write_run(f"ddn-{seed}", seed, level + effect + chance.gauss(0, 0.3), model={"distiller": DDN}, **results)
        write_run(f"hard-{seed}", seed, level + chance.gauss(0, 0.3), model={"old_memory_weight": 1.0}, **results)


def table(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, str]]:
    """The rows by their group and statistics."""
    capsys.readouterr()
    assert main(["compare", "runs", "--format", "csv", *options]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    return {f"{row['group']} {row['statistics']}": row for row in rows}


def test_a_planted_effect_is_a_difference_and_a_planted_null_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(effect=3.0)
    rows = table(capsys)
    assert list(rows) == ["ER running", "ER + DDN running", "ER, old_memory_weight 1.0 running"]
    plain, ddn, null = rows.values()
    assert (plain["against"], ddn["against"], null["against"]) == ("", "ER", "ER")
    assert ddn["acc_difference_verdict"] == "difference"
    assert float(ddn["acc_difference_low"]) < 3 < float(ddn["acc_difference_high"])
    assert null["acc_difference_verdict"] == "not shown"
    assert float(null["acc_difference_low"]) < 0 < float(null["acc_difference_high"])
    assert ddn["fm_difference_verdict"] == "not shown"
    assert ddn["seeds"] == "20 21 22 23 24"
    assert [row["cost_mean"] for row in rows.values()] == ["1.0", "2.5", "1.0"]
    assert [row["cpu_minutes_mean"] for row in rows.values()] == ["2.0", "5.0", "2.0"]


TRICKS = {
    "rand_augment": {"class_path": "ddn_lightning.RandAugment", "init_args": {"operations": 1}},
    "memory": {"class_path": "ddn_lightning.RingBuffer"},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.001}},
    "lr_scheduler": {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1}},
}


def test_a_run_with_a_trick_is_named_after_it_and_is_no_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    for name, part in TRICKS.items():
        for seed in (20, 21):  # more than the plain run has
            write_run(f"a-{name}-{seed}", seed, 60, model={**dict.fromkeys(TRICKS), name: part})
    write_run("plain", 20, 50, model=dict.fromkeys(TRICKS))
    tricks = ["rand_augment RandAugment", "memory RingBuffer", "optimizer AdamW", "lr_scheduler StepLR"]
    rows = table(capsys)
    assert set(rows) == {"ER running", *(f"ER, {trick} running" for trick in tricks)}
    assert {row["against"] for name, row in rows.items() if name != "ER running"} == {"ER"}


def test_a_baseline_with_a_trick_has_it_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    write_run("trick", 20, 60, model={"memory": TRICKS["memory"]})
    write_run("other", 20, 50, model={"memory": None}, method="PCR")
    assert list(table(capsys)) == ["PCR running", "ER, memory RingBuffer running"]


def test_what_a_method_does_by_default_is_no_control(capsys: pytest.CaptureFixture[str]) -> None:
    for weight in (0.0, 1.0):
        options = {"replay_steps": 10, "old_memory_weight": weight}
        write_run(f"rar-{weight}", 20, 50 + weight, model=options, method="RAR")
    rows = table(capsys)
    assert [row["against"] for row in rows.values()] == ["", "RAR"]
    assert list(rows) == ["RAR running", "RAR, old_memory_weight 1.0 running"]


def test_a_single_seed_gives_no_ranking(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(effect=30.0, seeds=1)
    ddn = table(capsys)["ER + DDN running"]
    assert float(ddn["acc_difference_mean"]) > 20
    assert (ddn["acc_difference_low"], ddn["acc_difference_verdict"]) == ("", "not shown")


def test_every_difference_says_how_many_seeds_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    for seed, (plain, ddn) in enumerate([(40.0, 41.0), (30.0, 33.0), (35.0, 37.0)]):  # 2 points, deviation 1
        write_run(f"er-{seed}", seed, plain)
        write_run(f"ddn-{seed}", seed, ddn, model={"distiller": DDN})
    row = table(capsys)["ER + DDN running"]
    assert (row["seeds_needed_observed"], row["seeds_needed_target"]) == ("5", "10")  # effects of 2 and 1
    assert table(capsys, "--difference", "0.5")["ER + DDN running"]["seeds_needed_target"] == "34"
    assert main(["compare", "runs", "--difference", "0.5"]) == 0
    text = capsys.readouterr().out
    assert "(3), difference | 5 / 34 |" not in text  # the interval includes 0
    assert "(3), not shown | 5 / 34 |" in text
    assert "of the observed size / of 0.5 points with probability 0.8" in text


def test_a_single_seed_says_that_it_gives_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(effect=3.0, seeds=1)
    assert main(["compare", "runs"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ER + DDN ")]
    assert "(1), not shown | one seed: no interval |" in line
    assert table(capsys)["ER + DDN running"]["seeds_needed_observed"] == ""


@pytest.mark.parametrize("form", ["markdown", "csv", "latex"])
def test_seeds_that_chose_are_named_where_they_are_reported(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(effect=3.0, seeds=3)
    write_run("other", 0, 30.0, model={"lr": 0.5}, chosen_on_seeds=[7])
    assert main(["compare", "runs", "--format", form]) == 0
    assert "chose" not in "".join(capsys.readouterr()).replace("choosing_seeds", "")
    for number, path in enumerate(sorted(Path("runs").glob("ddn-*/results.json"))):
        chosen = [0, 1] if number else [0, 21, 22]  # one run that records it is enough
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chosen_on_seeds": chosen}))
    assert main(["compare", "runs", "--format", form]) == 0
    said = capsys.readouterr()
    shown = said.out if form == "markdown" else said.err  # a file that a program reads may not be looked at
    assert shown.count("ER + DDN: seeds 21 22 chose the settings of this group") == 1
    assert shown.count("chose the settings") == 1


def test_task_il_accuracy_is_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(3.0, 3, task_il_average_accuracy=91.5, statistics="both", calibrated_average_accuracy=60.0)
    rows = table(capsys)
    assert (rows["ER running"]["task_il_acc_mean"], rows["ER running"]["task_il_acc_n"]) == ("91.5", "3")
    assert rows["ER calibrated"]["task_il_acc_mean"] == ""  # not measured
    for form in ("markdown", "latex"):
        assert main(["compare", "runs", "--format", form]) == 0
        assert "91.50" in capsys.readouterr().out


def test_calibrated_results_are_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(0.0, statistics="both", calibrated_average_accuracy=60.0, calibrated_forgetting=10.0)
    write_run("memory-20", 20, 61.0, model={"lr": 0.1}, statistics="memory")  # has nothing else
    rows = table(capsys)
    assert rows["ER + DDN calibrated"]["against"] == "ER, calibrated"
    assert rows["ER + DDN calibrated"]["acc_difference_mean"] == "0.0"
    assert rows["ER calibrated"]["against"] == "ER"  # itself without
    assert rows["ER calibrated"]["fm_difference_mean"] == "-20.0"
    assert rows["ER, lr 0.1 calibrated"]["acc_mean"] == "61.0"
    assert "ER, lr 0.1 running" not in rows
    assert {row["statistics"] for row in table(capsys, "--statistics", "calibrated").values()} == {"calibrated"}
    assert {row["statistics"] for row in table(capsys, "--statistics", "running").values()} == {"running"}


@pytest.mark.parametrize("baseline", ["ER + DDN", "er + datadistillnet", "ddn-21"])
def test_the_baseline_can_be_chosen(baseline: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(effect=3.0)
    rows = table(capsys, "--baseline", baseline)
    assert {name: row["against"] for name, row in rows.items()} == {
        "ER + DDN running": "",
        "ER running": "ER + DDN",
        "ER, old_memory_weight 1.0 running": "ER + DDN",
    }
    assert float(rows["ER + DDN running"]["cost_mean"]) == 1


def test_a_row_can_be_the_baseline_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(effect=3.0)
    for name in ("er, old_memory_weight 1.0", "er"):
        rows = table(capsys, "--baseline", name)
        against = rows["ER + DDN running"]
        assert (against["against"].casefold(), against["acc_difference_verdict"]) == (name.casefold(), "difference")


def test_runs_on_another_test_bed_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    write_run("er", 20, 40.0)
    write_run("large", 20, 50.0, model={"distiller": DDN}, buffer_size=500)
    rows = table(capsys)
    assert [row["acc_difference_mean"] for row in rows.values()] == ["", ""]
    assert list(rows) == ["digits, memory 50: ER running", "digits, memory 500: ER + DDN running"]


def test_excluded_runs_are_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    write_run("er-1", 1, 40.0)
    write_run("er-1-again", 1, 41.0)
    write_run("stopped", 2, 10.0, tasks_finished=1)
    write_run("lost", 3, 10.0, status="diverged", reason="loss became nan")
    assert main(["compare", "runs"]) == 0
    text = capsys.readouterr().out
    assert "- er-1-again: repeats seed 1 of er-1\n" in text
    assert "- stopped: has learned 1 of its 2 tasks\n" in text
    assert "- lost: has diverged: loss became nan\n" in text
    assert "| ER | 1 | 1 | 40.00 |" in text


def test_markdown_and_latex_show_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(effect=3.0)
    assert main(["compare", "runs", "-o", "table.md"]) == 0
    assert capsys.readouterr().out == ""
    (line,) = [line for line in Path("table.md").read_text().splitlines() if line.startswith("| ER + DDN ")]
    assert line.count("|") == 13
    assert "] (5), difference |" in line
    assert line.endswith("| 5.00 ± 0.00 | 2.50 |")
    assert main(["compare", "runs", "--format", "latex"]) == 0
    latex = capsys.readouterr().out
    (row,) = [line for line in latex.splitlines() if line.startswith(r"ER, old\_memory\_weight 1.0 & 5 & 20-24 & ")]
    assert row.count(" & ") == 11
    assert row.endswith(r"2.00 $\pm$ 0.00 & 1.00 \\")


@pytest.mark.parametrize("name", ["cost.png", "cost.svg"])
def test_the_figure_shows_every_group_and_the_front(name: str) -> None:
    write_runs(effect=3.0, seeds=3)
    Path("elsewhere").mkdir()
    Path(name).symlink_to(f"elsewhere/{name}")
    assert main(["compare", "runs", "-o", "table.md", "--figure", name]) == 0
    content = Path("elsewhere", name).read_bytes()
    assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_the_page_has_a_section_where_groups_share_a_seed() -> None:
    write_runs(effect=3.0, seeds=3)
    assert main(["report", "runs"]) == 0
    page = Path("report.html").read_text()
    section = page.partition('<h2 id="paired">')[2].partition("</section>")[0]
    assert "] (3), difference</td>" in section
    assert "ACC and FM over cost, with the Pareto front" in section
    assert main(["report", "runs/er-20", "runs/ddn-21"]) == 0
    assert 'id="paired"' not in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--baseline", "lucir"], "baseline must be the name of a run, or one of: ER; got lucir"),
        (["--figure", "cost.pdf"], "figure must be a file that ends in .png or .svg, got cost.pdf"),
        (["--figure", "cost.png"], "figure must have runs with cpu_minutes"),
        (["--statistics", "calibrated"], "must be finished and have calibrated statistics"),
        (["--format", "html"], "format"),
        (["--difference", "0"], "difference must be positive, got 0"),
        (["-o", "nowhere/table.md"], "output must be a file in an existing folder"),
        (["others"], "there is no others"),
        (["--chosen_on_seeds", "0,1"], "its runs know them by ddn fit --chosen_on_seeds '[0, 1]'"),
    ],
)
def test_user_errors_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_run("er", 1, 40.0, cpu_minutes=None)
    before = sorted(Path().rglob("*"))
    assert main(["compare", "runs", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert message in line
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("options", [[], ["-o", "table.md"]])
def test_a_table_has_no_control_characters_of_a_foreign_run(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("er-20", 20, 40.0)
    write_run("other-20", 20, 41.0, model={"old_memory_weight": "\x1b[2Jgone"})
    assert main(["compare", "runs", *options]) == 0
    table = Path("table.md").read_text() if options else capsys.readouterr().out
    assert "gone" in table
    assert "\x1b" not in table


def test_runs_of_equal_bytes_are_compared_whatever_their_number_of_samples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for seed in (20, 21):
        kept = {"samples": 990, "others": 0}
        write_run(f"er-{seed}", seed, 50, model={"buffer_bytes": 1000}, buffer_size=11, stored_bytes=kept)
        pcr = {"method": "PCR", "buffer_size": 9, "stored_bytes": {"samples": 900, "others": 60}}
        write_run(f"pcr-{seed}", seed, 55, model={"buffer_bytes": 1000}, **pcr)
        write_run(f"other-{seed}", seed, 60, model={"buffer_bytes": 2000}, **pcr)
    by_samples = table(capsys, "--baseline", "er")
    assert {row["against"] for row in by_samples.values()} == {""}
    by_bytes = table(capsys, "--baseline", "er", "--by", "bytes")
    assert {name: row["against"] for name, row in by_bytes.items()} == {
        "digits, memory 1000 bytes: ER running": "",
        "digits, memory 1000 bytes: PCR running": "digits, memory 1000 bytes: ER",
        "digits, memory 2000 bytes: PCR running": "",
    }


def test_bytes_that_were_kept_stand_for_a_budget_that_was_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    for method, samples in (("ER", 50), ("MIR", 50), ("DER", 40)):
        kept = {"samples": 88 * samples + (80 if method == "DER" else 0), "others": 0}
        write_run(method, 20, 50, method=method, buffer_size=samples, stored_bytes=kept)
    rows = table(capsys, "--baseline", "er", "--by", "bytes")
    assert rows["digits, memory 4400 bytes: MIR running"]["against"] == "digits, memory 4400 bytes: ER"
    assert rows["digits, memory 3600 bytes: DER running"]["against"] == ""
