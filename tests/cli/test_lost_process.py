import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from ddn_lightning.cli import main
from ddn_lightning.cli.user_mistake import loss_of_a_process, mistake_in_a_process

ROOT = Path(__file__).parents[2]
TWO = ["fit", "-c", str(ROOT / "configs" / "quickstart.yaml"), "--trainer.enable_progress_bar=false"]
TWO += ["--trainer.devices=2", "--name=two"]
LOST = """
import os, signal
from lightning.pytorch import Callback

class Lost(Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 3 and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_rank_is_reported_in_one_line() -> None:
    Path("lost.py").write_text(LOST)
    run = subprocess.run(
        [sys.executable, "-m", "ddn_lightning", *TWO, "--trainer.strategy=ddp", "--trainer.callbacks+=lost.Lost"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path.cwd())]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: another process of this run is gone (")
    assert "--ckpt_path last" in line


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_fork_is_reported_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("lost.py").write_text(LOST)
    assert main([*TWO, "--trainer.strategy=ddp_fork", "--trainer.callbacks+=lost.Lost"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: process 1 terminated with signal SIGKILL; if it has saved a checkpoint, ")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_user_error_in_a_forked_rank_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TWO, "--trainer.strategy=ddp_fork", "--model.buffer_size=1000000000000"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: buffer_size must fit into memory")
    assert not Path("runs/two").exists()


def test_other_errors_are_not_taken_for_a_lost_process() -> None:
    assert loss_of_a_process(RuntimeError("Connection reset by peer")) is None  # not from between processes
    raised = ProcessRaisedException("Traceback (most recent call last):\nZeroDivisionError: division by zero", 1, 1)
    assert loss_of_a_process(raised) is None
    assert mistake_in_a_process(raised) is None
    exited = ProcessExitedException("process 1 terminated with exit code 3", 1, 1, 3)
    assert (loss_of_a_process(exited) or "").startswith("process 1 terminated with exit code 3; if it has saved")
