"""Data-Distill-Net: a small hypernetwork that makes soft labels for replayed samples."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint.growth import NO_MASS, overlaid, resized
from ddn_lightning.distill.bilevel_distiller import BilevelDistiller
from ddn_lightning.distill.label_distiller import one_hot
from ddn_lightning.distill.learner import Facts
from ddn_lightning.errors import ConfigurationError, check_fraction, check_positive
from ddn_lightning.networks.backbone import widened
from ddn_lightning.random_streams import generator_for
from ddn_lightning.samples import Samples


class DataDistillNet(BilevelDistiller):
    r"""Data-Distill-Net (Liao et al., ICML 2025): G turns predicted probabilities into soft labels.

    The label of a sample is (Eq. 8, plus its hard label, normalised)

    .. math:: \tilde y = \tfrac12 \big[ (1 - \beta)\, G(p) + \beta\, G_{old}(p) \big] + \tfrac12\, y

    with p the network's current prediction and G_old a copy of G from the end of the previous task. G is trained from
    the first task on by :class:`BilevelDistiller`, and used from the second on.

    Only the classifier's labels contain G_old: G is trained on its own labels, as in Algorithm 2. Trained as a tenth of
    the mixture, G learns to outweigh the other nine tenths and is a bad G_old for the next task: the labels of the
    mixture were then worse for the outer loss than uniform ones.

    Args:
        beta: Weight of G_old.
        hidden_dim: Size of G's two hidden layers.
        **kwargs: Arguments of :class:`BilevelDistiller`.

    Example:
        >>> from ddn_lightning import ER, SmallNet
        >>> method = ER(SmallNet(), num_classes=10, distiller=DataDistillNet(alpha=1.0, beta=0.9))
        >>> replayed = Samples(torch.zeros(2, 1, 8, 8), labels=torch.tensor([3, 7]))
        >>> labels = method.distiller.soft_labels(replayed, torch.full((2, 10), 0.1))
        >>> labels.shape, labels.argmax(dim=1)
        (torch.Size([2, 10]), tensor([3, 7]))
    """

    facts = Facts("ddn", "DDN")

    def __init__(self, beta: float = 0.9, hidden_dim: int = 200, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_fraction(beta=beta)
        check_positive(hidden_dim=hidden_dim)
        self.beta = beta
        self.hidden_dim = hidden_dim

    def build(self, num_classes: int, buffer_size: int) -> None:
        """Create G and G_old."""
        super().build(num_classes, buffer_size)
        self.generator_net = self.build_net(num_classes)
        self.old_generator_net = self.build_net(num_classes).requires_grad_(False)
        self.snapshots = 0  # number of times that G was copied to G_old

    def build_net(self, num_classes: int) -> nn.Sequential:
        """G: from probabilities to the logits of labels."""
        return multilayer_perceptron(num_classes, self.hidden_dim, num_classes)

    def grow(self, num_classes: int) -> None:
        """Change the number of classes; new ones change no label yet, but learn to.

        The probabilities of new classes have weight zero in the first layer. The logits of new classes are so far below
        the mean of the others that they get no share of a label.
        """
        known = len(self.is_old_class)
        super().grow(num_classes)
        for net in (self.generator_net, self.old_generator_net):
            new = output_rows(net).mean(dim=0)
            new[-1] -= NO_MASS
            grow_net(net, known, num_classes, new, type(self).__name__)

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """Labels by Eq. 8; before the first snapshot, by G alone."""
        labels = self.generated(self.generator_net, samples, probabilities)
        if self.snapshots:
            old = self.generated(self.old_generator_net, samples, probabilities)
            labels = (1 - self.beta) * labels + self.beta * old
        return self.completed(labels, samples)

    def labels_to_learn(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """Labels by G alone."""
        return self.completed(self.generated(self.generator_net, samples, probabilities), samples)

    def generated(self, net: nn.Module, samples: Samples, probabilities: Tensor) -> Tensor:
        """The output of G or G_old: a distribution over the classes for each prediction."""
        labels: Tensor = widened(net(probabilities)).softmax(dim=1)
        return labels

    def completed(self, labels: Tensor, samples: Samples) -> Tensor:
        """Add the hard labels and normalise: half of each label is the hard one."""
        both = labels + one_hot(samples, labels)
        return both / both.sum(dim=1, keepdim=True)

    def configure_optimizer(self) -> torch.optim.Optimizer:
        """Adam on G."""
        return torch.optim.Adam(self.generator_net.parameters(), self.lr)

    def snapshot(self) -> None:
        """Copy G to G_old."""
        self.old_generator_net.load_state_dict(self.generator_net.state_dict())
        self.snapshots += 1

    def get_extra_state(self) -> dict[str, int]:
        """The number of snapshots."""
        return {"snapshots": self.snapshots}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore the number of snapshots."""
        self.snapshots = state["snapshots"]


def output_rows(net: nn.Sequential) -> Tensor:
    """Weights and bias of each output (outputs, inputs + 1), without gradients."""
    last = net[-1]
    assert isinstance(last, nn.Linear)
    return torch.cat([last.weight, last.bias[:, None]], dim=1).detach()


def grow_net(net: nn.Sequential, known: int, num_classes: int, new_row: Tensor, name: str) -> None:
    """Change the number of inputs and outputs, one of each per class; new inputs have no weight yet.

    Args:
        net: A perceptron.
        known: The number of classes before.
        num_classes: The number of classes from now on.
        new_row: Weights and bias of the output of a new class.
        name: The distiller's name, for messages.
    """
    first, last = net[0], net[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    if (first.in_features, last.out_features) != (known, known):
        raise ConfigurationError(
            f"{name} cannot go on with new classes: its G is from {first.in_features} inputs to {last.out_features} "
            f"outputs, not from {known} classes to as many. Give the first run a larger num_classes"
        )
    first.weight.data = resized(first.weight.detach(), (first.out_features, num_classes))
    rows = overlaid(output_rows(net), new_row.repeat(num_classes, 1))
    last.weight.data, last.bias.data = rows[:, :-1].contiguous(), rows[:, -1].contiguous()
    first.in_features, last.out_features = num_classes, num_classes


def multilayer_perceptron(input_dim: int, hidden_dim: int, output_dim: int, hidden_layers: int = 2) -> nn.Sequential:
    """Hidden layers of one size, with Xavier-normal weights from their own generator."""
    generator = generator_for(torch.initial_seed(), "initial weights of G")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((input_dim, *hidden_layers * (hidden_dim,), output_dim)):
        linear: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
        nn.init.xavier_normal_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
