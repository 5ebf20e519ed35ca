"""Check that the finished runs of a plan were trained on the current data, even if it has moved."""

import inspect
import json
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from jsonargparse import ArgumentError, ArgumentParser

from ddn_lightning.data.data_record import DataRecord
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError, note
from ddn_lightning.reproduce.plan import Run, data_options
from ddn_lightning.runs.results import read_result

LOADING_OPTIONS = inspect.signature(TaskSequence).parameters.keys() - {"num_tasks"}  # do not change the data itself


def check_data(runs: Sequence[Run]) -> None:
    """Raise if a finished run was trained on other data.

    Stopped runs check their data themselves when they resume. Each dataset with a finished run is loaded once; if it is
    no longer available, its runs are accepted unchecked.

    Raises:
        ConfigurationError: If the data of a finished run differs from the current data.
    """
    finished: dict[str, list[tuple[Run, DataRecord]]] = {}
    for run in runs:
        if (results := read_result(run.folder)) is not None:
            record = DataRecord.from_plain(results.data)
            finished.setdefault(_settings(tuple(data_options(run))), []).append((run, record))
    for settings, known in finished.items():
        current = _current_record(settings)
        for run, record in known:
            difference = current and record.difference(current, f"the finished run {run.folder}")
            if difference is not None:
                raise ConfigurationError(f"{difference}; choose another folder by --runs, or delete that run")


@cache
def _settings(options: tuple[str, ...]) -> str:
    """The class of a dataset and the arguments that determine its samples, as JSON."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(TaskSequence, "data", fail_untyped=False)
    try:
        data = parser.parse_args(list(options)).data
    except ArgumentError as error:
        raise ConfigurationError(f"cannot identify the data of {' '.join(options)}: {error}") from error
    arguments = {name: value for name, value in data.init_args.as_dict().items() if name not in LOADING_OPTIONS}
    return json.dumps([data.class_path, arguments])


def _current_record(settings: str) -> DataRecord | None:
    class_path, arguments = json.loads(settings)
    module, _, name = class_path.rpartition(".")
    try:
        kind: type[TaskSequence] = getattr(import_module(module), name)
        if "num_tasks" in arguments and not kind.has_domains:
            arguments["num_tasks"] = 1  # fits any number of classes; the samples are the same
        sequence = kind(**arguments)
        sequence.prepare_data()
        sequence.setup("fit")
    except (ConfigurationError, OSError) as error:
        note(f"cannot check that the runs found were trained on the data given now: {error}")
        return None
    return sequence.data_record()
