"""Temporal ensemble: replay whose predictions are those of an average of the network over time."""

from typing import Any

from ddn_lightning.learner import Facts
from ddn_lightning.methods.er import ER


class TemporalEnsemble(ER):
    """Temporal ensemble (Soutif-Cormerais et al., CoLLAs 2023, https://arxiv.org/abs/2306.16817), on ER.

    Experience Replay that is evaluated by the exponential moving average of its weights and BatchNorm statistics over
    all steps. Training is that of :class:`ER`, bit for bit. ``evaluate_average`` does the same for other methods.
    Needs no task boundaries; stores the average. Reading: the decay is smaller in the first steps, where the authors'
    code has it constant.

    Args:
        evaluate_average: Decay of the average, by default that of the authors' code.
        **kwargs: Arguments of :class:`ER`.
    """

    facts = Facts(
        key="temporal_ensemble",
        title="temporal ensemble",
        reference="[Soutif-Cormerais et al. 2023](https://arxiv.org/abs/2306.16817)",
        stores="an averaged network",
        cost="the update of the average",
    )

    def __init__(self, *args: Any, evaluate_average: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, evaluate_average=evaluate_average, **kwargs)
