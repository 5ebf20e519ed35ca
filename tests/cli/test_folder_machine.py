"""Whatever commands and the user do in a folder of runs: no file of the user and no finished run is ever changed."""

import contextlib
import io
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ddn_lightning import Observations
from ddn_lightning.cli import main
from ddn_lightning.reproduce import executor
from ddn_lightning.runs.run_folder import is_finished
from ddn_lightning.runs.written_files import WrittenFiles

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks"),
]
CONFIGS = str(Path(__file__).parents[2] / "configs")
NETWORK = ("--model.backbone", "SmallNet", "--model.backbone.width=2", "--model.backbone.feature_dim=4")
SHORT = ("--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1", "--trainer.num_sanity_val_steps=0")
TINY = ("--data", "tiny.TinySequence", "--data.num_tasks=2", "--data.epochs_per_task=1", "--data.batch_size=3")
FEW = ("--data.per_class=[2,2,2,2,2,2]",)
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")
FIT = ("fit", "--model", "ER", *NETWORK, "--model.buffer_size=6", *TINY, *FEW, *SHORT, *QUIET)
DIGITS = ("--configs", CONFIGS, "--", "--data.epochs_per_task=1", "--trainer.limit_train_batches=1", *SHORT)
NAMES = st.sampled_from(("a", "b", "a-grown"))
HOOKS = st.sampled_from(("on_train_start", "on_train_batch_start", "on_train_batch_end", "on_validation_end"))
OPTIONS = st.sampled_from(
    ((), ("--model.lr=0.05",), ("--save_every_n_minutes=0",), ("-c", "OWN"), ("--trainer.max_steps=3",))
)
LATE = ("--model.distiller", "DataDistillNet", "--model.optimizer", "AdamW")
FILES = st.sampled_from(
    (
        *("notes.txt", "model.onnx", "config.yaml", "hparams.yaml", "metrics.csv", "results.json", "files.json"),
        *("accuracy_matrix.csv", "observations.npz", "checkpoints/last.ckpt", "checkpoints/mine.ckpt", "er.yaml"),
        *("figures/memory.png", "tuned.csv", "study.json"),
    )
)
CODES = {0, 1, 2, 3, *(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL))}
counted = {"sequences": 0, "steps": 0}


class RunHere:
    """Stands for ``subprocess.Popen`` of a plan: runs the command in this process."""

    def __init__(self, command: list[str], stdout: Any, **_: Any) -> None:
        self.pid = os.getpid()
        with (
            io.TextIOWrapper(io.FileIO(os.dup(stdout.fileno()), "w"), write_through=True) as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
        ):
            self.returncode = code_of(command[len(executor.PROGRAM) :])

    def poll(self) -> int:
        return self.returncode


@contextlib.contextmanager
def plans_run_here() -> Iterator[None]:
    with (
        mock.patch.object(subprocess, "Popen", RunHere),
        mock.patch.multiple(executor, CAN_FORK=False, POLL_SECONDS=0),
    ):
        yield


def code_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


@contextlib.contextmanager
def sending(number: int, hook: str, calls: int) -> Iterator[None]:
    """The process is sent a signal in the n-th call of a hook."""
    count = itertools.count(1)
    before = getattr(Observations, hook)

    def send(self: Observations, *arguments: Any) -> None:
        before(self, *arguments)
        if next(count) == calls:
            os.kill(os.getpid(), number)

    with mock.patch.object(Observations, hook, send):
        yield


class FolderMachine(RuleBasedStateMachine):
    """A folder of runs, the user's files in it, and the finished runs."""

    def __init__(self) -> None:
        super().__init__()
        self.started_in = Path.cwd()
        self.place = Path(tempfile.mkdtemp())
        os.chdir(self.place)
        Path("runs").mkdir()
        Path("images").mkdir()
        self.users: dict[Path, bytes | str] = {}  # contents, or the targets of links
        self.finished: dict[Path, dict[Path, bytes]] = {}
        self.history: list[str] = []
        self.printed = ""
        counted["sequences"] += 1

    def teardown(self) -> None:
        os.chdir(self.started_in)
        shutil.rmtree(self.place)

    def command(self, *arguments: str) -> None:
        """Run a command; it ends in an exit code, not in a traceback."""
        words = [word.replace("OWN", f"{CONFIGS}/base.yaml") if word == "OWN" else word for word in arguments]
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = code_of(words)
        self.printed = text.getvalue()
        self.history.append(f"{code}: {' '.join(words)[-120:]}")
        assert code in CODES, self.history
        assert "Traceback" not in self.printed
        counted["steps"] += 1

    def fit(self, name: str, *options: str) -> None:
        own = f"runs/{name}/config.yaml"
        given = [own if word == "OWN" and Path(own).is_file() else word for word in options]
        self.command(*FIT, "--name", name, *given)

    @rule(name=NAMES, mistake=st.sampled_from(((), (), LATE)), auto=st.booleans())
    def begin(self, name: str, mistake: tuple[str, ...], auto: bool) -> None:
        self.fit(name, *(("--ckpt_path", "auto") if auto else ()), *mistake)

    @rule(name=NAMES, hook=HOOKS, calls=st.integers(1, 3), number=st.sampled_from((signal.SIGTERM, signal.SIGINT)))
    def begin_and_stop(self, name: str, hook: str, calls: int, number: int) -> None:
        with sending(signal.SIGTERM if hook == "on_train_start" else number, hook, calls):
            self.fit(name, "--ckpt_path", "auto")

    @rule(name=NAMES, hook=HOOKS, calls=st.integers(1, 3), minutes=st.sampled_from((0, 10)))
    def begin_and_kill(self, name: str, hook: str, calls: int, minutes: int) -> None:
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException), sending(signal.SIGKILL, hook, calls):
                self.fit(name, "--ckpt_path", "auto", f"--save_every_n_minutes={minutes}")
            os._exit(0)
        os.waitpid(child, 0)
        self.history.append(f"killed {name} in {hook}")
        counted["steps"] += 1

    @rule(name=NAMES, last=st.sampled_from(("last", "auto")), options=OPTIONS)
    def resume(self, name: str, last: str, options: tuple[str, ...]) -> None:
        self.fit(name, "--ckpt_path", last, *options)

    @rule(name=NAMES)
    def resume_from_its_file(self, name: str) -> None:
        self.fit(name, "--ckpt_path", f"runs/{name}/checkpoints/last.ckpt")

    @rule(last=st.booleans())
    def grow(self, last: bool) -> None:
        self.command("fit", "--grow", "runs/a", *(("--ckpt_path", "last") if last else ()))

    @rule()
    def reproduce(self) -> None:
        with plans_run_here():
            self.command("reproduce", "digits", "--methods", "er", "--plugins", "none", "--seeds", "1", "2", *DIGITS)

    @rule()
    def tune(self) -> None:
        with plans_run_here():
            self.command("tune", "--methods", "er", "--trials", "1", *DIGITS)

    @rule(name=NAMES, what=st.sampled_from(("report", "compare", "predict", "test", "validate")))
    def look(self, name: str, what: str) -> None:
        run = f"runs/{name}"
        if what in ("report", "compare"):
            self.command(what, "runs", "-o", f"{what}.out")
        elif what == "predict":
            self.command(what, run, "images", "-o", "labels.csv")
        elif what == "test":
            self.command(what, run)
        else:
            self.command(what, *FIT[1:], "--ckpt_path", f"{run}/checkpoints/last.ckpt")

    @rule(name=NAMES)
    def export(self, name: str) -> None:
        self.command("export", f"runs/{name}", "-o", "model.pt2")

    @rule(data=st.data(), file=FILES, link=st.booleans())
    def write_edit_or_link(self, data: st.DataObject, file: str, link: bool) -> None:
        """The user makes a file, changes one that is there, or puts a link in its place."""
        folder = data.draw(st.sampled_from([Path("runs/a"), Path("runs/b"), Path("runs/a-grown"), *self.folders()]))
        path = folder / file
        if folder.is_symlink() or self.is_in_work(folder, file):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.forget(path)
        if link:
            target = Path(f"linked-{len(self.history)}").absolute()
            target.write_bytes(path.read_bytes() if path.is_file() else b"mine")
            self.users[target] = target.read_bytes()
            path.unlink(missing_ok=True)
            path.symlink_to(target)
            self.users[self.place / path] = os.readlink(path)
        else:
            content = (path.read_bytes() if path.is_file() else b"") + b"\n"
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            self.users[self.place / path] = content
        self.history.append(f"user {'links' if link else 'writes'} {path}")

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """The user deletes a file, or a whole run."""
        places = sorted(path for path in Path("runs").rglob("*") if path.name != "study.db")
        if not places:
            return
        path = data.draw(st.sampled_from(places))
        self.forget(path)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self.history.append(f"user deletes {path}")

    @rule(name=NAMES)
    def move_and_link(self, name: str) -> None:
        """The user moves a run to another disk."""
        path = Path("runs", name)
        if path.is_dir() and not path.is_symlink():
            target = Path(f"disk-{len(self.history)}")
            self.forget(path)
            path.rename(target)
            path.symlink_to(target.absolute())
            self.history.append(f"user moves {path}")

    @invariant()
    def nothing_of_the_user_and_no_finished_run_is_changed(self) -> None:
        for path, content in self.users.items():
            assert os.path.lexists(path), (path, self.history, self.printed)
            found = os.readlink(path) if path.is_symlink() else path.read_bytes()
            assert found == content, (path, self.history, self.printed)
        for folder, files in self.finished.items():
            for path, content in files.items():
                assert path.is_file(), (path, self.history, self.printed)
                assert path.read_bytes() == content, (folder, path, self.history, self.printed)
        for folder in self.folders():
            if folder not in self.finished and is_finished(folder):
                files = (path for path in folder.rglob("*") if path.is_file())
                self.finished[folder] = {path: path.read_bytes() for path in files}

    def folders(self) -> list[Path]:
        return sorted(path for path in Path("runs").glob("*") if path.is_dir())

    def forget(self, path: Path) -> None:
        """The user changes what was protected."""
        changed = self.place / path
        self.users = {one: content for one, content in self.users.items() if not one.is_relative_to(changed)}
        for folder in [
            folder for folder in self.finished if folder.is_relative_to(path) or path.is_relative_to(folder)
        ]:
            del self.finished[folder]

    def is_in_work(self, folder: Path, file: str) -> bool:
        """Whether a run that was killed outright may have been writing the file, as nobody can tell afterwards."""
        return WrittenFiles(folder)._read().get(file, "") is None


def run_machine(sequences: int, steps: int, *, is_random: bool) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        FolderMachine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            derandomize=not is_random,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_sequence_of_steps_changes_what_a_run_did_not_write() -> None:
    run_machine(3, 8, is_random=False)


@pytest.mark.slow
def test_no_random_sequence_of_steps_changes_what_a_run_did_not_write(capsys: pytest.CaptureFixture[str]) -> None:
    run_machine(int(os.environ.get("SEQUENCES", "300")), 10, is_random=True)
    with capsys.disabled():
        print(counted)
