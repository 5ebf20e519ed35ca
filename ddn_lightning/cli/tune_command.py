"""The command ``ddn tune``."""

import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import product
from pathlib import Path
from typing import Literal

from jsonargparse import Namespace

from ddn_lightning.callbacks.stop_signals import StopSignals
from ddn_lightning.cli.parser import CHOICES, CommandParser
from ddn_lightning.cli.reproduce_command import (
    SOME_FAILED,
    add_run_options,
    executor_of,
    options_of,
    split_arguments,
)
from ddn_lightning.errors import ConfigurationError, check_positive, check_share
from ddn_lightning.reproduce.executor import Executor, can_resume
from ddn_lightning.reproduce.grid import NONE, Cell
from ddn_lightning.reproduce.presets import FILE_NAME, read_presets
from ddn_lightning.runs.files import try_lock
from ddn_lightning.runs.written_files import WrittenFiles
from ddn_lightning.tune.ranges import ranges_of
from ddn_lightning.tune.search import FIRST_SEED, Arm, Search, given_options

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
    search = _search(settings, extra, f"ddn tune {shlex.join(arguments)}")
    arms = [Arm(cell, ranges_of(search.options.configs, cell.method, cell.plugin)) for cell in _cells(settings)]
    _check_options(search, arms)
    if settings.dry_run:
        return _print_first_trials(search, arms)
    with _locked(search.folder):
        written = WrittenFiles(search.folder)
        written.check(_results_of(arms))
        _check_earlier(search, arms)
        code = _execute(search, arms, executor_of(settings))
    if code > SOME_FAILED:
        print("the same command resumes from here", file=sys.stderr)
    return code


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn tune", description=DESCRIPTION)
    text = "Methods, such as er derpp; as each part, a name in configs/ or the import path of a class."
    parser.add_argument("--methods", type=str, nargs="+", required=True, help=text)
    parser.add_argument("--plugins", type=str, nargs="+", default=[NONE], help="Plug-ins; none is the method alone.")
    parser.add_argument("--dataset", type=str, default="digits", help="Dataset.")
    parser.add_argument("--network", type=str, default="", help="Network. Default: that of the dataset's file.")
    parser.add_argument("--memory", type=str, default="", help="Class of the memory. Default: the method's own.")
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
    text = "Trials of a study that run in parallel: they do not learn from each other's results."
    parser.add_argument("--at_once", type=int, default=1, help=text)
    parser.add_argument("--preset", type=str, default="paper", help="Rows of tuned.csv for what is not searched.")
    parser.add_argument("--name", type=str, default="tune", help="Name of the search: all files go to <runs>/<name>.")
    parser.add_argument("--dry-run", action="store_true", help="Only print the runs of each study's first trials.")
    add_run_options(parser)
    return parser


def _import_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise ConfigurationError('ddn tune needs Optuna, which is not installed: pip install -e ".[tune]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _search(settings: Namespace, extra: Sequence[str], command: str) -> Search:
    check_positive(trials=settings.trials, tasks=settings.tasks, at_once=settings.at_once)
    check_share(validation_share=settings.validation_share)
    given_options(extra)  # refuses what the search sets itself
    if min(settings.seeds) < FIRST_SEED:
        raise ConfigurationError(f"seeds must be {FIRST_SEED} or more, got {min(settings.seeds)}: others are reported")
    options = options_of(settings, extra)
    return Search(
        folder=options.runs / settings.name,
        command=command,
        trials=settings.trials,
        seeds=tuple(settings.seeds),
        tasks=settings.tasks if settings.protocol == "first_k" else None,
        order_seed=settings.order_seed,
        validation_share=settings.validation_share,
        at_once=settings.at_once,
        rows=read_presets(options.configs, options.preset),
        options=options,
    )


def _cells(settings: Namespace) -> list[Cell]:
    """What to tune: each method with each plug-in, separated by spaces or commas."""
    check_positive(buffer=settings.buffer)
    methods, plugins = (",".join(words).split(",") for words in (settings.methods, settings.plugins))
    parts = {"network": settings.network, "memory": settings.memory}
    return [
        Cell(settings.setting, settings.dataset, settings.buffer, method, plugin, **parts)
        for method, plugin in dict.fromkeys(product(methods, plugins))
    ]


def _check_options(search: Search, arms: Sequence[Arm]) -> None:
    """Parse a run of each study, so that a wrong name is found before the first trial."""
    from ddn_lightning.cli.ddn import main  # here: it calls this command

    for arm in arms:
        values = {one.option: one.choices[0] if one.choices else one.low for one in arm.ranges}
        (run, *_) = search.runs(arm, 0, values)
        with redirect_stdout(io.StringIO()):
            try:
                code = main([*run.command(), "--print_config"])
            except SystemExit as stop:
                code = int(stop.code or 0)
        if code:
            raise SystemExit(code)  # the parser has printed the reason


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


def _results_of(arms: Sequence[Arm]) -> list[str]:
    """The files that the command replaces, unless the user has changed them."""
    return [FILE_NAME, *(f"{arm.name}.yaml" for arm in arms)]


def _check_earlier(search: Search, arms: Sequence[Arm]) -> None:
    """Raise if an earlier search of this name has studies that this one leaves out: its results would be replaced."""
    path = search.folder / FILE_NAME
    if not path.is_file():
        return
    patterns = [row.pattern for row in read_presets(search.options.configs, str(path))]
    earlier = {(one["method"], one["plugin"]) for one in patterns if one.get("preset") == str(path)}
    if lost := [" + ".join(pair) for pair in sorted(earlier - {(arm.cell.method, arm.cell.plugin) for arm in arms})]:
        raise ConfigurationError(
            f"name must be another one: {search.folder} has studies that this search leaves out, {', '.join(lost)}"
        )


def _execute(search: Search, arms: Sequence[Arm], executor: Executor) -> int:
    """Run all trials and write the results; returns the exit code."""
    from ddn_lightning.tune.execution import run_trials, summary
    from ddn_lightning.tune.overlay import write_results
    from ddn_lightning.tune.study import ArmStudy, open_storage

    storage = open_storage(search.folder)
    studies = [ArmStudy(arm, search, storage) for arm in arms]
    stop = StopSignals()
    stop.listen()
    try:
        is_good = run_trials(studies, executor, lambda: bool(stop.received))
    finally:
        stop.stop_listening()
    written = WrittenFiles(search.folder)
    written.begin(_results_of(arms))
    write_results(search, studies, list(CHOICES))
    written.finish(_results_of(arms))
    print(summary(studies), end="")
    print(f"\nProtocol: {search.protocol}.")
    if any(study.best is not None for study in studies):
        print(f"With these values: ddn reproduce ... --preset {search.folder / FILE_NAME}")
    return 128 + stop.received if stop.received else 0 if is_good else SOME_FAILED
