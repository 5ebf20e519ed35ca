"""``ddn fit --grow RUN``: a finished run goes on with further tasks, in a folder of its own."""

import copy
import os
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from ddn_lightning.construction import CLASS_PATH, INIT_ARGS, path_of
from ddn_lightning.data.grown_sequence import GrownSequence
from ddn_lightning.deploy.load import find_checkpoint
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.config import read_settings
from ddn_lightning.runs.recorded_run import CONFIG_FILE, CURVES_FILE

OPTION, DATA, MORE = "--grow", "--data", "--data.more"
NOTHING = "null"  # for a class, which jsonargparse does not take on the command line where a sequence is nested
OF_THE_RUN = "the configuration is that of the run"
REFUSED = {"-c": OF_THE_RUN, "--config": OF_THE_RUN, "--seed_everything": "the random streams of the run go on"}


def is_growing(arguments: Sequence[str]) -> bool:
    """Whether the command is to grow a run."""
    return any(word.partition("=")[0] == OPTION for word in arguments)


def grown_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a fit with the configuration of the run to grow; data options are those of the tasks to come.

    >>> grown_arguments(["fit", "--grow", "runs/mine", "--data.root", "more"])  # doctest: +SKIP
    ['fit', '-c', 'seed_everything: 0 ...', '--data.more.root', 'more']
    """
    command, *given = arguments
    run, words, cleared = "", [], []
    rest = iter(given)
    for word in rest:
        option, equals, value = word.partition("=")
        if (reason := REFUSED.get(option)) is not None:
            raise ConfigurationError(f"{option} must be left out with {OPTION}: {reason}")
        if option == OPTION:
            run = value if equals else next(rest, "")
        elif option == DATA or option.startswith(f"{DATA}."):
            values = [value] if equals else list(islice(rest, 1))
            if values == [NOTHING]:
                cleared.append(option.removeprefix(f"{DATA}."))
            else:
                words += [f"{MORE}{option.removeprefix(DATA)}", *values]
        else:
            words.append(word)
    if not run:
        raise ConfigurationError(f"{OPTION} must be the folder of a finished run, got nothing")
    if f"{MORE}.num_tasks" in words and f"{MORE}.task_sizes" not in words:
        cleared.append("task_sizes")  # those of the run, which would win
    settings = grown_settings(run)
    settings["data"][INIT_ARGS]["more"][INIT_ARGS] |= dict.fromkeys(cleared)
    return [command, "-c", yaml.safe_dump(settings, sort_keys=False), *words]


def grown_settings(run: str) -> dict[str, Any]:
    """The configuration of a finished run, whose data is followed by a copy of itself."""
    folder = Path(os.path.expanduser(run))
    if not folder.is_dir():
        raise ConfigurationError(f"grow must be the folder of a finished run, got {run}")
    find_checkpoint(folder)
    settings = read_settings(folder / CONFIG_FILE)
    first = settings.get("data")
    if not isinstance(first, dict) or not isinstance(first.get(INIT_ARGS), dict):
        raise ConfigurationError(f"{folder / CONFIG_FILE} must have data with class_path and init_args, got {first!r}")
    grown = path_of(GrownSequence)
    last = first[INIT_ARGS]["more"] if first.get(CLASS_PATH) == grown else first
    data = {CLASS_PATH: grown, INIT_ARGS: {"first": first, "more": copy.deepcopy(last)}}
    return {**settings, "data": data, "grow": run, "name": None, "runs": str(folder.parent), "ckpt_path": None}


def copy_curves(run: str, folder: Path) -> None:
    """Let the curves begin as those of the run to grow, which the logger continues."""
    curves = Path(os.path.expanduser(run)) / CURVES_FILE
    if curves.is_file():
        shutil.copyfile(curves, folder / CURVES_FILE)
