"""One-line errors for bad files, folders, pipes and locales, full disks and missing memory."""

import contextlib
import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.cli import main
from ddn_lightning.cli.trainer_parser import _check_locale
from ddn_lightning.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
QUICKSTART = ["-c", str(ROOT / "configs" / "quickstart.yaml")]
SHORT = ["--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1", "--trainer.enable_progress_bar=false"]
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


IN_ASCII = """
import sys
from ddn_lightning.cli import main
assert main(["report", sys.argv[1], "-o", "seite\\udce2\\udc86\\udc92.html"]) == 0
for arguments, code in ((["reproduce", "--help"], 0), (["fit", "-c", sys.argv[1] + "/config.yaml"], 2)):
    try:
        main(arguments)
    except SystemExit as error:
        assert error.code == code
"""


def fit(*options: str) -> int:
    return main(["fit", *QUICKSTART, *SHORT, *options])


def refused(*options: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of a refusal, which leaves nothing behind; a tip may follow it."""
    before = {path for path in Path().rglob("*") if path != Path("runs")}
    try:
        code: Any = fit(*options)
    except SystemExit as error:
        code = error.code
    first, *tip = capsys.readouterr().err.splitlines()
    assert code == 2
    assert first.startswith("error: ")
    assert all(line.startswith("tip: ") for line in tip)
    assert {path for path in Path().rglob("*") if path != Path("runs")} == before
    return first


def child(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command as a user starts it."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--seed_everything", "-1"], "seed_everything must be between 0 and 4294967295, got -1"),
        (["--seed_everything", "1" + "0" * 23], "seed_everything must be between 0 and 4294967295, got 1000000"),
        (["--trainer.devices", "-3"], "trainer.devices must be a positive number, or -1 for all, got -3"),
        (["--model.buffer_size", "1000000000000"], "buffer_size must fit into memory"),
        (
            ["--model.backbone=ResNet18", *["--model.backbone.in_channels=1", "--data.batch_size=1"]],
            "batch_size = 1 leaves a batch of one image",
        ),
    ],
)
def test_impossible_options_are_refused(options: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in refused(*options, capsys=capsys)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "odd.yaml must hold settings, such as 'seed_everything: 1', got nothing"),
        (b"# nothing", "odd.yaml must hold settings, such as 'seed_everything: 1', got nothing"),
        (b"\xff\xfe\x00a: 1", "odd.yaml must be a configuration file in YAML and UTF-8"),
        (b"a: &a [*a]", "odd.yaml must be a configuration file in YAML and UTF-8: must not contain itself, as *a does"),
        (BOMB.encode(), "odd.yaml must be a configuration file in YAML and UTF-8: must not hold more than"),
    ],
)
def test_invalid_configuration_files_are_refused(
    content: bytes, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.yaml").write_bytes(content)
    assert expected in refused("-c", "odd.yaml", capsys=capsys)


def test_a_nested_configuration_file_is_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.yaml").write_text(BOMB)
    assert "must not hold more than" in refused("--model", "model.yaml", capsys=capsys)
    assert "is not a known class" in refused("--model.backbone", "&a [*a]", capsys=capsys)
    Path("model.yaml").write_bytes(b"\xff\xfe")
    assert "'utf-8' codec can't decode" in refused("--model", "model.yaml", capsys=capsys)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_resume_in_a_folder_that_cannot_be_written_to_is_refused(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fit("--name", "mine", "--trainer.max_steps=5") == 0
    capsys.readouterr()

    def is_read_only(**kwargs: Any) -> NoReturn:
        raise OSError(number, os.strerror(number), str(kwargs["dir"]))

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", is_read_only)
        for last in ("last", "auto", "runs/mine/checkpoints/last.ckpt"):
            line = refused("--name", "mine", "--ckpt_path", last, capsys=capsys)
            assert line == f"error: runs/mine must be a folder that can be written to: {os.strerror(number)}"
    assert fit("--name", "mine", "--ckpt_path", "last") == 0


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_run_whose_folder_is_deleted_says_so(
    is_replaced: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(self: RunRecord, trainer: Any, *_: object) -> None:
        self.has_begun = True
        if trainer.global_step == 3:
            shutil.rmtree(self.folder)
            if is_replaced:
                self.folder.write_text("in the way")

    monkeypatch.setattr(RunRecord, "on_train_batch_start", delete)
    assert fit("--name", "mine") == 2
    assert capsys.readouterr().err == "error: runs/mine was deleted while this run was training in it\n"
    assert Path("runs/mine").exists() == is_replaced


def test_auto_starts_in_a_link_to_an_empty_folder() -> None:
    Path("elsewhere").mkdir()
    Path("runs").mkdir()
    Path("runs/mine").symlink_to("../elsewhere")
    assert fit("--name", "mine", "--ckpt_path", "auto") == 0
    assert Path("runs/mine").is_symlink()
    assert Path("elsewhere/results.json").exists()


@pytest.mark.parametrize(("room", "file"), [(600, "hparams.yaml"), (1500, "config.yaml")])
def test_a_full_disk_is_reported_with_the_file(room: int, file: str) -> None:
    child_process = os.fork()
    if child_process == 0:  # the limit would hold for the log of the tests as well
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        with open("printed.txt", "w") as printed, contextlib.redirect_stderr(printed):
            code = fit("--name", "mine")
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child_process, 0)[1]) == 1
    assert Path("printed.txt").read_text() == f"error: [Errno 27] File too large: 'runs/mine/{file}'\n"


def test_a_full_disk_is_reported_with_the_curves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(self: ExperimentWriter) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ExperimentWriter, "save", is_full)
    assert fit("--name", "mine") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: \[Errno 28\] No space left on device: '.*runs/mine/metrics.csv'", line)


def test_running_out_of_memory_in_training_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")

    monkeypatch.setattr("ddn_lightning.methods.er.ER.loss", run_out)
    assert fit("--name", "mine") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is not enough memory: lower buffer_size, batch_size")
    assert line.endswith("(CUDA out of memory. Tried to allocate 2 GiB)")


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    plan = f"{sys.executable} -m ddn_lightning reproduce table1 --configs {ROOT / 'configs'} --dry-run"
    run = subprocess.run(
        ["bash", "-c", f"{plan} | true; exit ${{PIPESTATUS[0]}}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=120,
    )
    assert run.returncode == 141
    assert b"Traceback" not in run.stderr


@pytest.mark.slow
def test_the_commands_work_in_an_ascii_locale(recorded_runs: Path) -> None:
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    run = Path(shutil.copytree(recorded_runs / "stopped", "läuft"))
    (run / "config.yaml").write_text("name: läuft →", encoding="utf-8")
    Path("all.py").write_text(IN_ASCII)
    done = child(["all.py", str(run)], **poor)
    assert done.returncode == 0, done.stderr
    assert "läuft" in Path("seite→.html").read_text(encoding="utf-8")
    assert b"print mean ? std" in b" ".join(done.stdout.split())
    assert done.stderr.startswith(b"error: l\\udcc3\\udca4uft/config.yaml must be readable in this locale")
    assert b"set PYTHONUTF8=1\n" in done.stderr


@pytest.mark.slow
def test_the_command_starts_without_unix_only_modules() -> None:
    hide = "import sys; sys.modules.update(dict.fromkeys(['fcntl', 'resource', 'pwd', 'grp', 'termios']))"
    run = child(["-c", f"{hide}; from ddn_lightning.cli import main; main(['report', '--help'])"])
    assert run.returncode == 0, run.stderr
    assert b"usage: ddn report" in run.stdout


def test_a_file_that_another_encoding_would_misread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.yaml").write_text("name: données", encoding="utf-8")
    Path("plain.yaml").write_text("name: plain")
    monkeypatch.setattr("locale.getpreferredencoding", lambda _: "ISO-8859-1")
    with pytest.raises(ConfigurationError, match=r"mine.yaml must be readable in this locale, .* ISO-8859-1: set"):
        _check_locale(Path("mine.yaml"))
    _check_locale(Path("plain.yaml"))
