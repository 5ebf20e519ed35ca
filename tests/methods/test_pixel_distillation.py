"""Mnemonics and whole-buffer distillation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Trainer, seed_everything
from tiny import DropoutNet, Fit, TinySequence, small_net
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from ddn_lightning import (
    ER,
    ConfigurationError,
    ImageTransform,
    Mnemonics,
    PixelDistillation,
    ReplayMethod,
    Samples,
    WholeBufferDistillation,
)

BOTH = pytest.mark.parametrize("method_class", [Mnemonics, WholeBufferDistillation])


def test_raw_images_survive_normalisation() -> None:
    transform = ImageTransform(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2615))
    images = torch.arange(256, dtype=torch.uint8).repeat(1, 3, 1).unflatten(2, (16, 16))
    assert torch.equal(transform.undo(transform(images)), images)
    assert transform.undo(transform(images) + 100).eq(255).all()


@BOTH
def test_zero_steps_equal_experience_replay(fit: Fit, method_class: type[PixelDistillation]) -> None:
    plain = fit(lambda: ER(small_net(), num_classes=6, buffer_size=10))
    idle = fit(lambda: method_class(small_net(), num_classes=6, buffer_size=10, distillation_steps=0))
    assert torch.allclose(plain.head.weight, idle.head.weight, atol=1e-6)
    every = torch.arange(10)
    assert torch.equal(plain.memory[every].images, idle.memory[every].images)


@BOTH
def test_only_the_chosen_images_are_learned(fit: Fit, method_class: type[PixelDistillation]) -> None:
    changed: list[set[int]] = []

    class Watch(method_class):  # type: ignore[misc,valid-type]
        def end_task(self) -> None:
            before, streams = self.memory[torch.arange(len(self.memory))], self.memory.generator.get_state()
            weights = [p.detach().clone() for p in self.parameters()]
            super().end_task()
            after = self.memory[torch.arange(len(self.memory))]
            assert torch.equal(before.labels, after.labels)
            assert torch.equal(streams, self.memory.generator.get_state())
            assert all(torch.equal(*pair) for pair in zip(weights, self.parameters(), strict=True))
            is_changed = (before.images != after.images).flatten(1).any(1)
            changed.append(set(after.tasks[is_changed].tolist()))

    options = {"buffer_size": 20, "lr": 0.1, "distillation_steps": 10}
    fit(lambda: Watch(small_net(), num_classes=6, **options), TinySequence(batch_size=4))
    whole = method_class is WholeBufferDistillation
    assert changed == [{0}, {0, 1} if whole else {1}, {0, 1, 2} if whole else {2}]


def unrolled(method: PixelDistillation, images: Tensor, labels: Tensor, outer: list[Samples]) -> Tensor:
    """The outer loss after a step that autograd can differentiate."""
    parameters = dict(method.network.named_parameters())
    labels = labels / labels.sum(1, keepdim=True)
    log_p = functional_call(method.network, parameters, (images,)).log_softmax(1)
    gradients = torch.autograd.grad(-(labels * log_p).sum(1).mean(), list(parameters.values()), create_graph=True)
    moved = {name: p - method.lr * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
    losses = [functional.cross_entropy(functional_call(method.network, moved, (o.images,)), o.labels) for o in outer]
    return torch.stack(losses).sum()


def test_pixels_and_labels_follow_the_gradient_through_the_virtual_step() -> None:
    method = WholeBufferDistillation(small_net(), num_classes=6, lr=0.1).double()
    images = torch.randn(5, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    hard = torch.randint(6, (5,))
    labels = (functional.one_hot(hard, 6).double() / 2 + 1 / 12).requires_grad_()
    outer = [Samples(torch.randn(n, 1, 8, 8, dtype=torch.float64), torch.randint(6, (n,))) for n in (4, 7)]
    method.learned_labels = labels
    surrogate = method._surrogate(Samples(images, hard, slots=torch.arange(5)), outer)
    found = torch.autograd.grad(surrogate, [images, labels])
    expected = torch.autograd.grad(unrolled(method, images, labels, outer), [images, labels])
    for one, other in zip(found, expected, strict=True):
        assert other.norm() > 0
        assert (one - other).norm() / other.norm() < 1e-10


@BOTH
def test_learning_lowers_the_outer_loss(fit: Fit, method_class: type[PixelDistillation]) -> None:
    losses: list[tuple[float, float]] = []

    class Watch(method_class):  # type: ignore[misc,valid-type]
        def loss_after_a_step(self, slots: Tensor) -> float:
            held = self.memory[slots]
            images = self.transform(held.images)
            labels = functional.one_hot(held.labels, 6).float()
            if method_class is WholeBufferDistillation and hasattr(self, "is_done"):
                labels = self.soft_labels[slots]
            data = self.sequence.training_samples(self.task)
            return unrolled(self, images, labels, [Samples(self.transform(data.images), data.labels)]).item()

        def end_task(self) -> None:
            slots = self.slots_to_learn()
            before = self.loss_after_a_step(slots)
            super().end_task()
            self.is_done = True
            losses.append((before, self.loss_after_a_step(slots)))
            del self.is_done

    fit(lambda: Watch(small_net(), num_classes=6, lr=0.1, distillation_steps=20), TinySequence(batch_size=4))
    before, after = losses[0]
    assert after < before


@BOTH
def test_by_default_pixels_change_visibly(fit: Fit, method_class: type[PixelDistillation]) -> None:
    changes: list[float] = []

    class Watch(method_class):  # type: ignore[misc,valid-type]
        def end_task(self) -> None:
            slots = self.slots_to_learn()
            before = self.memory[slots].images.float()
            super().end_task()
            changes.append((self.memory[slots].images.float() - before).abs().mean().item())

    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=20), TinySequence(batch_size=4))
    assert min(changes) > 5  # grey levels; an image that is in each of the 50 steps may change by 32
    assert max(changes) < 32


@BOTH
def test_inner_and_outer_batches_have_the_expected_samples(fit: Fit, method_class: type[PixelDistillation]) -> None:
    """Inner: stored images, in evaluation mode. Outer: the task's data and, for Eq. 4, stored samples of old tasks."""
    outer_classes: dict[int, list[set[int]]] = {}

    class Watch(method_class):  # type: ignore[misc,valid-type]
        def _surrogate(self, inner: Samples, outer: list[Samples]) -> Tensor:
            black, white = (self.transform(torch.full((1, 1, 8, 8), v, dtype=torch.uint8)) for v in (0, 255))
            assert (inner.images >= black).all()
            assert (inner.images <= white).all()
            found = outer_classes.setdefault(self.task, [set() for _ in outer])
            for classes, part in zip(found, outer, strict=True):
                classes.update(part.labels.tolist())
            return super()._surrogate(inner, outer)

        def inner_losses(self, logits: Tensor, samples: Samples) -> Tensor:
            assert not self.backbone.training
            return super().inner_losses(logits, samples)

    options = {"buffer_size": 20, "lr": 0.1, "distillation_lr": 0.5, "distillation_steps": 10}
    fit(lambda: Watch(DropoutNet(), num_classes=6, **options), TinySequence(batch_size=4))
    if method_class is Mnemonics:
        assert outer_classes == {0: [{0, 1}], 1: [{2, 3}], 2: [{4, 5}]}
    else:
        assert outer_classes == {0: [{0, 1}], 1: [{2, 3}, {0, 1}], 2: [{4, 5}, {0, 1, 2, 3}]}


def test_a_compiled_network_is_differentiated_in_eager_mode() -> None:
    method = Mnemonics(small_net(), num_classes=6, lr=0.1)
    images = torch.randn(5, 1, 8, 8, requires_grad=True)
    inner = Samples(images, torch.randint(6, (5,)), slots=torch.arange(5))
    outer = [Samples(torch.randn(4, 1, 8, 8), torch.randint(6, (4,)))]
    (plain,) = torch.autograd.grad(method._surrogate(inner, outer), images)
    method.backbone.compile(backend="aot_eager")
    method(images)
    (compiled,) = torch.autograd.grad(method._surrogate(inner, outer), images)
    assert torch.equal(plain, compiled)


@BOTH
def test_a_low_precision_is_refused(fit: Fit, method_class: type[PixelDistillation]) -> None:
    with pytest.raises(
        ConfigurationError, match=f"precision must be one of .* with {method_class.__name__}.*bf16-true"
    ):
        fit(lambda: method_class(small_net(), num_classes=6), precision="bf16-true")


@settings(deadline=None, max_examples=5)
@given(st.integers(1, 40), st.integers(0, 3), st.sampled_from([Mnemonics, WholeBufferDistillation]))
def test_the_memory_never_exceeds_its_budget(buffer_size: int, steps: int, method_class: type[ReplayMethod]) -> None:
    held = []

    class Watch(method_class):  # type: ignore[misc,valid-type]
        def on_train_batch_end(self, *args: object) -> None:
            super().on_train_batch_end(*args)
            samples = self.memory[torch.arange(len(self.memory))]
            assert samples.images.dtype == torch.uint8
            assert len(samples) <= buffer_size
            held.append(len(samples))

    seed_everything(0, verbose=False)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(**quiet, enable_model_summary=False, accelerator="cpu", max_epochs=-1)  # type: ignore[arg-type]
    trainer.fit(
        Watch(small_net(), num_classes=6, buffer_size=buffer_size, distillation_steps=steps),
        TinySequence(batch_size=12),
    )
    assert held[-1] == buffer_size


def test_soft_labels_are_distributions_and_replayed_once_their_task_has_ended(fit: Fit) -> None:
    class Watch(WholeBufferDistillation):
        def replay_losses(self, logits: Tensor, replayed: Samples) -> Tensor:
            losses = super().replay_losses(logits, replayed)
            hard = functional.cross_entropy(logits, replayed.labels, reduction="none")
            soft = -(self.soft_labels[replayed.slots] * logits.log_softmax(1)).sum(1)
            assert torch.allclose(losses, torch.where(replayed.tasks < self.task, soft, hard), atol=1e-6)
            return losses

        def end_task(self) -> None:
            super().end_task()
            labels = self.soft_labels[: len(self.memory)]
            assert torch.allclose(labels.sum(1), torch.ones(len(labels)), atol=1e-5)
            assert (labels >= 0).all()
            assert not hasattr(self, "learned_labels")

    options = {"buffer_size": 20, "lr": 0.1, "distillation_steps": 10}
    method = fit(lambda: Watch(small_net(), num_classes=6, **options), TinySequence(batch_size=4))
    assert isinstance(method, WholeBufferDistillation)
    assert (method.soft_labels.max(1).values < 1).any()
