"""A finished run goes on with further tasks: the head grows; memory, random streams, G and the matrix go on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import METHODS, SaveAlways, build
from lightning.pytorch import seed_everything
from test_resume import outcome
from tiny import Fit, MakeTrainer, TinyPart, TinySequence, small_net

import ddn_lightning
from ddn_lightning import (
    CLSER,
    ER,
    ERACE,
    BiasAdaptor,
    ConfigurationError,
    DataDistillNet,
    DERPlusPlus,
    Joint,
    LabelDistiller,
    LearnedLabels,
    PermutedPixels,
    ReplayMethod,
    RingBuffer,
    Samples,
    TaskSequence,
)
from ddn_lightning.checkpoint.growth import grow_moments
from ddn_lightning.networks.gradients import evaluating
from study.other_readings import FreeShare

Make = Callable[[], ReplayMethod]
LEARNERS = [(ER, None), (DERPlusPlus, None), (CLSER, None), (ERACE, None), (ER, DataDistillNet), (ER, BiasAdaptor)]


def new_classes() -> tuple[TaskSequence, TaskSequence, TaskSequence]:
    """All tasks, the first three of them, and those after that three tasks were learned."""
    return TinyPart((0, 10)), TinyPart((0, 6)), TinyPart((0, 6)).followed_by(TinyPart((6, 10)))


def new_domains() -> tuple[TaskSequence, TaskSequence, TaskSequence]:
    def domains(number: int) -> TinySequence:
        return TinySequence(num_tasks=number, batch_size=12, stream=PermutedPixels())

    return domains(5), domains(3), domains(3).followed_by(domains(2))


def finished(fit: Fit, make: Make, sequence: TaskSequence, path: Path) -> Path:
    fit(make, sequence).trainer.save_checkpoint(path)
    return path


def of_all(path: Path, make_trainer: MakeTrainer, sequence: TaskSequence, **arguments: Any) -> ReplayMethod:
    """The method loaded from a checkpoint, after it has gone on."""
    seed_everything(99, verbose=False)
    method = ddn_lightning.load(path)
    assert isinstance(method, ReplayMethod)
    make_trainer(**arguments).fit(method, sequence)
    return method


@pytest.mark.parametrize(("method_class", "distiller_class"), LEARNERS)
@pytest.mark.parametrize("sequences", [new_classes, pytest.param(new_domains, marks=pytest.mark.slow)])
def test_three_tasks_and_then_two_equal_five_in_one_run(
    fit: Fit,
    make_trainer: MakeTrainer,
    method_class: type[ReplayMethod],
    distiller_class: type[LabelDistiller] | None,
    sequences: Callable[[], tuple[TaskSequence, TaskSequence, TaskSequence]],
    tmp_path: Path,
) -> None:
    def make() -> ReplayMethod:
        return build(method_class, distiller_class, momentum=0.9, num_classes=10)

    whole, first, _ = sequences()
    expected = outcome(fit(make, whole))
    path = finished(fit, make, first, tmp_path / "first.ckpt")
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    grown = fit(make, sequences()[2], ckpt_path=path, seed=9, **saving)
    assert difference(outcome(grown), expected) is None
    stop = min(int(file.stem[4:]) for file in tmp_path.glob("step*.ckpt")) + 2
    resumed = fit(make, sequences()[2], ckpt_path=tmp_path / f"step{stop}.ckpt", seed=7)
    assert difference(outcome(resumed), expected) is None


def test_new_domains_equal_five_in_one_run_and_a_loaded_method_goes_on_by_itself(
    fit: Fit, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    def make() -> ReplayMethod:
        return build(ER, DataDistillNet, momentum=0.9)

    whole, first, grown = new_domains()
    expected = outcome(fit(make, whole))
    path = finished(fit, make, first, tmp_path / "first.ckpt")
    assert difference(outcome(of_all(path, make_trainer, grown)), expected) is None


def test_a_new_method_learns_a_grown_sequence_as_a_single_one(fit: Fit) -> None:
    whole, _, grown = new_classes()
    one, other = (fit(lambda: build(ER, num_classes=10), data) for data in (whole, grown))
    assert difference(outcome(one), outcome(other)) is None


FAST = (
    ddn_lightning.BiC,
    CLSER,
    DERPlusPlus,
    ERACE,
    ddn_lightning.GDumb,
    ddn_lightning.ICaRL,
    ddn_lightning.LODE,
    ddn_lightning.LUCIR,
    ddn_lightning.MKD,
    ddn_lightning.SCR,
    ddn_lightning.SI,
    ddn_lightning.XDER,
)  # with parts of their own
GROWING = [
    pytest.param(one, marks=[] if one in FAST else [pytest.mark.slow]) for one in METHODS if not issubclass(one, Joint)
]


@pytest.mark.parametrize("method_class", GROWING)
def test_every_method_gets_outputs_for_new_classes_and_learns_them(
    fit: Fit, make_trainer: MakeTrainer, method_class: type[ReplayMethod], tmp_path: Path
) -> None:
    """Whether it is loaded with the old outputs or made with all of them; stopped and resumed or not."""
    path = finished(fit, lambda: build(method_class, momentum=0.9), TinyPart((0, 6)), tmp_path / "first.ckpt")

    def make() -> ReplayMethod:
        return build(method_class, momentum=0.9, num_classes=10)

    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    grown = fit(make, new_classes()[2], ckpt_path=path, **saving)
    assert grown.is_seen_class.all()
    assert not grown.accuracy_matrix.diagonal().isnan().any()
    before = torch.load(path)["state_dict"]["_extra_state"]["progress"]["accuracy_matrix"]
    assert torch.equal(grown.accuracy_matrix[:3, :3].nan_to_num(), before.nan_to_num())
    if method_class.__module__.startswith("ddn_lightning"):
        assert difference(outcome(of_all(path, make_trainer, new_classes()[2])), outcome(grown)) is None
    stop = sorted(tmp_path.glob("step*.ckpt"))[3]
    assert difference(outcome(fit(make, new_classes()[2], ckpt_path=stop, seed=7)), outcome(grown)) is None


def test_old_outputs_are_the_same_before_the_first_step(fit: Fit, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    class Look(ER):
        def on_train_start(self) -> None:
            super().on_train_start()
            with evaluating(self):
                self.found = self(self.normalised(images))

    Look.__name__ = "ER"
    images = torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8)
    path = finished(
        fit, lambda: ER(small_net(), num_classes=6, buffer_size=9), TinyPart((0, 6)), tmp_path / "first.ckpt"
    )
    grown = fit(lambda: Look(small_net(), num_classes=10, buffer_size=9), new_classes()[2], ckpt_path=path)
    first = ddn_lightning.load(path)
    with torch.no_grad():
        outputs = first(first.normalised(images))  # of a smaller product, whose kernel may round otherwise
    assert torch.allclose(grown.found[:, :6], outputs, rtol=0, atol=1e-6)
    assert len(grown.found[:, 6:].unique()) == 28


@pytest.mark.parametrize("distiller", [DataDistillNet, LearnedLabels])
def test_labels_of_known_classes_do_not_change_and_new_ones_can_learn(distiller: type[LabelDistiller]) -> None:
    method = ER(small_net(), num_classes=6, buffer_size=8, distiller=distiller())
    samples = Samples(torch.zeros(8, 1, 8, 8), torch.arange(8) % 6, slots=torch.arange(8))
    known = torch.rand(8, 6).softmax(dim=1)
    method.distiller.load_state_dict(
        {
            name: 0.1 * torch.randn_like(value) if value.is_floating_point() else value
            for name, value in method.distiller.state_dict().items()
            if torch.is_tensor(value)
        },
        strict=False,
    )
    before = method.distiller.soft_labels(samples, known)
    method.grow(9)
    labels = method.distiller.soft_labels(samples, torch.cat([known, torch.zeros(8, 3)], dim=1))
    assert (labels[:, :6] - before).abs().max() < 1e-6
    assert (labels[:, 6:] > 0).all()
    assert (labels[:, 6:] < 1e-6).all()


def test_the_correction_of_known_classes_does_not_change_and_new_ones_have_none() -> None:
    method = ER(small_net(), num_classes=6, buffer_size=8, distiller=BiasAdaptor())
    known = torch.rand(8, 6).softmax(dim=1)
    before = method.distiller.correction(known).detach()
    method.grow(9)
    after = method.distiller.correction(torch.cat([known, torch.zeros(8, 3)], dim=1))
    assert (after[:, :6] - before).abs().max() < 1e-6
    assert (after[:, 6:] == 0).all()
    after[:, 6:].sum().backward()
    assert method.distiller.adaptor[-1].weight.grad[6:].any()


def test_stored_logits_call_no_new_class_likelier_than_a_known_one(fit: Fit, tmp_path: Path) -> None:
    class Look(DERPlusPlus):
        def on_train_start(self) -> None:
            super().on_train_start()
            self.held = self.memory[self.memory.slots].logits.clone()

    Look.__name__ = "DERPlusPlus"
    path = finished(fit, lambda: build(DERPlusPlus), TinyPart((0, 6)), tmp_path / "first.ckpt")
    held = fit(lambda: build(Look, num_classes=10), new_classes()[2], ckpt_path=path).held
    before = torch.load(path)["ddn_lightning"]["parts"]["memory"]["contents"]["logits"]
    assert torch.equal(held[:, :6], before)
    assert torch.equal(held[:, 6:], before.min(dim=1, keepdim=True).values.expand(-1, 4))


def test_moments_of_new_parameters_are_zero_and_the_others_stay() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    small = torch.optim.Adam([weight])
    weight.grad = torch.ones(2, 3)
    small.step()
    states = [small.state_dict()]
    large = torch.optim.Adam([torch.nn.Parameter(torch.ones(4, 3))])
    grow_moments(states, [large])
    moments = states[0]["state"][0]
    assert moments["step"] == 1
    assert moments["exp_avg"].shape == (4, 3)
    assert moments["exp_avg"][:2].min() > 0
    assert moments["exp_avg"][2:].abs().max() == 0


@pytest.mark.parametrize("num_classes", [6, 10])
def test_two_ranks_grow_as_one(fit: Fit, make_trainer: MakeTrainer, num_classes: int, tmp_path: Path) -> None:
    path = tmp_path / "first.ckpt"
    finished(fit, lambda: build(ER, DataDistillNet, small_net()).double(), TinyPart((0, 6)), path)

    def grown(**arguments: Any) -> ReplayMethod:
        seed_everything(0, verbose=False)
        loaded = (
            ddn_lightning.load(path) if num_classes == 6 else build(ER, DataDistillNet, small_net(), num_classes=10)
        )
        make_trainer(**arguments).fit(loaded.double(), new_classes()[2], ckpt_path=None if num_classes == 6 else path)
        return loaded

    one, two = grown(), grown(devices=2, strategy="ddp_fork")
    for name, parameter in one.named_parameters():
        assert (parameter - two.get_parameter(name)).abs().max() < 1e-9, name
    assert torch.equal(one.accuracy_matrix.nan_to_num(), two.accuracy_matrix.nan_to_num())


def test_a_run_that_is_not_finished_cannot_grow(fit: Fit, tmp_path: Path) -> None:
    fit(lambda: build(ER), TinyPart((0, 6)), max_steps=3).trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    with pytest.raises(ConfigurationError, match="only a finished run can go on .* has learned 1 of its 3 tasks"):
        fit(lambda: build(ER, num_classes=10), new_classes()[2], ckpt_path=tmp_path / "stopped.ckpt")


class OtherData(TinyPart):
    def load(self, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().load(train)
        return images.flip(3), labels


@pytest.mark.parametrize(
    ("make", "grown", "message"),
    [
        (ER, lambda: OtherData((0, 6)).followed_by(TinyPart((6, 10))), "the train images must be those of the checkp"),
        (ER, lambda: TinyPart((2, 8)).followed_by(TinyPart((8, 10))), "class_names must be those of the checkpoint"),
        (
            ER,
            lambda: TinyPart((0, 4)).followed_by(TinyPart((4, 10))),
            "expected a checkpoint for 10 classes, got one fo",
        ),
        (ER, lambda: TinyPart((0, 10)), "expected a checkpoint for 10 classes, got one for 6"),
        (Joint, lambda: new_classes()[2], "Joint cannot go on with further tasks: it learns all tasks at once"),
        (
            lambda *_, **kwargs: ER(memory=RingBuffer(), **kwargs),
            lambda: new_classes()[2],
            "RingBuffer cannot go on with new classes",
        ),
        (
            lambda *_, **kwargs: ER(distiller=FreeShare(), **kwargs),
            lambda: new_classes()[2],
            "FreeShare cannot go on with new classes: its G is from",
        ),
        (
            ddn_lightning.ICaRL,
            lambda: TinyPart((0, 6)).followed_by(TinyPart((4, 10))),
            "ICaRL cannot learn .*, where a class comes in several tasks",
        ),
    ],
)
def test_what_cannot_go_on_says_why(
    fit: Fit, make: Callable[..., ReplayMethod], grown: Callable[[], TaskSequence], message: str, tmp_path: Path
) -> None:
    def method(num_classes: int) -> ReplayMethod:
        return make(backbone=small_net(), num_classes=num_classes, buffer_size=10)

    path = finished(fit, lambda: method(6), TinyPart((0, 6)), tmp_path / "first.ckpt")
    with pytest.raises(ConfigurationError, match=message):
        fit(lambda: method(10), grown(), ckpt_path=path)


def test_a_trained_method_needs_a_sequence_that_continues(fit: Fit, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    path = finished(fit, lambda: build(ER), TinyPart((0, 6)), tmp_path / "first.ckpt")
    with pytest.raises(ConfigurationError, match="trained already, up to task 3.*a sequence that continues"):
        make_trainer().fit(ddn_lightning.load(path), TinyPart((0, 6)))
    with pytest.raises(ConfigurationError, match="num_classes must be the 10 of GrownSequence, or more, got 6"):
        make_trainer().fit(build(ER), new_classes()[2])


def test_spare_outputs_are_trained_predicted_with_and_loaded(fit: Fit, tmp_path: Path) -> None:
    path = finished(fit, lambda: build(ER, DataDistillNet, num_classes=8), TinyPart((0, 6)), tmp_path / "first.ckpt")
    loaded = ddn_lightning.load(path)
    assert loaded.label_names == (*(f"class {number}" for number in range(6)), "6", "7")
    found = loaded.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert found.probabilities.shape == (2, 8)
    assert not loaded.is_seen_class[6:].any()
