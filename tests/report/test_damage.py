"""A damaged file loses its own content, never the page."""

import io
import random
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from test_page import Elements

from ddn_lightning.cli import main
from ddn_lightning.report.figures import comparison_figures
from ddn_lightning.report.page import page
from ddn_lightning.runs.recorded_run import Curve, RecordedRun, read_run

FILES = ("config.yaml", "results.json", "metrics.csv", "observations.npz")
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
DEEP = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000))


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Content truncated, flipped, overwritten or repeated at random."""
    place = chance.randrange(len(content))
    kind = chance.randrange(4)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
    if kind == 2:
        junk = chance.choice([bytes(16), b"\xff" * 8, b"9" * 30, b"e999", b"{[", chance.randbytes(4)])
        return content[:place] + junk + content[place + len(junk) :]
    return content[:place] + content[place : place + 40] * 2 + content[place + 40 :]


def copy_of(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, name, ignore=shutil.ignore_patterns("checkpoints", "figures")))


@pytest.mark.parametrize("times", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_reading_a_damaged_run_never_raises(name: str, times: int, recorded_runs: Path) -> None:
    run = copy_of(recorded_runs / "ddn", "run")
    content = (run / name).read_bytes()
    chance = random.Random(name)
    for _ in range(times):
        (run / name).write_bytes(damaged(content, chance))
        assert all(problem.startswith((name, "has ", "was ")) for problem in read_run(run).problems)


def flip_byte_70(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[70] ^= 255
    path.write_bytes(content)


def claim_a_huge_array(path: Path) -> None:
    header = io.BytesIO()
    whole = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    numpy.lib.format.write_array_header_1_0(header, whole)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("task_classes.npy", header.getvalue())


def refer_to_a_class_that_is_not_there(path: Path) -> None:
    with numpy.load(path) as file:
        arrays = dict(file)
    arrays["sample_labels"][0] = 10**6
    numpy.savez_compressed(path, **arrays)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("observations.npz", flip_byte_70),
        ("observations.npz", claim_a_huge_array),
        ("observations.npz", refer_to_a_class_that_is_not_there),
        ("config.yaml", lambda path: path.write_text(BOMB)),
        ("config.yaml", lambda path: path.write_text(DEEP)),
        ("config.yaml", lambda path: path.write_text("a: &a [*a]")),
        ("config.yaml", lambda path: path.write_text(f"seed_everything: 0x{'f' * 5000}")),
        ("config.yaml", lambda path: path.write_text("a: [{1: x, b: y}]")),
        ("results.json", lambda path: path.write_text(path.read_text().replace('"seed": 1', '"seed": 1e999'))),
    ],
)
def test_unusual_damage_is_reported_within_seconds(
    name: str, damage: Callable[[Path], object], recorded_runs: Path
) -> None:
    run = copy_of(recorded_runs / "ddn", "run")
    damage(run / name)
    started = time.process_time()
    (problem,) = read_run(run).problems
    assert time.process_time() - started < 2
    assert problem.startswith(f"{name} cannot be read (")
    assert len(problem) < 300


def test_a_damaged_run_loses_only_its_own_figures_and_is_listed(recorded_runs: Path) -> None:
    for name in ("good", "bad"):
        copy_of(recorded_runs / "er", f"runs/{name}")
    flip_byte_70(Path("runs/bad/observations.npz"))
    assert main(["report", "runs"]) == 0
    found = Elements(Path("report.html").read_text())
    assert len(found.all("img")) == 7 + 2 + 1  # of the good run, of the bad one without observations, of both
    assert "bad observations.npz cannot be read (error: Error -3 while decompressing" in " ".join(found.text.split())


def test_a_run_that_cannot_be_drawn_does_not_prevent_figures_of_the_others(
    recorded_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large_for_the_bad_one(run: RecordedRun) -> Curve:
        if run.problems:
            raise OverflowError("too large")
        return Curve([], [])

    monkeypatch.setattr(comparison_figures, "entropy_curve", too_large_for_the_bad_one)
    for name in ("MOST_DETAILED", "FEW_DETAILED"):
        monkeypatch.setattr(f"ddn_lightning.report.page.{name}", 0)
    runs = [read_run(copy_of(recorded_runs / "er", name)) for name in ("one", "two")]
    bad = copy_of(recorded_runs / "er", "bad")
    flip_byte_70(bad / "observations.npz")
    text = Elements(page([*runs, read_run(bad)], "test")).text
    assert "of the runs that nothing is wrong with" in text
    assert "Accuracy of each task over training" in text
