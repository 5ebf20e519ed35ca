"""Calibrated statistics from the command line: chosen by one more file, and recorded in all files of a run."""

import csv
import json
from pathlib import Path

import pytest
import torch

from ddn_lightning.cli import main

CONFIGS = Path(__file__).parents[2] / "configs"
SHORT = ["--data.epochs_per_task=1", "--trainer.enable_progress_bar=false", "--model.backbone=tiny.DropoutNet"]
FIT = ["-c", str(CONFIGS / "quickstart.yaml"), *SHORT]
OWN = "trainer:\n  callbacks:\n    - class_path: Forgetting\n      init_args:\n        statistics: memory\n"


def statistics(name: str) -> list[str]:
    return ["-c", str(CONFIGS / "statistics" / f"{name}.yaml")]


def test_one_run_leaves_both_matrices_and_a_model_with_calibrated_statistics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fit", *FIT, *statistics("both"), "--name", "both"]) == 0
    assert main(["fit", *FIT, "--name", "plain"]) == 0
    results, plain = (json.loads(Path("runs", name, "results.json").read_text()) for name in ("both", "plain"))
    assert (results["statistics"], plain["statistics"]) == ("both", "running")
    assert results["accuracy_matrix"] == plain["accuracy_matrix"]
    calibrated = results["calibrated_accuracy_matrix"][-1]
    assert results["calibrated_average_accuracy"] == pytest.approx(sum(calibrated) / 5, abs=1e-3)
    assert plain["calibrated_accuracy_matrix"] is None
    acc, fm = (results[f"calibrated_{name}"] for name in ("average_accuracy", "forgetting"))
    assert f"with calibrated BatchNorm statistics: ACC {acc:.2f}, FM {fm:.2f}" in capsys.readouterr().out
    rows = list(csv.DictReader(Path("runs/both/metrics.csv").read_text().splitlines()))
    last = next(row for row in reversed(rows) if row["calibrated_forgetting"])
    assert float(last["val/calibrated/average_accuracy"]) == pytest.approx(acc, abs=1e-3)
    assert float(last["calibrated_forgetting"]) == pytest.approx(fm, abs=1e-3)

    saved = [torch.load(f"runs/{name}/checkpoints/last.ckpt", weights_only=True) for name in ("both", "plain")]
    layer = "backbone.layers.1.running_mean"
    assert torch.equal(saved[0]["state_dict"][layer], saved[1]["state_dict"][layer])
    assert not torch.equal(saved[0]["ddn_lightning"]["calibrated_statistics"][layer], saved[0]["state_dict"][layer])
    assert "calibrated_statistics" not in saved[1]["ddn_lightning"]
    assert main(["test", *FIT, "--name", "both", "--ckpt_path", "last"]) == 0
    assert f"{acc:.4f}"[:6] in capsys.readouterr().out


def test_a_forgetting_callback_of_the_user_excludes_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    own = ["-c", str(tmp_path / "own.yaml")]
    assert main(["fit", *FIT, *own, "--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1"]) == 0
    (folder,) = Path("runs").iterdir()
    assert json.loads((folder / "results.json").read_text())["statistics"] == "memory"
    assert "after each task with calibrated BatchNorm" in " ".join(capsys.readouterr().out.split())
    assert main(["fit", *FIT, *own, *statistics("both"), "--name", "refused"]) == 2
    assert "forgetting must be left out where trainer.callbacks has a Forgetting" in capsys.readouterr().err
    assert not Path("runs/refused").exists()


@pytest.mark.parametrize("method", ["ER", "DERPlusPlus", "ICaRL"])
def test_batch_norm_momentum_and_repeats_per_batch_are_options(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"running_statistics": "memory", "extra_draw_moves_statistics": "false", "replay_steps": "2"}
    given = [f"--model.{name}={value}" for name, value in options.items()]
    with pytest.raises(SystemExit) as end:
        main(["fit", *FIT, "--model", method, *given, "--print_config"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"{name}: {value}" in printed for name, value in options.items())
