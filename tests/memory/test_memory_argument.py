"""A method takes a memory that fits it, or says in one line why not."""

from pathlib import Path

import pytest
from every_method import SaveAlways
from tiny import Fit, small_net

from ddn_lightning import (
    ER,
    LUCIR,
    BiC,
    ClassBalancedReservoir,
    ConfigurationError,
    DataDistillNet,
    Finetune,
    ICaRL,
    Joint,
    LoDM,
    LowRankMemory,
    Memory,
    Mnemonics,
    ReplayMethod,
    ReservoirBuffer,
    RingBuffer,
)


def er(memory: Memory | None = None, **arguments: object) -> ER:
    return ER(small_net(), num_classes=6, memory=memory, **{"buffer_size": 30, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", ["RingBuffer", RingBuffer, 50])
def test_what_is_no_memory_is_refused(memory: object) -> None:
    with pytest.raises(ConfigurationError, match="memory of ER must be an object of class Memory, got .*(Ring|50)"):
        er(memory)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="distiller must be an object of class LabelDistiller, got"):
        er(distiller=memory)


@pytest.mark.parametrize(
    ("method", "memory", "kind"), [(LoDM, RingBuffer, "LowRankMemory"), (Mnemonics, LowRankMemory, "SlotBuffer")]
)
def test_a_method_that_needs_its_own_kind_of_memory_names_it(
    method: type[ReplayMethod], memory: type[Memory], kind: str
) -> None:
    expected = f"memory of {method.__name__} must be an object of class {kind}, got a {memory.__name__}"
    with pytest.raises(ConfigurationError, match=expected):
        method(small_net(), num_classes=6, memory=memory(40))


@pytest.mark.parametrize("method", [ICaRL, LUCIR, BiC, Finetune, Joint])
def test_a_method_that_does_not_replay_takes_no_memory(method: type[ReplayMethod]) -> None:
    with pytest.raises(ConfigurationError, match=f"{method.__name__} cannot take a memory: it does not replay"):
        method(small_net(), num_classes=6, memory=RingBuffer())


def test_a_memory_or_distiller_belongs_to_one_method() -> None:
    memory, distiller = RingBuffer(), DataDistillNet()
    er(memory, distiller=distiller)
    with pytest.raises(
        ConfigurationError, match="memory of ER must be a new one, got the RingBuffer of another method"
    ):
        er(memory)
    with pytest.raises(ConfigurationError, match="distiller must be a new one, got the DataDistillNet of another"):
        er(distiller=distiller)


def test_a_refused_method_leaves_its_memory_free() -> None:
    memory = LowRankMemory()
    with pytest.raises(ConfigurationError, match="buffer_size must be positive"):
        er(memory, buffer_size=-1)
    assert er(memory).memory is memory


def test_the_size_of_the_memory_is_the_one_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    method = er(RingBuffer(60))
    assert capsys.readouterr().err == "note: the memory has 60 slots, its own buffer_size, not the 30 of the method\n"
    assert method.buffer_size == method.hparams["buffer_size"] == method.hparams_initial["buffer_size"] == 60
    same = ER(small_net(), num_classes=6, memory=RingBuffer(60))  # no other size was asked for
    assert same.hparams["buffer_size"] == same.hparams_initial["buffer_size"] == 60
    assert er(RingBuffer()).buffer_size == 30
    assert capsys.readouterr().err == ""


def test_a_ring_that_is_too_small_is_refused_before_the_first_step(fit: Fit) -> None:
    for memory, expected in (
        (RingBuffer(5), "buffer_size must give each of 6 classes a slot, got 5"),
        (RingBuffer(num_classes=3), "num_classes of RingBuffer must be at least the method's 6, got 3"),
        (LowRankMemory(1), "buffer_size must have room for an image of rank 2 of each of 6 classes, got 1"),
    ):
        method = er(memory)
        with pytest.raises(ConfigurationError, match=expected):
            fit(lambda method=method: method)
        assert method.tasks_seen == 0


def test_slots_that_a_ring_leaves_empty_are_noted(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    fit(lambda: er(RingBuffer(), buffer_size=20), max_steps=1)
    assert "note: RingBuffer leaves 2 of 20 slots empty: 6 classes get equally many" in capsys.readouterr().err
    fit(lambda: er(RingBuffer(), buffer_size=18), max_steps=1)
    assert "RingBuffer leaves" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (RingBuffer, ReservoirBuffer, "the checkpoint's memory is a RingBuffer, got a ReservoirBuffer"),
        (ReservoirBuffer, ClassBalancedReservoir, "the checkpoint's memory is a ReservoirBuffer, got a ClassBal"),
        (LowRankMemory, ReservoirBuffer, "the checkpoint's memory is a LowRankMemory, got a ReservoirBuffer"),
        (
            RingBuffer,
            lambda: RingBuffer(num_classes=7),
            r"the checkpoint's memory is a RingBuffer with other arguments, got num_classes=7 \(was None\)",
        ),
    ],
)
def test_another_memory_than_the_checkpoints_is_refused(
    fit: Fit, before: type[Memory], after: type[Memory], message: str, tmp_path: Path
) -> None:
    fit(lambda: er(before()), enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)], max_steps=1)
    with pytest.raises(ConfigurationError, match=message):
        fit(lambda: er(after()), ckpt_path=tmp_path / "step1.ckpt")


def test_a_memory_that_learns_images_goes_on_with_another_learning_rate(fit: Fit, tmp_path: Path) -> None:
    def lodm(lr: float) -> LoDM:
        return LoDM(small_net(), num_classes=6, memory=LowRankMemory(matching_width=4, matching_lr=lr))

    fit(lambda: lodm(0.1), enable_checkpointing=True, callbacks=[SaveAlways(tmp_path)], max_steps=1)
    assert fit(lambda: lodm(0.01), ckpt_path=tmp_path / "step1.ckpt").tasks_finished == 3
