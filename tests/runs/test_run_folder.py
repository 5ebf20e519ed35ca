"""Nothing is removed or replaced that a run did not write, and nothing at all before training begins."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.cli import main
from ddn_lightning.cli.run_figures import RunFigures
from ddn_lightning.report.figures.run_figures import pictures_of
from ddn_lightning.reproduce.executor import ProcessExecutor
from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.runs import run_folder
from ddn_lightning.runs.recorded_run import read_run
from ddn_lightning.runs.run_folder import ALL_FILES, FIGURES, RunFolder
from ddn_lightning.runs.written_files import WrittenFiles

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SHORT = ["--data.epochs_per_task=1", "--trainer.enable_progress_bar=false", "--trainer.limit_train_batches=2"]
SHORT += ["--trainer.log_every_n_steps=1"]
FOLDER = Path("runs/mine")
MINE = ["--name", "mine", "--ckpt_path", "auto"]


def fit(*arguments: str, config: Path = QUICKSTART) -> int:
    return main(["fit", "-c", str(config), *SHORT, *arguments])


def contents(folder: Path = FOLDER) -> dict[str, tuple[bytes, int]]:
    """The files of a folder, links included, with their times."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.lstat().st_mtime_ns) for path in files}


def killed(*arguments: str) -> None:
    """A run that is killed before its first batch."""
    if (child := os.fork()) == 0:
        RunRecord.on_train_batch_start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        try:
            fit(*arguments)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("late", [(), ("--model.distiller", "DataDistillNet", "--model.optimizer", "AdamW")])
def test_a_users_configuration_in_the_run_folder_is_never_replaced(
    late: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    FOLDER.mkdir(parents=True)
    config = FOLDER / "config.yaml"
    config.write_text(f"# my own comment\n{QUICKSTART.read_text()}")
    before = contents()
    assert fit(*MINE, *late, config=config) == 2
    assert capsys.readouterr().err == (
        "error: there is no checkpoint to resume from, and runs/mine/config.yaml was not written by a run here, or was "
        "changed since: move it, or choose another name\n"
    )
    assert contents() == before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_mistake_that_is_found_late_leaves_everything_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    late = ("--model.distiller", "DataDistillNet", "--model.optimizer", "AdamW")
    assert fit("--name", "mine", *late) == 2
    assert not FOLDER.exists()
    killed(*MINE)
    before = contents()
    assert fit(*MINE, *late) == 2
    after = contents()
    assert {name: content for name, (content, _) in after.items()} == {n: content for n, (content, _) in before.items()}
    assert fit(*MINE) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_killed", [True, False])
def test_an_edited_configuration_of_a_run_is_not_replaced(is_killed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if is_killed:
        killed(*MINE)
    else:
        assert fit(*MINE, "--trainer.max_steps=3") == 0
    config = FOLDER / "config.yaml"
    config.write_text(f"# my own comment\n{config.read_text()}")
    before = contents()
    capsys.readouterr()
    assert fit(*MINE, config=config) == 2
    assert "runs/mine/config.yaml was not written by a run here, or was changed since" in capsys.readouterr().err
    assert contents() == before
    config.rename("mine.yaml")
    assert fit(*MINE, config=Path("mine.yaml")) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_run_that_resumes_with_its_own_configuration_does_not_touch_it() -> None:
    for begin in (killed, lambda *words: fit(*words, "--trainer.max_steps=3")):
        begin(*MINE)
        config = FOLDER / "config.yaml"
        before = config.read_bytes(), config.stat().st_mtime_ns
        assert main(["fit", "-c", str(config), *MINE]) == 0
        assert (config.read_bytes(), config.stat().st_mtime_ns) == before
        FOLDER.rename(f"runs/{before[1]}")


def test_a_file_in_the_way_of_a_resume_is_named_before_anything_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(*MINE, "--trainer.max_steps=3") == 0
    for name in ("metrics.csv", "results.json", "anytime.csv", "figures/memory.png", "checkpoints/last.ckpt"):
        path, kept = FOLDER / name, Path("kept")
        if path.exists():
            path.rename(kept)
        for make in (lambda path: path.write_text("mine"), lambda path: path.symlink_to(Path("kept").absolute())):
            path.parent.mkdir(exist_ok=True)
            make(path)
            before = contents()
            capsys.readouterr()
            code = fit(*MINE, "--ckpt_path", "last") if path.suffix != ".ckpt" else fit(*MINE)
            assert code == 2
            assert capsys.readouterr().err.count("\n") == 1
            assert contents() == before
            path.unlink()
        if kept.exists():
            kept.rename(path)
    (FOLDER / "notes.txt").write_text("mine")  # in nobody's way
    assert fit(*MINE) == 0
    assert (FOLDER / "notes.txt").read_text() == "mine"


def test_a_finished_run_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(*MINE) == 0
    before = contents()
    for arguments in (MINE, [*MINE, "--model.lr", "0.5"], ["--name", "mine", "--ckpt_path", "last"]):
        capsys.readouterr()
        assert fit(*arguments) == 0
        assert "note: this run was finished already, nothing was left to train" in capsys.readouterr().err
    assert fit("--name", "mine", "--ckpt_path", "runs/mine/checkpoints/last.ckpt") == 2
    assert "name must be new" in capsys.readouterr().err
    assert contents() == before


def test_curves_for_tensorboard_that_no_run_wrote_stay() -> None:
    FOLDER.mkdir(parents=True)
    copied, written = (FOLDER / f"events.out.tfevents.{name}" for name in ("copied", "written"))
    copied.write_text("mine")
    killed = RunFolder(FOLDER).claim(starts_over=True)
    written.write_text("")  # by TensorBoard's logger
    killed.begin("seed_everything: 0")
    killed.unlock()
    again = RunFolder(FOLDER).claim(starts_over=True)
    again.begin("seed_everything: 0")
    assert not written.exists()
    again.release()
    assert copied.read_text() == "mine"
    assert not WrittenFiles(FOLDER).is_own(copied.name)


def test_a_folder_is_judged_after_it_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    FOLDER.mkdir(parents=True)
    judged = threading.Event()
    files_of_abandoned = run_folder._files_of_abandoned

    def judge(path: Path) -> list[Path]:
        judged.set()
        return files_of_abandoned(path)

    monkeypatch.setattr(run_folder, "_files_of_abandoned", judge)
    other = RunFolder(FOLDER).locked()
    assert fit(*MINE) == 2
    assert not judged.is_set()
    other.unlock()
    assert fit(*MINE) == 0
    assert judged.is_set()


def test_runs_and_run_folders_may_be_links(capsys: pytest.CaptureFixture[str]) -> None:
    Path("elsewhere/deep").mkdir(parents=True)
    Path("runs").symlink_to("elsewhere")
    Path("runs/mine").symlink_to("deep")
    assert fit(*MINE, "--trainer.max_steps=3") == 0
    assert fit(*MINE) == 0
    assert Path("elsewhere/deep/results.json").is_file()
    Path("runs/nowhere").symlink_to("nothing")
    Path("runs/round").symlink_to("round")
    for name in ("nowhere", "round"):
        capsys.readouterr()
        assert fit("--name", name, "--ckpt_path", "auto") == 2
        assert capsys.readouterr().err.count("\n") == 1


def executed(*names: str) -> dict[str, tuple[str, str]]:
    """The last state and message of each run of a plan."""
    arguments = ("-c", str(QUICKSTART), *SHORT)
    runs = [Run(Cell("offline", "digits", 100, "er"), 0, arguments, Path("runs", name)) for name in names]
    events = ProcessExecutor(jobs=len(runs)).execute(runs)
    return {event.run.folder.name: (event.state, event.message) for event in events}


def with_notes(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")


def with_damaged_results(folder: Path) -> None:
    folder.mkdir()
    (folder / "results.json").write_text("{")


def linked_to_notes(folder: Path) -> None:
    with_notes(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def with_damaged_checkpoint(folder: Path) -> None:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints/last.ckpt").write_text("damaged")


def linked_to_nothing(folder: Path) -> None:
    folder.symlink_to("nothing")


MAKERS = (with_notes, with_damaged_results, linked_to_notes, with_damaged_checkpoint, linked_to_nothing)


def test_a_plan_removes_no_folder_and_its_other_runs_finish() -> None:
    Path("runs").mkdir()
    makers: dict[str, Callable[[Path], None]] = {make.__name__: make for make in MAKERS}
    for name, make in makers.items():
        make(Path("runs", name))
    Path("runs/empty").mkdir()
    before = contents(Path("runs"))
    found = executed(*makers, "empty", "new")
    for name in makers:
        state, message = found[name]
        assert state == "failed"
        assert message.startswith("error: ")
        assert f"runs/{name}" in message
    assert (found["empty"][0], found["new"][0]) == ("finished", "finished")
    assert before.items() <= contents(Path("runs")).items()
    assert Path("runs/linked_to_notes").is_symlink()


def test_all_figures_of_a_run_are_known_by_name(recorded_runs: Path) -> None:
    names = {picture.name for picture in pictures_of(read_run(recorded_runs / "ddn"))}
    assert {"memory", "soft_labels"} <= names <= set(FIGURES)


def test_a_run_records_all_files_that_it_writes(drawn: None) -> None:
    assert RunFigures._draw.__name__ == "_draw"
    assert fit("--name", "mine", "--anytime.every_n_steps=1") == 0
    names = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    names = {name for name in names if not name.startswith("events.")}
    assert names - {"files.json"} <= set(ALL_FILES)
    assert all(map(WrittenFiles(FOLDER).is_complete, names - {"files.json"}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {"a": null}}', "{", '{"written_by": "ddn_lightning"}'])
def test_a_record_of_another_origin_gives_nothing_away(text: str) -> None:
    FOLDER.mkdir(parents=True)
    (FOLDER / "files.json").write_text(text)
    before = contents()
    assert fit(*MINE) == 2
    assert contents() == before
