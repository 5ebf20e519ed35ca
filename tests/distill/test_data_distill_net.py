from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import METHODS, build
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from tiny import BatchNormNet, DropoutNet, Fit, MakeTrainer, TinySequence, random_samples, small_net
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ddn_lightning import (
    ER,
    GSS,
    Backbone,
    BilevelDistiller,
    ConfigurationError,
    DataDistillNet,
    Finetune,
    Joint,
    PixelDistillation,
    ReplayLoss,
    ReplayMethod,
    ResNet18,
    Samples,
    SmallNet,
    SplitDigits,
)
from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.hypergradient import FrozenNetwork

HOSTS = [method for method in METHODS if method.takes_distiller() and method.__module__ != "every_method"]


def built(num_classes: int = 6, **arguments: Any) -> DataDistillNet:
    distiller = DataDistillNet(**arguments)
    distiller.build(num_classes, buffer_size=10)
    return distiller


def probabilities(size: int) -> Tensor:
    return torch.randn(size, 6).softmax(1)


@pytest.mark.parametrize(("num_classes", "expected"), [(10, 44_410), (100, 80_500), (200, 120_600)])
def test_g_has_two_hidden_layers_of_200(num_classes: int, expected: int) -> None:
    assert sum(p.numel() for p in built(num_classes).generator_net.parameters()) == expected


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 1), st.integers(0, 2), st.floats(0.1, 30))
def test_labels_are_distributions_that_agree_with_the_hard_ones(beta: float, snapshots: int, scale: float) -> None:
    distiller = built(beta=beta)
    with torch.no_grad():
        for parameter in distiller.generator_net.parameters():
            parameter *= scale
    for _ in range(snapshots):
        distiller.snapshot()
    samples = random_samples(8)
    for labels_for in (distiller.soft_labels, distiller.labels_to_learn):
        labels = labels_for(samples, probabilities(8))
        assert torch.allclose(labels.sum(1), torch.ones(8), atol=1e-5)
        assert (labels >= 0).all()
        assert (labels.gather(1, samples.labels[:, None]) >= 0.5 - 1e-6).all()


def test_the_label_is_equation_8_plus_the_hard_label_normalised() -> None:
    distiller = built(beta=0.7)
    samples, p = random_samples(4), probabilities(4)
    hard = torch.eye(6)[samples.labels]
    new = distiller.generator_net(p).softmax(1)
    assert torch.allclose(distiller.soft_labels(samples, p), 0.5 * new + 0.5 * hard)  # there is no G_old yet
    distiller.snapshot()
    with torch.no_grad():
        distiller.generator_net[0].weight.mul_(3)
    new, old = distiller.generator_net(p).softmax(1), new.detach()
    expected = 0.5 * (0.3 * new + 0.7 * old) + 0.5 * hard
    assert torch.allclose(distiller.soft_labels(samples, p), expected)


def test_with_beta_1_the_classifier_gets_the_labels_of_g_old_alone() -> None:
    distiller = built(beta=1.0)
    distiller.snapshot()
    labels = distiller.soft_labels(random_samples(4), probabilities(4))
    gradients = torch.autograd.grad(
        (labels * torch.randn_like(labels)).sum(), list(distiller.generator_net.parameters())
    )
    assert all((gradient == 0).all() for gradient in gradients)


def test_building_draws_nothing_from_the_global_random_state() -> None:
    state = torch.get_rng_state()
    first, second = built(), built()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.generator_net[0].weight, second.generator_net[0].weight)
    torch.manual_seed(1)
    assert not torch.equal(first.generator_net[0].weight, built().generator_net[0].weight)


def trained(fit: Fit, method_class: type[ReplayMethod], distiller: Any) -> ReplayMethod:
    return fit(lambda: build(method_class, distiller))


@pytest.mark.parametrize("method_class", HOSTS)
def test_alpha_0_is_the_method_alone_bit_for_bit(fit: Fit, method_class: type[ReplayMethod]) -> None:
    alone = trained(fit, method_class, None)
    silent = trained(fit, method_class, lambda: DataDistillNet(alpha=0.0))
    plugged = trained(fit, method_class, DataDistillNet)
    state = {name: value for name, value in silent.state_dict().items() if not name.startswith("distiller")}
    assert state.keys() == alone.state_dict().keys()
    for name, value in alone.state_dict().items():
        if isinstance(value, Tensor):
            assert torch.equal(value.nan_to_num(), state[name].nan_to_num()), name
    assert not torch.equal(alone.head.weight, plugged.head.weight)
    for other in (silent, plugged):  # a distiller draws from streams of its own
        assert torch.equal(alone.memory.generator.get_state(), other.memory.generator.get_state())
        assert torch.equal(alone.streams["augment"].get_state(), other.streams["augment"].get_state())
        if other is plugged and issubclass(method_class, (PixelDistillation, GSS)):
            continue  # images are learned, or chosen, with the network, which is another one
        contents = [method.memory[torch.arange(10)].images for method in (alone, other)]
        assert torch.equal(*contents)


class Steps(Callback):
    """Compares all tensors before and after the classifier's step and the distiller's update."""

    def __init__(self, method: ReplayMethod) -> None:
        self.checked = 0
        descend, update = method.descend, method.distiller.update  # type: ignore[union-attr]

        def parts() -> dict[str, Tensor]:
            state = {n: v.clone() for n, v in method.state_dict().items() if isinstance(v, Tensor)}
            for index, moments in enumerate(method.classifier_optimizer.state.values()):
                state |= {f"sgd/{index}/{n}": v.clone() for n, v in moments.items() if isinstance(v, Tensor)}
            return state

        def changed(before: dict[str, Tensor]) -> set[str]:
            after = parts()
            common = before.keys() & after.keys()
            return {n for n in common if not torch.equal(before[n].nan_to_num(), after[n].nan_to_num())}

        def watched_descend(loss: ReplayLoss) -> Tensor:
            before = parts()
            value = descend(loss)
            assert not any(name.startswith("distiller") for name in changed(before))
            return value

        def watched_update(method: ReplayMethod, current: Samples) -> None:
            before = parts()
            update(method, current)
            moved = changed(before)
            assert all(name.startswith("distiller.generator_net") for name in moved)
            self.checked += bool(moved)

        method.descend = watched_descend  # type: ignore[method-assign]
        method.distiller.update = watched_update  # type: ignore[union-attr,method-assign]


@pytest.mark.parametrize("method_class", HOSTS)
def test_each_step_moves_its_own_part_only(fit: Fit, method_class: type[ReplayMethod]) -> None:
    watches = []

    def make() -> ReplayMethod:
        method = build(method_class, DataDistillNet, momentum=0.9)
        watches.append(Steps(method))
        return method

    fit(make)
    assert watches[0].checked == 11  # every step but the first, when there is no memory yet


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_50_updates_on_fixed_batches_lower_the_outer_loss_below_that_of_uniform_labels(seed: int) -> None:
    torch.manual_seed(seed)
    method = ER(small_net(), num_classes=6)
    distiller = built(lr=1e-2)
    network = FrozenNetwork(method.network)
    inner, outer = (Samples(torch.randn(20, 1, 8, 8), torch.arange(20) % 6) for _ in range(2))
    optimizer = distiller.configure_optimizer()
    lr = 0.1

    def learned(logits: Tensor) -> Tensor:
        return distiller.inner_loss(logits, inner, distiller.soft_labels(inner, logits.detach().softmax(1)))

    def uniform(logits: Tensor) -> Tensor:
        return distiller.inner_loss(logits, inner, 0.5 * torch.eye(6)[inner.labels] + 0.5 / 6)

    def outer_loss(inner_loss: Callable[[Tensor], Tensor]) -> float:
        return hypergradient.virtual_step(network, inner, inner_loss, [outer], lr).outer_loss.item()

    at_start = outer_loss(learned)
    for _ in range(50):
        look_ahead = hypergradient.exact(network, inner, learned, [outer], lr)
        distiller._descend(hypergradient.surrogate(look_ahead, learned, lr), optimizer)
    at_end = outer_loss(learned)
    assert at_end < at_start
    assert at_end < outer_loss(uniform)


def test_the_logged_gain_is_that_of_a_small_step() -> None:
    torch.manual_seed(0)
    method = ER(small_net().double(), num_classes=6).double()
    distiller = built(lr=1e-2).double()
    network = FrozenNetwork(method.network)
    inner, outer = (Samples(torch.randn(20, 1, 8, 8).double(), torch.arange(20) % 6) for _ in range(2))
    with torch.no_grad():
        distiller.generator_net[-1].bias.copy_(torch.randn(6))  # far from uniform
    lr = 1e-4

    def outer_loss(labels: Tensor) -> float:
        def inner_loss(logits: Tensor) -> Tensor:
            return distiller.inner_loss(logits, inner, labels)

        return hypergradient.virtual_step(network, inner, inner_loss, [outer], lr).outer_loss.item()

    logits = method(inner.images).detach()
    learned = distiller.soft_labels(inner, logits.softmax(1)).detach()
    expected = outer_loss((torch.eye(6)[inner.labels] + 1 / 6) / 2) - outer_loss(learned)
    look_ahead = hypergradient.exact(
        network, inner, lambda logits: distiller.inner_loss(logits, inner, learned), [outer], lr
    )
    assert distiller._gain_over_uniform(inner, look_ahead, lr).item() == pytest.approx(expected, rel=1e-3)
    assert expected != 0


def test_g_old_is_g_at_each_task_end_and_the_term_comes_with_the_second_task(fit: Fit) -> None:
    history: list[tuple[int, int, bool]] = []

    class Watch(DataDistillNet):
        def add_to(self, loss: ReplayLoss, method: ReplayMethod, current: Samples) -> ReplayLoss:
            added = super().add_to(loss, method, current)
            history.append((method.task, self.snapshots, added is not loss))
            return added

        def snapshot(self) -> None:
            super().snapshot()
            pairs = zip(self.generator_net.parameters(), self.old_generator_net.parameters(), strict=True)
            assert all(torch.equal(new, old) for new, old in pairs)

    method = fit(lambda: ER(small_net(), num_classes=6, distiller=Watch()))
    assert all(snapshots == task for task, snapshots, _ in history)
    assert all(is_added == (task > 0) for task, _, is_added in history)
    assert method.distiller.snapshots == 3  # type: ignore[union-attr]


def test_the_soft_term_rehearses_old_memory_or_what_the_method_does(fit: Fit) -> None:
    seen: list[tuple[int, set[int]]] = []

    class Watch(DataDistillNet):
        def _soft_loss(self, samples: Samples, logits: Tensor) -> Tensor:
            seen.append((len(logits), set(samples.tasks.tolist())))  # type: ignore[union-attr]
            return super()._soft_loss(samples, logits)

    def run(**arguments: Any) -> list[tuple[int, set[int]]]:
        seen.clear()
        fit(lambda: ER(small_net(), num_classes=6, buffer_size=30, distiller=Watch(**arguments)))
        return list(seen)

    old = run(memory="old")
    assert len(old) == 8
    assert all(tasks == {0} for _, tasks in old[:4])
    assert all(tasks <= {0, 1} for _, tasks in old[4:])
    assert any(2 in tasks for _, tasks in run(memory="running"))


@pytest.mark.parametrize(
    ("outer", "expected"),
    [("current_and_memory", [{2}, {0, 1, 2}]), ("memory", [{0, 1, 2}]), ("current_and_old_memory", [{2}, {0, 1}])],
)
def test_the_outer_batch_has_the_chosen_samples(fit: Fit, outer: Any, expected: list[set[int]]) -> None:
    parts: dict[int, list[set[int]]] = {}

    class Watch(DataDistillNet):
        def outer_batch(self, method: ReplayMethod, current: Samples) -> list[Samples]:
            found = super().outer_batch(method, current)
            parts[method.task] = [set(part.tasks.tolist()) for part in found]  # type: ignore[union-attr]
            return found

    make = lambda: ER(small_net(), num_classes=6, buffer_size=60, distiller=Watch(outer=outer))  # noqa: E731
    fit(make, TinySequence(batch_size=6))
    assert parts[0] == [{0}]
    assert parts[2] == expected


def test_overriding_the_inner_loss_changes_what_g_learns(fit: Fit) -> None:
    class SoftOnly(DataDistillNet):
        """The virtual step of Eq. 6 taken literally: soft labels only."""

        def inner_loss(self, logits: Tensor, samples: Samples, labels: Tensor) -> Tensor:
            return super().inner_loss(logits, samples, labels) - samples.mean(
                torch.nn.functional.cross_entropy(logits, samples.labels, reduction="none")
            )

    literal = fit(lambda: ER(small_net(), num_classes=6, distiller=SoftOnly()))
    default = fit(lambda: ER(small_net(), num_classes=6, distiller=DataDistillNet()))
    assert not torch.equal(literal.distiller.generator_net[0].weight, default.distiller.generator_net[0].weight)  # type: ignore[union-attr,operator]


def test_update_every_sets_the_number_of_steps_per_update(fit: Fit) -> None:
    calls = []

    class Watch(DataDistillNet):
        def inner_batch(self, method: ReplayMethod) -> Samples | None:
            calls.append(method.trainer.global_step)
            return super().inner_batch(method)

    fit(lambda: ER(small_net(), num_classes=6, distiller=Watch(update_every=5)))
    assert calls == [5, 10]


@pytest.mark.parametrize("lookahead", ["exact", "delayed"])
def test_losses_and_label_statistics_are_logged(make_trainer: MakeTrainer, lookahead: Any) -> None:
    trainer = make_trainer(log_every_n_steps=1)
    distiller = DataDistillNet(lookahead=lookahead)
    trainer.fit(ER(small_net(), num_classes=6, distiller=distiller), TinySequence(batch_size=6))
    logged = {
        name.removeprefix("distill/"): float(v) for name, v in trainer.callback_metrics.items() if "distill/" in name
    }
    of_virtual_steps = {"outer_loss_before", "gradient_cosine"} if lookahead == "exact" else set()
    assert logged.keys() == of_virtual_steps | {
        "inner_loss",
        "gain_over_uniform",
        "outer_loss_after",
        "label_entropy",
        "label_mass/true",
        "label_mass/old_classes",
        "label_mass/new_classes",
        "label_mass/unseen_classes",
    }
    masses = [logged[f"label_mass/{which}_classes"] for which in ("old", "new", "unseen")]
    assert sum(masses) == pytest.approx(1, abs=1e-5)
    assert masses[2] == 0  # it is the last task
    assert 0.5 <= logged["label_mass/true"] <= 1
    assert trainer.global_step == 12  # Adam's steps are not counted


class NoLabels(ReplayMethod):
    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        return self.current_loss(current)


def test_methods_without_replayed_labels_are_refused(fit: Fit) -> None:
    for host in (Finetune, Joint):
        with pytest.raises(ConfigurationError, match=f"{host.__name__} cannot take a distiller"):
            host(small_net(), num_classes=6, distiller=DataDistillNet())
    for distiller in (DataDistillNet(), DataDistillNet(alpha=0.0), DataDistillNet(apply_from_task=9)):
        with pytest.raises(ConfigurationError, match="NoLabels cannot take a distiller: its loss has no labels"):
            fit(lambda distiller=distiller: NoLabels(small_net(), num_classes=6, distiller=distiller))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 1.5}, "beta must be between 0 and 1, got 1.5"),
        ({"alpha": -1.0}, "alpha must be zero or positive, got -1"),
        ({"lr": 0.0}, "lr must be positive, got 0"),
        ({"update_every": 0}, "update_every must be positive, got 0"),
        ({"apply_from_task": 0}, "apply_from_task must be positive, got 0"),
        ({"compose": "replace"}, "compose=replace needs memory=running"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DataDistillNet(**arguments)


def reference(
    net: nn.Module, distiller: DataDistillNet, inner: Samples, outer: list[Samples], lr: float
) -> list[Tensor]:
    """The gradient of G by autograd through an unrolled step."""
    parameters = {name: p.detach().requires_grad_() for name, p in net.named_parameters()}
    classes = torch.eye(distiller.generator_net[-1].out_features)

    def logits_of(p: dict[str, Tensor], samples: Samples) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
        return functional_call(net, {**p, **buffers}, (samples.images,))

    def inside(p: dict[str, Tensor]) -> Tensor:
        logits = logits_of(p, inner)
        own = distiller.generator_net(logits.softmax(1).detach()).softmax(1)  # without G_old, by Algorithm 2
        labels = (own + classes[inner.labels]) / 2
        return cross_entropy(logits, inner.labels) - distiller.alpha * (labels * logits.log_softmax(1)).sum(1).mean()

    steps = torch.autograd.grad(inside(parameters), list(parameters.values()), create_graph=True)
    moved = {n: p - lr * g for (n, p), g in zip(parameters.items(), steps, strict=True)}
    value = torch.stack([cross_entropy(logits_of(moved, part), part.labels) for part in outer]).sum()
    return list(torch.autograd.grad(value, list(distiller.generator_net.parameters())))


def test_every_update_follows_the_gradient_of_an_unrolled_step(fit: Fit) -> None:
    """In a real fit with a decaying learning rate: checks the drawn batches, the lr and the sign."""
    first_lr = 0.5
    errors: list[float] = []
    drawn: dict[str, Any] = {}

    class Watch(DataDistillNet):
        def inner_batch(self, method: ReplayMethod) -> Samples | None:
            drawn.update(method=method, inner=super().inner_batch(method))
            return drawn["inner"]  # type: ignore[no-any-return]

        def outer_batch(self, method: ReplayMethod, current: Samples) -> list[Samples]:
            drawn.update(outer=super().outer_batch(method, current))
            return drawn["outer"]  # type: ignore[no-any-return]

        def _descend(self, value: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
            lr = first_lr if drawn["method"].trainer.current_epoch % 2 == 0 else first_lr / 10
            expected = reference(drawn["method"].network, self, drawn["inner"], drawn["outer"], lr)
            stepped = super()._descend(value, optimizer)
            found = [parameter.grad for parameter in self.generator_net.parameters()]
            error, size = (
                torch.stack([gradient.norm() for gradient in gradients]).sum().item()
                for gradients in ([a - b for a, b in zip(found, expected, strict=True)], expected)  # type: ignore[operator]
            )
            errors.append(error / size)
            return stepped

    def make() -> ReplayMethod:
        smooth = small_net()
        for index in (1, 3, 7):
            smooth.layers[index] = nn.Tanh()  # a finite difference does not know kinks
        method = ER(smooth, num_classes=6, lr=first_lr, lr_milestones=[1], distiller=Watch())
        return method.double()

    fit(make, TinySequence(epochs_per_task=2, batch_size=12))
    assert len(errors) == 11
    assert max(errors) < 1e-6


class ColourlessResNet18(ResNet18):
    def __init__(self) -> None:
        super().__init__(in_channels=1, width=4)


class Residual(Backbone):
    """Two blocks of ResNet-18: with BatchNorm, a skip and a stride."""

    feature_dim = 8

    def __init__(self) -> None:
        super().__init__()
        whole = ResNet18(in_channels=1, width=4)
        self.layers = nn.Sequential(whole.stem, *whole.stages[:2], nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


@pytest.mark.parametrize(
    ("net", "most_error", "least_cosine"),
    [
        (SmallNet, 2e-3, 0.9999),
        (BatchNormNet, 2e-3, 0.9999),
        (Residual, 5e-3, 0.9999),
        (ColourlessResNet18, 5e-2, 0.999),  # on digits its last blocks normalise one pixel over 16 images
    ],
)
def test_in_training_a_forward_difference_gives_the_unrolled_gradient(
    fit: Fit, net: type[Backbone], most_error: float, least_cosine: float
) -> None:
    """In single precision, on states of a run on digits."""
    errors, cosines = [], []

    class Watch(DataDistillNet):
        def surrogate_of(self, method: ReplayMethod, inner: Samples, outer: list[Samples]) -> Tensor:
            value = super().surrogate_of(method, inner, outer)
            if method.trainer.global_step % 5 == 0:
                weights = list(self.generator_net.parameters())
                found = torch.autograd.grad(value, weights, retain_graph=True)
                both = (found, reference(method.network, self, inner, outer, method.current_lr))
                mine, expected = (torch.cat([gradient.flatten() for gradient in some]) for some in both)
                errors.append(((mine - expected).norm() / expected.norm()).item())
                cosines.append(torch.cosine_similarity(mine, expected, dim=0).item())
            return value

    data = SplitDigits(num_tasks=5, batch_size=16)
    sizes = {"num_classes": 10, "buffer_size": 100, "replay_batch_size": 16}
    fit(lambda: ER(net(), distiller=Watch(), **sizes), data, max_steps=41)
    assert len(errors) == 8
    assert max(errors) <= most_error
    assert min(cosines) >= least_cosine


def test_the_given_learning_rate_wins_over_that_of_a_checkpoint(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    def trainer_after(steps: int, lr: float, **arguments: Any) -> Trainer:
        trainer = make_trainer(max_steps=steps)
        method = ER(small_net(), num_classes=6, distiller=DataDistillNet(lr=lr))
        trainer.fit(method, TinySequence(batch_size=6), **arguments)
        return trainer

    trainer_after(3, 1e-3).save_checkpoint(tmp_path / "run.ckpt")
    resumed = trainer_after(5, 1e-2, ckpt_path=tmp_path / "run.ckpt")
    assert resumed.optimizers[1].param_groups[0]["lr"] == 1e-2


def test_low_precisions_are_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(
        ConfigurationError, match="precision must be one of 32-true, 64-true, bf16-mixed.*got bf16-true"
    ):
        make_trainer(precision="bf16-true").fit(build(ER, DataDistillNet), TinySequence())


@pytest.mark.parametrize("lookahead", ["exact", "delayed"])
def test_how_often_is_logged_does_not_change_the_run(fit: Fit, lookahead: Any) -> None:
    def make() -> ReplayMethod:
        return ER(DropoutNet(), num_classes=6, distiller=DataDistillNet(lookahead=lookahead))

    often, seldom = (fit(make, log_every_n_steps=every, logger=CSVLogger("logs")) for every in (1, 3))
    for name, parameter in often.named_parameters():
        assert torch.equal(parameter, seldom.get_parameter(name)), name


def test_learning_rates_that_come_to_differ_are_noted(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    class Unfreeze(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == 1:
                extra = torch.nn.Parameter(torch.zeros(1))
                trainer.optimizers[0].add_param_group({"params": [extra], "lr": 0.5})

    fit(lambda: build(ER, DataDistillNet), callbacks=[Unfreeze()])
    assert "the virtual step of DataDistillNet takes" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("lookahead", ["exact", "delayed"])
def test_a_compiled_backbone_learns_the_same(fit: Fit, lookahead: str, backend: str) -> None:
    def make(is_compiled: bool) -> ReplayMethod:
        method = ER(small_net(), num_classes=6, distiller=DataDistillNet(lookahead=lookahead))  # type: ignore[arg-type]
        if is_compiled:
            method.backbone.compile(backend=backend)
        return method

    plain, compiled = (fit(lambda is_compiled=is_compiled: make(is_compiled)) for is_compiled in (False, True))
    assert plain.state_dict().keys() == compiled.state_dict().keys()  # so checkpoints of one fit the other
    for name, parameter in plain.named_parameters():
        assert torch.allclose(parameter, compiled.get_parameter(name), atol=1e-6), name


def test_bf16_mixed_trains_with_it(fit: Fit) -> None:
    dtypes = set()

    class Watch(DataDistillNet):
        def inner_loss(self, logits: Tensor, samples: Samples, labels: Tensor) -> Tensor:
            dtypes.add(logits.dtype)
            return super().inner_loss(logits, samples, labels)

    method = fit(lambda: build(ER, Watch), precision="bf16-mixed")
    assert dtypes == {torch.float32}  # the classifier itself gives bfloat16 there
    assert isinstance(method.distiller, BilevelDistiller)
    assert method.distiller.generator_net[0].weight.isfinite().all()  # type: ignore[union-attr,operator,index]
