import pytest
import torch
from tiny import Fit, TinySequence, small_net
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning import BiC, ConfigurationError, FewShot, Samples
from ddn_lightning.methods.bic import learn_correction


def method_in_task(task: int, **arguments: object) -> BiC:
    method = BiC(small_net(), num_classes=6, **arguments)  # type: ignore[arg-type]
    method.progress.begin(task)
    method.is_old_class[: 2 * task] = True
    method.is_seen_class[: 2 * task + 2] = True
    nn.init.normal_(method.old_network.head.weight)
    method.correction_scale[2 * task - 2 : 2 * task] = 0.7
    method.correction_shift[2 * task - 2 : 2 * task] = -0.3
    return method


@pytest.mark.parametrize(("distillation_weight", "expected"), [("paper", 4 / 6), ("lineage", 1 / 3)])
def test_the_loss_against_a_computation_by_sample(distillation_weight: str, expected: float) -> None:
    method = method_in_task(2, distillation_weight=distillation_weight, temperature=3.0)
    current = Samples(torch.randn(7, 1, 8, 8), torch.tensor([0, 1, 2, 3, 4, 5, 5]))
    logits, old = method(current.images), method.old_network(current.images)
    labels, distilled = [], []
    for row, label in enumerate(current.labels.tolist()):
        labels.append(-(logits[row].exp() / logits[row].exp().sum()).log()[label])
        teacher = torch.stack([old[row, 0], old[row, 1], 0.7 * old[row, 2] - 0.3, 0.7 * old[row, 3] - 0.3]) / 3
        student = logits[row, :4] / 3
        p, q = teacher.exp() / teacher.exp().sum(), student.exp() / student.exp().sum()
        distilled.append(-(p * q.log()).sum())
    reference = (1 - expected) * torch.stack(labels).mean() + expected * 9 * torch.stack(distilled).mean()
    assert torch.allclose(method.current_loss(current).total, reference, atol=1e-5)


def test_future_classes_get_no_gradient() -> None:
    method = method_in_task(1)
    current = Samples(torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 3]))
    (gradient,) = torch.autograd.grad(method.current_loss(current).total, method.head.weight)
    assert (gradient[4:] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("scale", "shift"), [(2.0, 1.5), (0.6, -1.0), (1.0, 0.0)])
def test_the_correction_undoes_a_known_bias(scale: float, shift: float) -> None:
    """Labels are drawn from the unbiased outputs' softmax, so that the true correction is the best one."""
    unbiased = 2 * torch.randn(6000, 6)
    labels = torch.multinomial(unbiased.softmax(1), 1).squeeze(1)
    is_new = torch.tensor([False, True, False, False, True, False])
    biased = torch.where(is_new, (unbiased - shift) / scale, unbiased)
    batches = [torch.arange(6000)] * 300
    found = learn_correction(biased, labels, is_new, batches, lr=0.03)
    assert found.tolist() == pytest.approx([scale, shift], abs=0.15)


def test_the_default_correction_is_long_enough_where_an_epoch_is_one_batch() -> None:
    method = BiC(small_net(), num_classes=6)
    unbiased = 2 * torch.randn(2000, 6)
    labels = torch.multinomial(unbiased.softmax(1), 1).squeeze(1)
    is_new = torch.tensor([False, False, False, False, True, True])
    batches = [torch.arange(2000)] * method.correction_epochs
    biased = unbiased + 1.5 * is_new
    scale, shift = learn_correction(biased, labels, is_new, batches, method.correction_lr)
    corrected = torch.where(is_new, scale * biased + shift, biased)
    losses = [functional.cross_entropy(outputs, labels).item() for outputs in (unbiased, corrected, biased)]
    assert losses[1] - losses[0] < 0.1 * (losses[2] - losses[0])


def test_held_out_samples_are_balanced_and_never_trained_on(fit: Fit) -> None:
    trained: dict[int, list[Tensor]] = {}
    held_out: dict[int, Samples] = {}

    class Watch(BiC):
        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            trained.setdefault(self.task, []).append(batch.images.clone())
            return super().training_step(batch, batch_index)

        def outputs_of(self, module: nn.Module, samples: Samples) -> Tensor:
            held_out[self.task] = samples
            return super().outputs_of(module, samples)

    sequence = TinySequence(batch_size=6, epochs_per_task=2, drop_last=False)
    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=22, held_out_fraction=0.3), sequence)
    assert held_out[1].labels.bincount().tolist() == [3, 3, 3, 3]  # of 11 exemplars per class
    assert held_out[2].labels.bincount().tolist() == [2, 2, 2, 2, 2, 2]  # of 5
    for task, samples in held_out.items():
        images = torch.cat(trained[task])
        assert not any((images == image).flatten(1).all(1).any() for image in samples.images)
        assert len(images) == 2 * (24 + {1: 22, 2: 20}[task] - len(samples))


def test_classes_with_few_samples_are_trained_too(fit: Fit) -> None:
    trained: dict[int, set[int]] = {}

    class Watch(BiC):
        def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
            trained.setdefault(self.task, set()).update(batch.labels.tolist())
            return super().training_step(batch, batch_index)

    sequence = TinySequence(batch_size=6, drop_last=False, stream=FewShot(shots=3))
    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=60, held_out_fraction=0.3), sequence)
    assert trained == {0: {0, 1}, 1: {0, 1, 2, 3}, 2: set(range(6))}


def test_only_the_last_tasks_classes_are_corrected_and_not_within_a_task() -> None:
    method = method_in_task(1)
    images = torch.randn(3, 1, 8, 8)
    logits = method(images)
    assert torch.equal(method.class_scores(images)[:, :4], logits[:, :4])
    method.progress.tasks_finished = 2
    scores = method.class_scores(images)
    assert torch.allclose(scores[:, :2], 0.7 * logits[:, :2] - 0.3)
    assert torch.equal(scores[:, 2:4], logits[:, 2:4])
    assert (scores[:, 4:] < -1e30).all()


def test_each_task_learns_a_correction_of_its_own_classes_alone(fit: Fit) -> None:
    corrected = []

    class Watch(BiC):
        def end_task(self) -> None:
            super().end_task()
            is_changed = (self.correction_scale != 1) & (self.correction_shift != 0)
            assert torch.equal(is_changed, (self.correction_scale != 1) | (self.correction_shift != 0))
            corrected.append(is_changed.nonzero().flatten().tolist())

    sequence = TinySequence(batch_size=6, class_order_seed=3)
    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=20, correction_epochs=3), sequence)
    assert corrected == [[], *(classes.sort().values.tolist() for classes in sequence.task_classes[1:])]


def test_too_few_exemplars_to_hold_out_leave_outputs_uncorrected(fit: Fit) -> None:
    method = fit(lambda: BiC(small_net(), num_classes=6, buffer_size=6), TinySequence(num_tasks=2, batch_size=6))
    assert method.exemplars.samples.labels.tolist() == list(range(6))
    fit(lambda: BiC(small_net(), num_classes=6, buffer_size=7, correction_epochs=1), TinySequence(batch_size=6))


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_held_out_fraction_of_0_or_1_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigurationError, match=f"held_out_fraction must be above 0 and below 1, got {fraction}"):
        BiC(small_net(), num_classes=6, held_out_fraction=fraction)
