"""The delayed update: the gradient of an unrolled double step, resumed and on two ranks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import SaveAlways, build
from tiny import BatchNormNet, DropoutNet, Fit, TinySequence, small_net
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import Adam, AdamW

from ddn_lightning import (
    ER,
    Backbone,
    ConfigurationError,
    DataDistillNet,
    LearnedLabels,
    ReplayMethod,
    Samples,
    SmallNet,
    SplitDigits,
)

BETAS, EPS = (0.8, 0.95), 1e-3


def smooth(net: nn.Sequential) -> None:
    for index, layer in enumerate(net):
        if isinstance(layer, nn.ReLU):
            net[index] = nn.Tanh()


class NotingER(ER):
    """Keeps the batches of its last step."""

    batches_of_step: tuple[Samples, ...]

    def loss(self, current: Samples, *memory: Samples) -> Any:
        self.batches_of_step = (current, *memory)
        return super().loss(current, *memory)


class Unrolled(DataDistillNet):
    """Compares each update with autograd through the real step and the loss of the next one."""

    errors: list[float]
    before: dict[str, Any] | None = None

    def _learn_from_next(self, method: ReplayMethod, value: Tensor, gradients: Any) -> None:
        hard = [
            torch.zeros_like(p) if g is None else g for p, g in zip(method.moved_parameters, gradients, strict=True)
        ]
        expected = None if self.past is None else self.reference(method)
        start = [parameter.grad for parameter in self.generator_net.parameters()]
        super()._learn_from_next(method, value, gradients)
        if expected is not None:
            found = [parameter.grad for parameter in self.generator_net.parameters()]
            assert all(new is not old for new, old in zip(found, start, strict=True))
            error, size = (
                torch.cat([gradient.flatten() for gradient in some]).norm()
                for some in ([a - b for a, b in zip(found, expected, strict=True)], expected)
            )
            assert size > 0
            self.errors.append((error / size).item())
        state = method.trainer.optimizers[0].state
        self.before = {
            "hard": dict(zip(map(id, method.moved_parameters), hard, strict=True)),
            "state": {
                id(p): {n: torch.as_tensor(v).clone() for n, v in of.items() if v is not None}
                for p, of in state.items()
            },
            "lr": method.current_lr,
        }

    def reference(self, method: ReplayMethod) -> list[Tensor]:
        assert self.before is not None
        assert self.past is not None
        net, draw = method.network, self.past.inner
        parameters = {name: p.detach().requires_grad_() for name, p in self.past.parameters.items()}

        def logits(of: dict[str, Tensor], images: Tensor) -> Tensor:
            return functional_call(net, {**of, **{n: b.clone() for n, b in net.named_buffers()}}, (images,))

        z = logits(parameters, draw.images)
        labels = (self.generator_net(z.softmax(1).detach()).softmax(1) + torch.eye(6)[draw.labels]) / 2
        soft = -self.alpha * (labels * z.log_softmax(1)).sum(1).mean()
        steps = torch.autograd.grad(soft, list(parameters.values()), create_graph=True)
        real = dict(net.named_parameters())
        after = {}
        for (name, p), g in zip(parameters.items(), steps, strict=True):
            key = id(real[name])
            state = self.before["state"].get(key, {})
            after[name] = self.stepped(method, p.detach(), self.before["hard"][key] + g, state, self.before["lr"])
            torch.testing.assert_close(after[name], real[name], rtol=1e-9, atol=1e-12)  # it is the real step
        outer = [cross_entropy(logits(after, part.images), part.labels) for part in method.batches_of_step]  # type: ignore[union-attr,arg-type]
        return list(torch.autograd.grad(torch.stack(outer).sum(), list(self.generator_net.parameters())))

    def stepped(self, method: ReplayMethod, p: Tensor, g: Tensor, state: dict[str, Tensor], lr: float) -> Tensor:
        """One step of the optimizer, as its paper has it, with the preconditioner held."""
        optimizer = method.trainer.optimizers[0]
        group = optimizer.param_groups[0]
        decay = group["weight_decay"]
        if not isinstance(optimizer, Adam):
            direction = g + decay * p
            if group["momentum"]:
                velocity = group["momentum"] * state.get("momentum_buffer", 0) + direction
                direction = g + decay * p + group["momentum"] * velocity if group["nesterov"] else velocity
            return p - lr * direction
        if isinstance(optimizer, AdamW):
            p = p * (1 - lr * decay)
        number = state.get("step", torch.tensor(0.0)) + 1
        mean = BETAS[0] * state.get("exp_avg", 0) + (1 - BETAS[0]) * g
        square = BETAS[1] * state.get("exp_avg_sq", 0) + (1 - BETAS[1]) * g.detach().square()
        root = (square / (1 - BETAS[1] ** number)).sqrt() + EPS
        return p - lr * mean / (1 - BETAS[0] ** number) / root


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.5, "lr_milestones": [1]},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    "Nesterov": {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)},
    "AdamW": {"optimizer": partial(AdamW, lr=0.01, betas=BETAS, eps=EPS, weight_decay=0.1)},
    "Adam": {"optimizer": partial(Adam, lr=0.01, betas=BETAS, eps=EPS)},
}


@pytest.mark.parametrize("net", [small_net, BatchNormNet])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_update_follows_the_gradient_of_an_unrolled_double_step(
    fit: Fit, optimizer: str, net: Callable[[], Any]
) -> None:
    errors: list[float] = []

    def make() -> ReplayMethod:
        backbone = net()
        smooth(backbone.layers)
        distiller = Unrolled(lookahead="delayed", beta=0.0)
        distiller.errors = errors
        return NotingER(backbone, num_classes=6, distiller=distiller, **OPTIMIZERS[optimizer]).double()

    fit(make, TinySequence(epochs_per_task=2, batch_size=12), precision="64-true")
    assert len(errors) == 2 * 3  # four steps in each of two tasks, the first of which has no past
    assert max(errors) < 1e-5  # of a forward difference in double precision


@pytest.mark.parametrize("net", [SmallNet, BatchNormNet])
def test_in_mixed_precision_it_follows_the_gradient_of_single_precision(fit: Fit, net: type[Backbone]) -> None:
    """On states of a run on digits, along the same gradient of the next step."""
    cosines = []

    class Watch(DataDistillNet):
        def _learn_from_next(self, method: ReplayMethod, value: Tensor, gradients: Any) -> None:
            past, weights = self.past, list(self.generator_net.parameters())
            assert torch.is_autocast_enabled("cpu")
            if past is not None:
                with torch.autocast("cpu", enabled=False):
                    parameters = {name: p.detach().requires_grad_() for name, p in past.parameters.items()}
                    logits = functional_call(method.network, parameters, (past.inner.images,))
                    labels = self.labels_to_learn(past.inner, logits.softmax(1).detach())
                    soft = -(labels * logits.log_softmax(1)).sum(1).mean()
                    steps = torch.autograd.grad(soft, list(parameters.values()), create_graph=True)
                    product = torch.stack([(a * b).sum() for a, b in zip(steps, gradients, strict=True)]).sum()
                    expected = torch.autograd.grad(-method.current_lr * product, weights)
            super()._learn_from_next(method, value, gradients)
            if past is not None:
                found = [weight.grad for weight in weights if weight.grad is not None]
                pair = (torch.cat([one.flatten() for one in some]) for some in (found, expected))
                cosines.append(torch.cosine_similarity(*pair, dim=0).item())

    data = SplitDigits(num_tasks=5, batch_size=16)
    sizes = {"num_classes": 10, "buffer_size": 100, "replay_batch_size": 16}
    distiller = partial(Watch, lookahead="delayed")
    fit(lambda: ER(net(), distiller=distiller(), **sizes), data, precision="bf16-mixed", max_steps=34)
    assert len(cosines) >= 10
    assert min(cosines) >= 0.999


def delayed(backbone: Callable[[], Backbone], **arguments: Any) -> ReplayMethod:
    return build(ER, partial(DataDistillNet, lookahead="delayed"), backbone(), **arguments)


def test_a_run_resumed_between_two_steps_is_the_same(fit: Fit, tmp_path: Path) -> None:
    make = partial(delayed, DropoutNet, momentum=0.9)
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    whole = fit(make, TinySequence(batch_size=6), **saving)
    for step in (6, 8, 11):  # tasks have four steps
        resumed = fit(make, TinySequence(batch_size=6), ckpt_path=tmp_path / f"step{step}.ckpt", seed=99)
        states = [(method.state_dict(), method.trainer.optimizers[1].state_dict()) for method in (whole, resumed)]
        assert difference(*states) is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_equal_one_also_when_resumed(fit: Fit, tmp_path: Path) -> None:
    def trained(**arguments: Any) -> ReplayMethod:
        sequence = TinySequence(batch_size=5, drop_last=False)
        return fit(lambda: delayed(small_net).double(), sequence, **arguments)

    one = trained()
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    two = trained(devices=2, strategy="ddp_fork", **saving)
    resumed = trained(devices=2, strategy="ddp_fork", ckpt_path=tmp_path / "step8.ckpt", seed=9)
    on_one = trained(ckpt_path=tmp_path / "step8.ckpt", seed=9)
    for name, parameter in one.named_parameters():
        for other in (two, resumed, on_one):
            assert (parameter - other.get_parameter(name)).abs().max() < 1e-8, name


def test_what_the_delayed_update_cannot_follow_is_refused(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match="lookahead=delayed needs memory=old.*got running"):
        DataDistillNet(lookahead="delayed", memory="running")
    with pytest.raises(ConfigurationError, match="needs SGD, Adam or AdamW as the classifier's optimizer, got RMSprop"):
        fit(lambda: delayed(small_net, optimizer=torch.optim.RMSprop))
    with pytest.raises(ConfigurationError, match="lookahead must be exact with LearnedLabels"):
        fit(lambda: build(ER, partial(LearnedLabels, lookahead="delayed"), small_net()))
