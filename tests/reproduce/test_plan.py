"""The runs that a table needs, and the arguments of each."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddn_lightning.cli import main
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.names import METHODS
from ddn_lightning.reproduce.grid import Cell, read_grid, select
from ddn_lightning.reproduce.plan import Options, Run, data_options, plan
from ddn_lightning.reproduce.presets import COLUMNS, PresetRow, overrides_for, read_presets

CONFIGS = Path(__file__).parents[2] / "configs"
ROWS = read_presets(CONFIGS)
OPTIONS = Options(CONFIGS, Path("runs"))
PLANS = sorted(path.stem for path in (CONFIGS / "plan").glob("*.yaml"))
GRIDS = {name: read_grid(name, CONFIGS) for name in PLANS}
ALL_CELLS = [cell for grid in GRIDS.values() for cell in grid.cells]
Parsed = Callable[[list[str]], dict[str, Any]]
MINE = """
seeds: [3, 4]
cells:
  - setting: offline
    data: [digits, my_module.Data]
    network: [small_net, my_module.Net]
    buffer_size: [20, 30]
    method: [er, my_module.Method]
    memory: ddn_lightning.RingBuffer
    plugin: [none, my_module.Labels]
    configs: [statistics/both]
    options: {model.lr: [0.1, 0.2], model.replay_batch_size: 8}
"""


@pytest.fixture
def parsed(capsys: pytest.CaptureFixture[str]) -> Parsed:
    """The settings that the real parser reads from the arguments of ``ddn``."""

    def parse(arguments: list[str]) -> dict[str, Any]:
        with pytest.raises(SystemExit) as exit_info:
            main([*arguments, "--print_config"])
        assert exit_info.value.code == 0
        settings: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
        return settings

    return parse


def commands(name: str, seeds: list[int] | None = None, **wanted: list[Any]) -> list[list[str]]:
    grid = read_grid(name, CONFIGS)
    return [run.command() for run in plan(select(grid.cells, wanted), seeds or grid.seeds, ROWS, OPTIONS)]


@pytest.mark.parametrize("name", PLANS)
def test_every_cell_of_every_plan_has_a_folder_of_its_own(name: str) -> None:
    grid = GRIDS[name]
    runs = plan(grid.cells, grid.seeds, ROWS, OPTIONS)
    assert len({run.folder for run in runs}) == len(runs) == len(grid.cells) * len(grid.seeds)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "cells", "seeds"),
    [
        *(("table1", 78, 10), ("table2", 48, 3), ("table3", 12, 10), ("table4", 16, 10), ("per_task", 16, 10)),
        *(("alpha_beta", 16, 10), ("digits", 39, 3), ("collection", 63, 5), ("collection_images", 63, 5)),
    ],
)
def test_shipped_plans_have_their_cells_and_seeds(name: str, cells: int, seeds: int) -> None:
    assert (len(GRIDS[name].cells), len(GRIDS[name].seeds)) == (cells, seeds)


def test_digits_has_every_method() -> None:
    of_pre_trained_networks = {"ncm", "slda"}
    keys = {facts.key for facts in METHODS.values()}
    assert {cell.method for cell in GRIDS["digits"].cells} == keys - of_pre_trained_networks


def test_a_plan_of_own_classes_is_the_product_of_its_axes(parsed: Parsed) -> None:
    Path("mine.yaml").write_text(MINE)
    grid = read_grid("mine.yaml", CONFIGS)
    assert (len(grid.cells), grid.seeds, grid.preset) == (2**6, (3, 4), "default")
    first, *_, last = plan(grid.cells, grid.seeds, ROWS, OPTIONS)
    name = "offline-my_module.Data-my_module.Net-30".replace("my_module.", "")
    assert last.folder.name.startswith(f"{name}-Method-RingBuffer-Labels-lr0.2-replay_batch_size8-seed4-")
    words = " ".join(last.command())
    assert "--model my_module.Method --data my_module.Data --model.backbone my_module.Net" in words
    assert "--model.memory ddn_lightning.RingBuffer --model.distiller my_module.Labels" in words
    settings = parsed(first.command())
    model = settings["model"]["init_args"]
    assert model["memory"]["class_path"] == "ddn_lightning.RingBuffer"
    assert (model["buffer_size"], model["lr"], model["replay_batch_size"]) == (20, 0.1, 8)
    assert settings["forgetting"]["statistics"] == "both"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cells: []", "mine.yaml must have a value of cells"),
        ("cells: [1]", "cells must be a list of mappings"),
        ("seed: [1]\ncells: [{}]", "expected the keys preset, seeds, cells, got seed .did you mean seeds"),
        ("cells: [{setting: online, data: digits}]", r"cells\[0\] must have a value of method"),
        ("cells: [{methods: er}]", "got methods .did you mean method"),
        ("cells: [{setting: online, data: digits, method: er, buffer_size: many}]", "buffer_size must be an integer"),
        ("cells: [{setting: online, data: digits, method: er, options: lr}]", "options must map options of ddn fit"),
        ("seeds: 1\ncells: [{}]", "seeds must be a list of integers, got 1"),
    ],
)
def test_errors_in_a_plan_are_named(text: str, message: str) -> None:
    Path("mine.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_grid("mine.yaml", CONFIGS)


def test_a_part_without_a_file_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match="method must be among a_gem, .* or the import path of a class, got err"
    ):
        plan([Cell("online", "digits", 50, "err")], [1], ROWS, OPTIONS)


def test_table_1_has_the_papers_methods_datasets_and_buffers() -> None:
    buffers = {"cifar10": (200, 500), "cifar100": (2000, 5000), "tiny_imagenet": (2000, 5000)}
    hosts = itertools.product(("er", "derpp", "cls_er", "er_ace"), ("none", "ddn"))
    others = itertools.product(("lucir", "icarl", "bic", "mnemonics", "lodm"), ("none",))
    assert set(GRIDS["table1"].cells) == {
        Cell("online", data, buffer_size, *pair)
        for pair in (*hosts, *others)
        for data, sizes in buffers.items()
        for buffer_size in sizes
    }


def test_alpha_beta_is_the_full_grid() -> None:
    variants = [cell.variant for cell in GRIDS["alpha_beta"].cells]
    assert variants == [f"alpha={alpha} beta={beta}" for alpha in (0, 0.5, 1, 2) for beta in (0, 0.5, 0.9, 1)]


def test_the_collection_is_measured_by_both_statistics(parsed: Parsed) -> None:
    (command,) = commands("collection", [11], methods=["er"], plugins=["ddn"])
    settings = parsed(command)
    assert settings["model"]["init_args"]["backbone"]["class_path"] == "ddn_lightning.ResNet18"
    assert settings["forgetting"]["statistics"] == "both"
    assert settings["model"]["init_args"]["distiller"]["init_args"]["lookahead"] == "exact"


def test_by_default_settings_a_run_has_no_option_of_its_method() -> None:
    cells = select(GRIDS["collection_images"].cells, {"methods": ["gdumb"]})
    for preset in ("default", "paper"):
        (run,) = plan(cells, [11], ROWS, Options(CONFIGS, Path("runs"), preset))
        options = {word for word in run.arguments if word.startswith("--model.")}
        assert (options == {"--model.buffer_size"}) == (preset == "default")


def every_run() -> list[Run]:
    plans = [
        plan(grid.cells, [1], ROWS, Options(CONFIGS, Path("runs"), preset))
        for grid in GRIDS.values()
        for preset in ("paper", "tuned")
    ]
    return list({run.arguments: run for runs in plans for run in runs}.values())


def covering(runs: list[Run]) -> set[Run]:
    """A subset with every file and every value of every option at least once."""
    chosen: set[Run] = set()
    covered: set[tuple[str, str]] = set()
    for run in runs:
        pairs = set(zip(run.arguments[::2], run.arguments[1::2], strict=True))
        if not pairs <= covered:
            chosen.add(run)
            covered |= pairs
    return chosen


RUNS = every_run()
COVERING = covering(RUNS)


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=() if run in COVERING else pytest.mark.slow) for run in RUNS],
    ids=lambda run: run.folder.name,
)
def test_every_planned_command_parses_to_the_settings_of_its_cell(run: Run, parsed: Parsed) -> None:
    settings = parsed(run.command())
    cell, model, data = run.cell, settings["model"]["init_args"], settings["data"]["init_args"]
    assert (settings["seed_everything"], settings["name"]) == (1, run.folder.name)
    assert cell.buffer_size in (0, model["buffer_size"])
    assert (model["distiller"] is None) == (cell.plugin in ("none", "hard"))
    assert model["old_memory_weight"] == (cell.plugin == "hard")
    for pair in cell.variant.split():
        option, _, value = pair.partition("=")
        assert model["distiller"]["init_args"][option] == (value if option == "lookahead" else float(value))
    assert data["epochs_per_task"] == (5 if cell.data == "digits" else {"online": 1, "offline": 50}[cell.setting])
    if cell.plugin == "ddn":
        rates = {"image_folder": 1e-3, "cifar10": 1e-3, "cifar100": 1e-2, "tiny_imagenet": 1e-4, "digits": 3e-3}
        assert model["distiller"]["init_args"]["lr"] == rates[cell.data]


def test_every_row_of_the_presets_is_used() -> None:
    datasets = {cell.data for cell in ALL_CELLS}
    keys = [facts.key for facts in METHODS.values()]
    own = [
        Cell("offline", *cell) for cell in itertools.product(datasets, [2000, 5000], keys, ["none", "cba"])
    ]  # some are in no table
    for row in ROWS:
        used = [
            cell for cell in (*ALL_CELLS, *own) for preset in ("default", "paper", "tuned") if row.matches(preset, cell)
        ]
        assert used, row
        assert row.source, row


# lr, then alpha and beta of DER++ or consistency weight, stable and plastic rate of CLS-ER; from the authors' own code,
# that of CLS-ER with half the lr and twice the weight, as its loss is one mean over two batches
PUBLISHED = {
    ("er", "cifar10", 200): ["0.1"],
    ("er", "cifar100", 5000): ["0.1"],
    ("er", "tiny_imagenet", 2000): ["0.03"],
    ("er", "tiny_imagenet", 5000): ["0.1"],
    ("derpp", "cifar10", 200): ["0.03", "0.1", "0.5"],
    ("derpp", "cifar10", 500): ["0.03", "0.2", "0.5"],
    ("derpp", "cifar100", 2000): ["0.03", "0.1", "0.5"],
    ("derpp", "tiny_imagenet", 2000): ["0.03", "0.2", "0.5"],
    ("derpp", "tiny_imagenet", 5000): ["0.03", "0.1", "0.5"],
    ("cls_er", "cifar10", 200): ["0.05", "0.3", "0.1", "0.3"],
    ("cls_er", "cifar10", 500): ["0.05", "0.3", "0.1", "0.9"],
    ("cls_er", "tiny_imagenet", 2000): ["0.025", "0.2", "0.05", "0.08"],
    ("cls_er", "tiny_imagenet", 5000): ["0.025", "0.2", "0.07", "0.08"],
    ("er_ace", "cifar100", 2000): ["0.03"],
    ("icarl", "cifar10", 500): ["0.1", "0.00001"],
    ("icarl", "cifar100", 2000): ["0.3", "0.00001"],
    ("icarl", "tiny_imagenet", 5000): ["0.03", "0.00001"],
    ("lucir", "cifar100", 2000): ["0.03", "0.9", "5", "2", "0.5", "1", "20", "0.01"],
    ("bic", "cifar100", 2000): ["0.03"],
    ("x_der", "cifar10", 500): ["0.03", "0.3", "0.8", "0.85", "0.001", "0.7"],
    ("x_der", "cifar100", 2000): ["0.03", "0.6", "0.9", "0.85", "0.01", "0.2"],
    ("si", "cifar10", 500): ["0.03", "0.5", "1"],
    ("lode", "tiny_imagenet", 2000): ["0.03", "0.2", "0.5", "0.1"],
    ("lode", "tiny_imagenet", 5000): ["0.03", "0.1", "0.5", "0.1"],
    ("lode", "cifar100", 5000): ["0.03", "0.2", "0.2", "0.5"],
    ("mkd", "cifar10", 500): ["0.03", "5.5", "0.01", "4"],
    ("pcr", "cifar100", 5000): ["0.1", "0.09"],
    ("scr", "cifar10", 200): ["0.1", "0.1", "128", "100"],
}
OPTION_NAMES = {"derpp": ["alpha", "beta"], "cls_er": ["consistency_weight", "stable_rate", "plastic_rate"]}
OPTION_NAMES["icarl"] = ["weight_decay"]
OPTION_NAMES["x_der"] = ["alpha", "beta", "gamma", "constraint_weight", "margin"]
OPTION_NAMES["si"] = ["penalty", "damping"]
OPTION_NAMES["lode"] = ["alpha", "beta", "rho"]
OPTION_NAMES["mkd"] = ["distillation_weight", "teacher_rate", "temperature"]
OPTION_NAMES["pcr"] = ["temperature"]
OPTION_NAMES["scr"] = ["temperature", "projection_dim", "replay_batch_size"]
OPTION_NAMES["lucir"] = ["momentum", "less_forget_weight", "hardest_classes", "margin", "ranking_weight"]
OPTION_NAMES["lucir"] += ["fine_tuning_epochs", "fine_tuning_lr"]


@pytest.mark.parametrize(("key", "expected"), PUBLISHED.items())
def test_tuned_values_match_the_published_ones(key: tuple[str, str, int], expected: list[str]) -> None:
    method, data, buffer_size = key
    found = overrides_for(ROWS, "tuned", Cell("offline", data, buffer_size, method))
    assert [found[f"--model.{name}"] for name in ["lr", *OPTION_NAMES.get(method, [])]] == expected


def test_the_papers_preset_has_one_setting_for_all_cells() -> None:
    expected = {"derpp": ["0.2", "0.5"], "cls_er": ["0.1", "0.7", "0.9"]}
    expected |= {"icarl": ["0"], "lucir": ["0", "5", "2", "0.5", "1", "20", "0.01"]}
    for cell in ALL_CELLS:
        found = overrides_for(ROWS, "paper", cell)
        assert found["--model.lr"] == "0.03"
        names = OPTION_NAMES[cell.method] if cell.method in expected else []  # others are not in the paper
        assert [found[f"--model.{name}"] for name in names] == expected.get(cell.method, [])


def row(overrides: str, **names: str) -> PresetRow:
    return PresetRow(names, dict(pair.split() for pair in overrides.split(",")))


def test_an_empty_field_matches_anything_and_lower_rows_win() -> None:
    rows = [
        row("--a 1,--b 1", preset="paper"),
        row("--a 2", preset="paper", data="cifar10", buffer="200"),
        row("--c 3", method="er"),
        row("--a 4", preset="tuned"),
    ]
    assert overrides_for(rows, "paper", Cell("online", "cifar10", 200, "er")) == {"--a": "2", "--b": "1", "--c": "3"}
    assert overrides_for(rows, "paper", Cell("online", "cifar10", 20, "derpp")) == {"--a": "1", "--b": "1"}
    assert overrides_for(rows[::-1], "paper", Cell("online", "cifar10", 200, "er"))["--a"] == "1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("paper,,cifra10,,,,--a 1,", "line 2: data must be empty or a file in .*data, got cifra10"),
        ("paper,,,,,nothing,--a 1,", "plugin must be empty or a file in .*plugin, got nothing"),
        ("paper,,,many,,,--a 1,", "buffer must be empty or a number, got many"),
        ("paper,,,,,,--a 1 --b,", "overrides must be pairs of --option value, got --a 1 --b"),
        ("paper,,,,,,a 1,", "overrides must be pairs of --option value, got a 1"),
        ("paper,,,,,,--a 'b,", "line 2: overrides must be words of a shell, got --a 'b: No closing quotation"),
        ("paper,,,,,--a 1", "expected 8 columns"),
        ("paper,,,,,,--a 1,me,too", "expected 8 columns"),
    ],
)
def test_errors_in_the_presets_file_are_named(line: str, message: str) -> None:
    shutil.copytree(CONFIGS, "configs")
    Path("configs/tuned.csv").write_text(f"{','.join(COLUMNS)}\n{line}\n")
    with pytest.raises(ConfigurationError, match=message):
        read_presets(Path("configs"))


def test_a_presets_file_in_another_encoding_is_named() -> None:
    Path("mine.csv").write_bytes(f"{','.join(COLUMNS)}\npaper,,,,,,--a 1,\xb1 2\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="mine.csv must be UTF-8 text"):
        read_presets(CONFIGS, "mine.csv")


def names(**changes: Any) -> list[str]:
    wanted = {"methods": ["er"], "datasets": ["cifar10"], "buffers": [200], "plugins": ["ddn"]}
    cells = select(GRIDS["table1"].cells, wanted)
    return [run.folder.name for run in plan(cells, [1, 2], ROWS, Options(CONFIGS, Path("runs"), **changes))]


def test_a_run_folder_is_named_after_cell_seed_and_options() -> None:
    usual = names()
    assert [name.rpartition("-")[0] for name in usual] == [
        "online-cifar10-200-er-ddn-seed1",
        "online-cifar10-200-er-ddn-seed2",
    ]
    others = [names(preset="tuned"), names(width=20), names(extra=["--model.lr", "1"])]
    assert len({usual[0], *(other[0] for other in others)}) == 4
    assert names() == usual
    assert names(data=Path("elsewhere")) == usual  # the data is the same


def test_a_run_folder_depends_on_settings_in_files_but_not_on_comments() -> None:
    shutil.copytree(CONFIGS, "configs")
    cells = [Cell("online", "cifar10", 200, "er")]

    def name() -> str:
        (run,) = plan(cells, [1], ROWS, Options(Path("configs"), Path("runs")))
        return run.folder.name

    before = name()
    path = Path("configs/setting/online.yaml")
    path.write_text(f"# another comment\n{path.read_text()}")
    assert name() == before
    path.write_text(path.read_text().replace("batch_size: 32", "batch_size: 10"))
    assert name() != before


def test_a_run_folder_depends_on_the_contents_of_further_files() -> None:
    for option in (["-c", "mine.yaml"], ["--config=mine.yaml"]):
        found = []
        for lr in (0.1, 0.5):
            Path("mine.yaml").write_text(f"model: {{init_args: {{lr: {lr}}}}}")
            found.append(names(extra=option)[0])
        assert found[0] != found[1]


def test_selections_and_options_reach_the_commands(parsed: Parsed) -> None:
    wanted = {
        "methods": ["er", "derpp"],
        "datasets": ["cifar100", "tiny_imagenet"],
        "buffers": [5000],
        "plugins": ["ddn"],
    }
    options = Options(CONFIGS, Path("r"), "tuned", Path("d"), 20, ["--trainer.limit_train_batches=2"])
    found = [parsed(run.command()) for run in plan(select(GRIDS["table2"].cells, wanted), [7], ROWS, options)]
    assert [settings["data"]["init_args"]["root"] for settings in found] == ["d/cifar100"] * 2 + ["d"] * 2
    assert [settings["model"]["init_args"]["lr"] for settings in found] == [0.1, 0.03, 0.1, 0.03]
    for settings in found:
        assert settings["model"]["init_args"]["backbone"]["init_args"]["width"] == 20
        assert (settings["seed_everything"], settings["runs"]) == (7, "r")
        assert settings["trainer"]["limit_train_batches"] == 2


def test_a_stopped_run_resumes() -> None:
    (run,) = plan([Cell("offline", "digits", 100, "er")], [1], ROWS, OPTIONS)
    assert run.command(resume=True) == [*run.command(), "--ckpt_path", "auto"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "plan"),
        (("table9",), "plan must be a YAML file or one of alpha_beta, collection, collection_images, digits, per_task"),
        (("table1", "--methods", "err"), "methods must be among lucir, icarl, bic, mnemonics, lodm, er, derpp"),
        (("table1", "--buffers", "7"), "buffers must be among 200, 500, 2000, 5000, got 7"),
        (("table1", "--datasets", "cifar10", "--buffers", "5000"), "must leave at least one cell"),
        (("table1", "--seeds", "1", "1"), "seeds must differ from each other, got 1 more than once"),
        (("table1", "--preset", "best"), "preset must be among default, paper, tuned, got best"),
        (("table1", "--configs", "nowhere"), "plan must be a YAML file or one of"),
        (("table1", "--no_such"), "no_such"),
        (("digits", "--reference", "nowhere.csv"), "reference must be a CSV file in UTF-8, got nowhere.csv"),
        (("digits", "--jobs", "0"), "jobs must be positive, got 0"),
        (("digits", "--runs", "file"), "runs must be a folder that can be created, got file"),
        (("digits", "-o", "nowhere/table.md"), "output must be a file in an existing folder, got nowhere/table.md"),
    ],
)
def test_errors_are_named(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    configs = [] if "--configs" in arguments else ["--configs", str(CONFIGS)]
    assert main(["reproduce", *arguments, *configs]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    assert errors.count("error: ") == 1


def test_data_of_a_run_is_known_from_names_of_configurations_too() -> None:
    run = Run(Cell("offline", "digits", 100, "er"), 1, ("-c", "data/cifar10", "--data.num_tasks=2"), Path("run"))
    assert data_options(run) == [
        *["--data", "SplitCIFAR10", "--data.root", '"data/cifar10"'],
        *["--data.num_tasks", "2"],
    ]
