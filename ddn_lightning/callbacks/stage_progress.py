"""A line in the progress bar for work between two tasks."""

from collections.abc import Iterator

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import RichProgressBar


def track(trainer: Trainer, steps: int, description: str) -> Iterator[int]:
    """Count to ``steps``, shown as one more line of the Trainer's Rich bar where there is one.

    Lightning shows the bar on the first rank only; on the others, with another bar or with none, nothing is shown.
    """
    bar = trainer.progress_bar_callback
    if not isinstance(bar, RichProgressBar) or not bar.is_enabled or bar.progress is None:
        yield from range(steps)
        return
    line = bar.progress.add_task(f"[{bar.theme.description}]{description}", total=steps)
    try:
        for step in range(steps):
            yield step
            bar.progress.advance(line)
            bar.refresh()
    finally:
        bar.progress.remove_task(line)
