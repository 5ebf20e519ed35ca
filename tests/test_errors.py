"""Invalid numbers are refused before anything is built with them."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
from every_method import DISTILLERS, METHODS, ControlledER, build
from tiny import TinySequence

import ddn_lightning
from ddn_lightning import ER, ConfigurationError, ImageTransform, LastCheckpoint, LoDM, LowRankMemory, ReplayMethod
from ddn_lightning.errors import DivergenceError


def float_arguments(built: type) -> list[str]:
    """The names of all arguments of a class and its bases that take a float."""
    return sorted({p.name for p in inspect.signature(built).parameters.values() if p.annotation is float})


def construct(built: Callable[..., Any], **arguments: float) -> None:
    if inspect.isclass(built) and issubclass(built, ReplayMethod):
        build(built, **arguments)
    elif built is LowRankMemory:
        built(buffer_size=10, **arguments)
    else:
        built(**arguments)


@pytest.mark.parametrize("built", [*METHODS, *DISTILLERS, LowRankMemory, LastCheckpoint])
def test_every_float_argument_must_be_finite(built: type) -> None:
    set_by_itself = ("replay_weight", "old_memory_weight") if built is ControlledER else ()
    for name in float_arguments(built):
        for value in (math.inf, -math.inf, math.nan) if name not in set_by_itself else ():
            with pytest.raises(ConfigurationError, match=rf"^{name} must be .*, got {value}$|cannot take {name}: "):
                construct(built, **{name: value})


def test_the_arguments_are_found() -> None:
    assert {"lr", "momentum", "weight_decay", "lr_decay", "replay_weight"} <= set(float_arguments(ER))
    assert {"alpha", "beta", "lr"} <= set(float_arguments(ddn_lightning.DataDistillNet))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum must be zero or above and below 1, got 1.0"),
        ({"momentum": 2.0}, "momentum must be zero or above and below 1, got 2.0"),
        ({"lr_decay": 1.5}, "lr_decay must be between 0 and 1, got 1.5"),
        ({"lr_milestones": [3, -1]}, "lr_milestones must be zero or positive, got -1"),
        ({"lr": 1e31}, r"lr must be at most 1e\+30, got 1e\+31"),
    ],
)
def test_a_learning_rate_that_can_only_grow_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(ER, **arguments)
    with pytest.raises(ConfigurationError, match="matching_momentum must be zero or above and below 1, got 1"):
        build(LoDM, memory=LowRankMemory(matching_momentum=1))


@pytest.mark.parametrize(
    ("mean", "std"), [(math.inf, 1.0), (math.nan, 1.0), (0.5, math.inf), (0.5, math.nan), (0.5, 0)]
)
def test_mean_and_std_must_be_finite_and_std_positive(mean: float, std: float) -> None:
    with pytest.raises(ConfigurationError, match="(mean|std) must be"):
        ImageTransform((0.5, mean), (1.0, std))

    class Spoilt(TinySequence):
        pass

    Spoilt.mean, Spoilt.std = (mean,), (std,)
    with pytest.raises(ConfigurationError, match="(mean|std) must be"):
        Spoilt()


def test_a_divergence_is_read_from_the_traceback_of_another_process() -> None:
    traceback = "Traceback:\n  File x\nddn_lightning.errors.DivergenceError: loss became nan\n"
    assert str(DivergenceError.from_traceback(traceback)) == "loss became nan"
    assert DivergenceError.from_traceback("ValueError: DivergenceError") is None


CHOICES = [
    (ddn_lightning.DataDistillNet, {"lookahead": "exat"}),
    (ddn_lightning.DataDistillNet, {"memory": "odl"}),
    (ddn_lightning.LabelSmoothing, {"compose": "adds"}),
    (ddn_lightning.LabelNoise, {"kind": "symetric"}),
    (ddn_lightning.CLSER, {"evaluate": "stabel"}),
    (ddn_lightning.MKD, {"evaluate": "averge"}),
    (ddn_lightning.ER, {"running_statistics": "al"}),
    (ddn_lightning.ER, {"gradient_clip_algorithm": "nrom"}),
    (LowRankMemory, {"init": "reel"}),
]


@pytest.mark.parametrize(("built", "argument"), CHOICES)
def test_a_misspelt_choice_is_refused_with_the_choices(built: type, argument: dict[str, Any]) -> None:
    ((name, value),) = argument.items()
    with pytest.raises(ConfigurationError, match=rf"^{name} must be one of .*, got '{value}'$"):
        construct(built, **argument)


@pytest.mark.parametrize(
    ("built", "argument"),
    [
        (ER, {"buffer_size": 10.5}),
        (ER, {"replay_steps": 1.5}),
        (ER, {"replay_batch_size": 3.0}),
        (TinySequence, {"epochs_per_task": 1.5}),
        (TinySequence, {"batch_size": 16.5}),
        (ddn_lightning.DataDistillNet, {"hidden_dim": 20.5}),
        (ddn_lightning.DataDistillNet, {"update_every": 1.5}),
    ],
)
def test_a_fraction_is_no_number_of_things(built: type, argument: dict[str, Any]) -> None:
    ((name, value),) = argument.items()
    with pytest.raises(ConfigurationError, match=rf"^{name} must be a whole number, got {value}$"):
        construct(built, **argument)
