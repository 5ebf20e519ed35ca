"""How far a run was: the counts of Lightning's loops, which it takes over whatever they are, and the task clock."""

import copy
from typing import Any

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.loop_position import FORMAT, settle

EPOCHS, BATCHES, OPTIMIZER_STEPS = (
    "epoch_progress",
    "epoch_loop.batch_progress",
    "epoch_loop.manual_optimization.optim_step_progress",
)
NEEDED = (EPOCHS, BATCHES, OPTIMIZER_STEPS, "epoch_loop.val_loop.batch_progress", "state_dict", "epoch_loop.state_dict")


def check_progress(
    checkpoint: dict[str, Any], checkpoint_format: int, own: dict[str, Any], epochs: int, has_position: bool
) -> None:
    """Raise unless the counts agree with each other and with the length of the sequence.

    Args:
        checkpoint: The checkpoint.
        checkpoint_format: The format that it was saved in.
        own: State of this Trainer's loop: what has to be there.
        epochs: Epochs of the whole sequence.
        has_position: Whether the loader notes where in an epoch it is.
    """
    loops = checks.mapping("loops", checkpoint.get("loops"), ("fit_loop",))
    loop = checks.mapping("loops/fit_loop", loops["fit_loop"], NEEDED)
    for name, counts in own.items():
        if name in loop:
            _check_counts(f"loops/fit_loop/{name}", loop[name], counts)
    if has_position and loop[BATCHES]["total"]["ready"]:
        _check_position(loop["state_dict"].get("combined_loader"))
    if checkpoint_format == FORMAT:  # an older one is brought into form later, if it can be
        settled = copy.deepcopy(checkpoint["loops"])
        settle({"loops": settled})
        _check_equal("loops/fit_loop", loop, settled["fit_loop"])
    for stage, count in loop[EPOCHS]["current"].items():
        checks.integer(f"loops/fit_loop/{EPOCHS}/current/{stage}", count, 0, epochs)
    checks.integer(
        f"loops/fit_loop/{BATCHES}/current/ready", loop[BATCHES]["current"]["ready"], 0, loop[BATCHES]["total"]["ready"]
    )
    steps = checks.integer("global_step", checkpoint.get("global_step"))
    if (stepped := loop[OPTIMIZER_STEPS]["total"]["completed"]) != steps:
        checks.refuse(f"loops/fit_loop/{OPTIMIZER_STEPS}/total/completed", f"its global_step, {steps}", stepped)


def check_clock(checkpoint: dict[str, Any], num_tasks: int, epochs_per_task: int) -> None:
    """Raise unless the method's task is the one of the last epoch, or the next."""
    epoch = checkpoint["loops"]["fit_loop"][EPOCHS]["current"]
    part, clock = "state_dict/_extra_state", checkpoint["state_dict"].get("_extra_state")
    checks.mapping(part, clock, ("task", "tasks_finished"))
    least = (epoch["processed"] - 1) // epochs_per_task
    most = min(epoch["started"] // epochs_per_task, num_tasks - 1)
    task = checks.integer(f"{part}/task", clock["task"], least, most)
    checks.integer(f"{part}/tasks_finished", clock["tasks_finished"], max(task, 0), task + 1)


def _check_counts(part: str, saved: object, own: object) -> None:
    """All that is counted here must be counted there."""
    if isinstance(own, dict):
        found = checks.mapping(part, saved, own)
        for name, value in own.items():
            _check_counts(f"{part}/{name}", found[name], value)
    elif isinstance(own, bool):
        if not isinstance(saved, bool):
            checks.refuse(part, "true or false", saved)
    elif isinstance(own, int):
        checks.integer(part, saved)


def _check_equal(part: str, saved: Any, settled: Any) -> None:
    if isinstance(settled, dict | list):
        for key in settled if isinstance(settled, dict) else range(len(settled)):
            _check_equal(f"{part}/{key}", saved[key], settled[key])
    elif saved != settled:
        checks.refuse(part, f"{settled}, as other counts say", saved)


def _check_position(loaders: object) -> None:
    """Where the loader is."""
    part = "loops/fit_loop/state_dict/combined_loader"
    (loader,) = checks.sequence(part, loaders, 1)
    checks.integer(f"{part}/0/position", checks.mapping(f"{part}/0", loader, ("position",))["position"])
