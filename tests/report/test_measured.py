"""What we have measured, and that the README shows exactly that."""

from pathlib import Path

from ddn_lightning.report.measured import measured_runs, measured_table

README = (Path(__file__).parents[2] / "README.md").read_text()
TEXT = """test_bed,method,plugin,options,seed,acc,fm,per_task,cpu_minutes,command
small,er,none,,12,30,50,20 40,1.5,ddn fit 2
small,er,none,,11,34,,28 40,2.5,ddn fit 1
small,er,ddn,"alpha=1, beta=0",11,40,30,35 45,9,ddn fit 3
large,er,none,,11,50,20,45 55,60,ddn fit 4
large,er,none,,5,90,10,90 90,60,ddn fit 5
"""


def test_runs_are_averaged_over_seeds_that_served_for_nothing_else() -> None:
    assert measured_table(measured_runs(TEXT)).splitlines()[2:] == [
        "| small | er | none |  | 32.00 ± 2.83 (2) | 50.00 (1) | 2.0 | `ddn fit 1` |",
        "| small | er | ddn | alpha=1, beta=0 | 40.00 (1) | 30.00 (1) | 9.0 | `ddn fit 3` |",
        "| large | er | none |  | 50.00 (1) | 20.00 (1) | 60.0 | `ddn fit 4` |",
    ]


def test_rows_are_read_as_they_are_written() -> None:
    run = measured_runs(TEXT)[2]
    assert (run.options, run.seed, run.acc, run.per_task) == ("alpha=1, beta=0", 11, 40.0, (35.0, 45.0))
    assert measured_runs(TEXT)[1].fm is None


def test_the_readme_shows_what_was_measured() -> None:
    shown = README.partition("<!-- measured -->\n")[2].partition("<!-- /measured -->")[0]
    assert "<!-- /measured -->" in README
    assert shown.strip() == measured_table(measured_runs()).strip()


def test_each_measured_run_is_there_once_and_adds_up() -> None:
    runs = measured_runs()
    assert len({(run.group, run.seed) for run in runs}) == len(runs)
    for run in runs:
        assert abs(sum(run.per_task) / len(run.per_task) - run.acc) < 0.02, run
