"""The command ``ddn tune``."""

import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from jsonargparse import Namespace

from ddn_lightning.callbacks.stop_signals import StopSignals
from ddn_lightning.cli.parser import CHOICES, CommandParser
from ddn_lightning.cli.reproduce_command import (
    SOME_FAILED,
    add_run_options,
    configs_of,
    executor_of,
    options_of,
    split_arguments,
)
from ddn_lightning.errors import ConfigurationError, check_positive, check_share
from ddn_lightning.report.paper import Cell
from ddn_lightning.report.tables import markdown_table
from ddn_lightning.report.tuning import STUDY_FILE, ArmRecord, SearchRecord, read_search, write_search
from ddn_lightning.reproduce.executor import Executor, can_resume
from ddn_lightning.reproduce.plan import BOUNDS
from ddn_lightning.reproduce.presets import FILE_NAME, read_presets
from ddn_lightning.runs.config import load_yaml
from ddn_lightning.runs.files import try_lock, write_text
from ddn_lightning.runs.written_files import WrittenFiles
from ddn_lightning.tune.ranges import ranges_of
from ddn_lightning.tune.search import FIRST_SEED, Arm, Protocol, Search, given_options

PACKAGES = ("ddn-lightning", "optuna", "torch")
NONE = "none"  # plug-in
DESCRIPTION = """Search for hyper-parameters by Optuna, scored on validation images; the test images are closed. Each
method is searched with each plug-in, the same number of trials: ddn tune --methods er --plugins none hard ddn, where
hard is the control of a plug-in, the same rehearsal with hard labels. The ranges are in configs/tune. The same command
continues after a stop with the same trials. It writes <runs>/<name>/<study>.yaml for ddn fit -c, and tuned.csv for
ddn reproduce --preset. Arguments after -- are passed to every run."""


def tune(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 1 if a run failed, 128 plus the signal if interrupted."""
    own, extra = split_arguments(arguments)
    settings = _parser().parse_args(own)
    _import_optuna()
    search = _search(settings, extra)
    arms = [Arm(cell, ranges_of(search.options.configs, cell.method, cell.plugin)) for cell in _cells(settings)]
    _check_options(search, arms)
    command = f"ddn tune {shlex.join(arguments)}"
    if settings.dry_run:
        return _print_first_trials(search, arms)
    with _locked(search.folder):
        WrittenFiles(search.folder).check(_results_of(arms))
        _check_earlier(search.folder, arms)
        code = _execute(search, arms, command, executor_of(settings))
    if code > SOME_FAILED:
        print("the same command resumes from here", file=sys.stderr)
    return code


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn tune", description=DESCRIPTION)
    parser.add_argument("--methods", type=str, nargs="+", required=True, help="Methods, such as er derpp.")
    parser.add_argument("--plugins", type=str, nargs="+", default=[NONE], help="Plug-ins; none is the method alone.")
    parser.add_argument("--dataset", type=str, default="digits", help="Dataset.")
    parser.add_argument("--setting", type=str, default="offline", help="Setting: online or offline.")
    parser.add_argument("--buffer", type=int, default=100, help="Samples that the memory holds.")
    parser.add_argument("--trials", type=int, default=30, help="Trials of each method with each plug-in.")
    text = f"Each trial is the mean over these; {FIRST_SEED} or more, as smaller ones are for reporting."
    parser.add_argument("--seeds", type=int, nargs="+", default=[FIRST_SEED], help=text)
    text = "Learn the first tasks of another class order, or the whole sequence, which peeks: see --tasks."
    parser.add_argument("--protocol", type=Literal["first_k", "whole"], default="first_k", help=text)
    parser.add_argument("--tasks", type=int, default=3, help="Number k of the first tasks.")
    parser.add_argument("--order_seed", type=int, default=FIRST_SEED, help="Seed of the other class order.")
    text = "Share of the training images of each class that trials are scored on."
    parser.add_argument("--validation_share", type=float, default=0.1, help=text)
    text = "Stop a trial that is below the median of the others at a task's end, from the second task on."
    parser.add_argument("--pruner", type=Literal["median", "none"], default="median", help=text)
    text = "Trials of a study that run in parallel: they do not learn from each other's results."
    parser.add_argument("--at_once", type=int, default=1, help=text)
    parser.add_argument("--preset", type=str, default="paper", help="Rows of tuned.csv for what is not searched.")
    parser.add_argument("--name", type=str, default="tune", help="Name of the search: all files go to <runs>/<name>.")
    parser.add_argument("--dry-run", action="store_true", help="Only print the runs of each study's first trials.")
    add_run_options(parser)
    return parser


def _import_optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise ConfigurationError('ddn tune needs Optuna, which is not installed: pip install -e ".[tune]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _search(settings: Namespace, extra: Sequence[str]) -> Search:
    check_positive(trials=settings.trials, tasks=settings.tasks, at_once=settings.at_once)
    check_share(validation_share=settings.validation_share)
    given_options(extra)  # refuses what the search sets itself
    if min(settings.seeds) < FIRST_SEED:
        raise ConfigurationError(f"seeds must be {FIRST_SEED} or more, got {min(settings.seeds)}: others are reported")
    options = options_of(settings, extra)
    return Search(
        folder=options.runs / settings.name,
        trials=settings.trials,
        seeds=tuple(settings.seeds),
        protocol=Protocol(settings.tasks if settings.protocol == "first_k" else None, settings.order_seed),
        validation_share=settings.validation_share,
        prunes=settings.pruner == "median",
        at_once=settings.at_once,
        rows=read_presets(options.configs, options.preset),
        options=options,
    )


def _cells(settings: Namespace) -> list[Cell]:
    """What to tune: each method with each plug-in, separated by spaces or commas."""
    configs = configs_of(settings)
    methods, plugins = (",".join(words).split(",") for words in (settings.methods, settings.plugins))
    wanted = {"method": methods, "plugin": plugins, "data": [settings.dataset], "setting": [settings.setting]}
    for axis, names in wanted.items():
        choices = sorted(path.stem for path in (configs / axis).glob("*.yaml")) + ([NONE] if axis == "plugin" else [])
        for name in names:
            if name not in choices:
                raise ConfigurationError(f"{axis} must be among {', '.join(choices)}, got {name}")
    if set(methods) - set(BOUNDS):
        check_positive(buffer=settings.buffer)
    pairs = dict.fromkeys(product(methods, plugins))
    return [Cell(settings.setting, settings.dataset, settings.buffer, *pair) for pair in pairs]


def _check_options(search: Search, arms: Sequence[Arm]) -> None:
    """Parse the runs of each study with the ends of its ranges, so that a wrong name ends no trial."""
    from ddn_lightning.cli.ddn import main  # here: it calls this command

    for arm in arms:
        for place in range(max(len(one.extremes) for one in arm.ranges)):
            values = {one.option: one.extremes[min(place, len(one.extremes) - 1)] for one in arm.ranges}
            (run, *_) = search.runs(arm, 0, values, [[] for _ in search.seeds])
            with redirect_stdout(io.StringIO()) as printed:
                try:
                    code = main([*run.command(), "--print_config"])
                except SystemExit as stop:
                    code = int(stop.code or 0)
            if code:
                raise SystemExit(code)  # the parser has printed the reason
            _check_tasks(search.protocol.tasks, load_yaml(printed.getvalue())["data"]["init_args"], arm.cell.data)


def _check_tasks(asked: int | None, data: dict[str, Any], name: str) -> None:
    """Raise if the trials are to learn more tasks than the data has, as far as its options tell."""
    tasks = len(data["task_sizes"]) if data.get("task_sizes") else data.get("num_tasks")
    if asked is not None and tasks is not None and asked > tasks:
        raise ConfigurationError(f"tasks must be at most the {tasks} of {name}, got {asked}")


def _print_first_trials(search: Search, arms: Sequence[Arm]) -> int:
    from ddn_lightning.tune.study import ArmStudy  # here and below: Optuna may not be installed

    for arm in arms:
        for trial in ArmStudy(arm, search).next_batch():
            for run in trial.runs:
                print(f"ddn {shlex.join(run.command(can_resume(run.folder)))}")
    return 0


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create the folder of a search and lock it: two processes would run the same trials."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"runs must be a folder that can be created, got {folder}: {error}") from error
    lock = try_lock(folder)
    if lock is None:
        raise ConfigurationError(f"{folder} is in use: another process is tuning there")
    try:
        yield
    finally:
        os.close(lock)


def _results_of(arms: Sequence[Arm | ArmRecord]) -> list[str]:
    """The files that the command replaces, unless the user has changed them."""
    return [STUDY_FILE, FILE_NAME, *(f"{arm.name}.yaml" for arm in arms)]


def _check_earlier(folder: Path, arms: Sequence[Arm]) -> None:
    """Raise if an earlier search of this name has studies that this one leaves out: its results would be replaced."""
    earlier = read_search(folder)
    lost = [] if earlier is None else sorted({arm.name for arm in earlier.arms} - {arm.name for arm in arms})
    if lost:
        raise ConfigurationError(
            f"name must be another one: {folder} has studies that this search leaves out, {', '.join(lost)}"
        )


def _execute(search: Search, arms: Sequence[Arm], command: str, executor: Executor) -> int:
    """Run all trials and write the results; returns the exit code."""
    from ddn_lightning.tune.execution import run_trials
    from ddn_lightning.tune.progress import SearchProgress
    from ddn_lightning.tune.study import ArmStudy, open_storage

    storage = open_storage(search.folder)
    studies = [ArmStudy(arm, search, storage) for arm in arms]
    stop = StopSignals()
    stop.listen()
    try:
        with SearchProgress(studies, executor.jobs) as progress:
            is_good = run_trials(studies, executor, lambda: bool(stop.received), progress)
    finally:
        stop.stop_listening()
    print(progress.summary(), file=sys.stderr)
    record = SearchRecord(
        name=search.folder.name,
        command=command,
        protocol=search.protocol.sentence,
        trials=search.trials,
        seeds=search.seeds,
        versions={package: version(package) for package in PACKAGES},
        arms=tuple(study.record(with_importance=True) for study in studies),
    )
    _write(search, record)
    return 128 + stop.received if stop.received else 0 if is_good else SOME_FAILED


def _write(search: Search, record: SearchRecord) -> None:
    """Write the record, the overlays and the preset; print the best trials."""
    from ddn_lightning.tune.overlay import overlay, preset_rows
    from ddn_lightning.tune.progress import best_of

    written = WrittenFiles(search.folder)
    written.begin(_results_of(record.arms))
    write_search(search.folder, record)
    fixed = {arm.cell: search.overrides(arm.cell) for arm in record.arms}
    for arm in record.arms:
        if arm.best is not None:
            write_text(search.folder / f"{arm.name}.yaml", overlay(record, arm, fixed[arm.cell], list(CHOICES)))
    write_text(search.folder / FILE_NAME, preset_rows(record, fixed))
    written.finish(_results_of(record.arms))
    rows = [[arm.title, f"{len(arm.trials)}", f"{arm.count('pruned')}", best_of(arm)] for arm in record.arms]
    print(markdown_table(["study", "trials", "pruned", "best ACC on validation images"], rows), end="")
    print(f"\nProtocol: {record.protocol}.")
    if any(arm.best is not None for arm in record.arms):
        print(f"With these values: ddn reproduce ... --preset {search.folder / FILE_NAME}")
    print(f"See them: {shlex.join(['ddn', 'report', str(search.folder), '--open'])}")
