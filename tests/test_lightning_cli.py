"""A plain LightningCLI in a user's own script trains as the ddn command does."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from tiny import TinySequence

import ddn_lightning
from ddn_lightning import ReplayMethod, TaskSequence
from ddn_lightning.cli import main

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # Lightning 2.6.6 on jsonargparse 4.53
    "ignore:.*(max_epochs. was not set|log_every_n_steps|tensorboardX. has been removed)",  # its advice
)
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
METHOD = ["--model=ER", "--model.backbone=SmallNet", "--model.backbone.width=4", "--model.buffer_size=20"]
DATA = ["--data=tiny.TinySequence", "--data.batch_size=12", "--data.epochs_per_task=2"]
OPTIONS = ["fit", "--seed_everything=3", *METHOD, *DATA, *QUIET]


class Linked(LightningCLI):
    """Takes the number of classes from the data, as the ddn command does."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.num_classes", "model.init_args.num_classes", apply_on="instantiate")


def trained_by(cli: type[LightningCLI], *options: str) -> Any:
    modes = {"subclass_mode_model": True, "subclass_mode_data": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train.py", *OPTIONS, *options])
        return cli(ReplayMethod, TaskSequence, **modes)  # type: ignore[arg-type]


def test_it_gives_what_the_command_gives() -> None:
    assert main([*OPTIONS, "--name=command"]) == 0
    by_command = ddn_lightning.load("runs/command")
    for found in (trained_by(LightningCLI, "--model.num_classes=6"), trained_by(Linked)):
        assert isinstance(found.datamodule, TinySequence)
        assert found.model.tasks_finished == 3
        for name, value in by_command.named_parameters():
            assert torch.equal(value, found.model.get_parameter(name)), name


def test_its_files_say_how_the_run_was_made_and_load() -> None:
    found = trained_by(Linked, "--model.distiller=LabelSmoothing")
    folder = Path(found.trainer.log_dir)
    recorded = yaml.safe_load((folder / "hparams.yaml").read_text())
    expected = {"method": "ddn_lightning.ER", "backbone": "ddn_lightning.SmallNet", "backbone.width": 4, "seed": 3}
    expected |= {"distiller": "ddn_lightning.LabelSmoothing", "data": "tiny.TinySequence", "data.batch_size": 12}
    assert {name: recorded.get(name) for name in expected} == expected
    assert all(not isinstance(value, dict) for value in recorded.values())
    loaded = ddn_lightning.load(found.trainer.checkpoint_callback.best_model_path)
    assert torch.equal(loaded.head.weight, found.model.head.weight)


@pytest.mark.filterwarnings("ignore:.*configure_optimizers. will be overridden")
def test_lightnings_own_optimizer_option_is_used() -> None:
    found = trained_by(Linked, "--optimizer=AdamW", "--optimizer.lr=0.002", "--trainer.logger=false")
    (optimizer,) = found.trainer.optimizers
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["lr"] == 0.002
