"""Which of the paper's numbers a run can be held against."""

from ddn_lightning.report.paper import Cell, Target, paper_targets
from ddn_lightning.runs.recorded_run import RecordedRun

METHODS = {
    "ER": "er",
    "DERPlusPlus": "derpp",
    "CLSER": "cls_er",
    "ERACE": "er_ace",
    "ICaRL": "icarl",
    "LUCIR": "lucir",
    "BiC": "bic",
    "Mnemonics": "mnemonics",
    "LoDM": "lodm",
}
PLUGINS = {
    None: "none",
    "DataDistillNet": "ddn",
    "LearnedLabels": "l2y",
    "LabelSmoothing": "label_smoothing",
    "RandomLabels": "random_labels",
}
SETTINGS = {1: "online", 50: "offline"}  # by epochs per task
NUM_TASKS = {"cifar10": 5, "cifar100": 10, "tiny_imagenet": 10}
AS_IN_THE_PAPER = {"alpha": 1.0, "beta": 0.9}  # DDN's weights in all tables


def paper_target(run: RecordedRun) -> Target | None:
    """The paper's numbers for the same setting, data, memory, method and plug-in, if it has any.

    The network and the learning rates may differ: they are told by the configuration.
    """
    cell = _cell(run)
    return None if cell is None else paper_targets().get(cell)


def _cell(run: RecordedRun) -> Cell | None:
    results = run.results
    epochs = run.config.get("data.init_args.epochs_per_task")
    setting = SETTINGS.get(epochs) if isinstance(epochs, int) else None
    if results is None or setting is None or NUM_TASKS.get(results.dataset) != len(results.matrix):
        return None
    model = {key.removeprefix("model.init_args."): value for key, value in run.config.items()}
    if model.get("old_memory_weight", 0) or model.get("replay_weight", 1) != 1:  # our own controls
        return None
    method, plugin = METHODS.get(results.method), PLUGINS.get(results.plugin)
    options = {key.removeprefix("distiller.init_args."): value for key, value in model.items()}
    if plugin == "ddn" and any(options.get(name, value) != value for name, value in AS_IN_THE_PAPER.items()):
        return None
    if method is None or plugin is None:
        return None
    variant = f"epsilon={options.get('epsilon')}" if plugin == "label_smoothing" else ""
    return Cell(setting, results.dataset, results.buffer_size, method, plugin, variant)
