"""The choice of batches that update BatchNorm's running statistics changes nothing else."""

from typing import Any

import pytest
import torch
from every_method import build
from tiny import BatchNormNet, Fit, TinySequence, small_net

from ddn_lightning import (
    CLSER,
    ER,
    ERACE,
    ConfigurationError,
    DataDistillNet,
    DERPlusPlus,
    ICaRL,
    LabelDistiller,
    ReplayMethod,
)

STILL = {"extra_draw_moves_statistics": False}
MEMORY = {"running_statistics": "memory"}
CONTROL = {"old_memory_weight": 1.0}

# 12 steps, 4 in each task; the first has nothing to replay, and there is old memory from the fifth on
MOVES = [
    (ER, None, {}, 12 + 11),
    (ER, None, MEMORY, 1 + 11),
    (ERACE, None, MEMORY, 4 + 8),  # replays from the second task on
    (DERPlusPlus, None, MEMORY, 1 + 22),
    (CLSER, None, MEMORY, 1 + 11),
    (ER, None, CONTROL, 12 + 11 + 8),
    (ER, None, CONTROL | STILL, 12 + 11),
    (ER, None, CONTROL | STILL | MEMORY, 1 + 11),
    (ER, DataDistillNet, {}, 12 + 11 + 8),
    (ER, DataDistillNet, STILL, 12 + 11),
    (ER, DataDistillNet, MEMORY, 1 + 11 + 8),
]


@pytest.mark.parametrize(("method_class", "distiller_class", "arguments", "moves"), MOVES)
def test_only_the_chosen_batches_move_the_statistics_and_training_is_the_same(
    fit: Fit,
    method_class: type[ReplayMethod],
    distiller_class: type[LabelDistiller] | None,
    arguments: dict[str, Any],
    moves: int,
) -> None:
    method = fit(lambda: build(method_class, distiller_class, **arguments), TinySequence(batch_size=6))
    assert method.get_buffer("backbone.layers.1.num_batches_tracked") == moves
    same = {name: value for name, value in arguments.items() if name == "old_memory_weight"}
    plain = fit(lambda: build(method_class, distiller_class, **same), TinySequence(batch_size=6))
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, method.get_parameter(name)), name
    is_moved_alike = torch.equal(*(m.get_buffer("backbone.layers.1.running_mean") for m in (plain, method)))
    assert is_moved_alike == (arguments == same)


def test_statistics_of_memory_alone_need_separate_batches() -> None:
    with pytest.raises(ConfigurationError, match="running_statistics=memory needs batches=separate"):
        build(ER, batches="concatenated", running_statistics="memory")


@pytest.mark.parametrize(
    ("method", "net", "reason"),
    [(ER, small_net, "SmallNet has no BatchNorm"), (ICaRL, BatchNormNet, "ICaRL does not replay memory")],
)
def test_a_choice_without_effect_is_noted(
    fit: Fit, method: type[ReplayMethod], net: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(lambda: build(method, backbone=net(), **MEMORY), max_steps=1)
    assert f"running_statistics=memory has no effect: {reason}\n" in capsys.readouterr().err
    fit(lambda: build(ER, **MEMORY), max_steps=1)
    assert "no effect" not in capsys.readouterr().err
