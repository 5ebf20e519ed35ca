import torch
from every_method import build
from tiny import BatchNormNet, Fit, random_samples
from torch import Tensor
from torch.nn import functional

from ddn_lightning import ER, GSS, GradientSelection, ImageTransform, Samples
from ddn_lightning.memory.memory import MemoryOwner


def gradient(method: ER, sample: Samples) -> Tensor:
    """Of the last layer's weights, by autograd for a single sample."""
    loss = functional.cross_entropy(method(method.normalised(sample.images)), sample.labels)
    (found,) = torch.autograd.grad(loss, [method.head.weight])
    return found.flatten()


def test_the_score_is_one_plus_the_largest_cosine_of_the_gradients() -> None:
    method = GSS(BatchNormNet(), num_classes=6, buffer_size=7, transform=ImageTransform((0.5,), (0.25,)))
    before = {name: value.clone() for name, value in method.named_buffers() if "running" in name}
    memory = method.memory
    assert isinstance(memory, GradientSelection)
    memory.add(random_samples(7), method)
    new = random_samples(5)
    scores = memory._scores_of(new, method)
    assert all(torch.equal(value, method.get_buffer(name)) for name, value in before.items())  # of BatchNorm
    method.eval()
    held = memory[memory.slots]
    stored = torch.stack([gradient(method, held[torch.tensor([row])]) for row in range(7)])
    for row in range(5):
        cosines = functional.cosine_similarity(gradient(method, new[torch.tensor([row])])[None], stored)
        assert torch.allclose(scores[row].float(), 1 + cosines.max(), atol=1e-5)


def test_samples_that_find_the_memory_empty_have_the_score_of_a_cosine_of_a_tenth() -> None:
    method = GSS(BatchNormNet(), num_classes=6, buffer_size=7, transform=ImageTransform((0.5,), (0.25,)))
    memory = method.memory
    assert isinstance(memory, GradientSelection)
    memory.add(random_samples(4), method)
    assert memory.scores.tolist() == [1.1] * 4 + [0.0] * 3  # not the cosine of each with itself
    memory.add(random_samples(3), method)
    assert ((memory.scores[4:] > 0) & (memory.scores[4:] != 1.1)).all()


class Scored(GradientSelection):
    """Scores are the labels, divided by 10."""

    def _scores_of(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        return samples.labels.double() / 10


def labelled(*labels: int) -> Samples:
    return Samples(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), torch.tensor(labels))


def test_a_full_memory_takes_only_gradients_against_all_others_in_exchange_for_the_most_similar() -> None:
    memory = Scored(buffer_size=3)
    memory.add(labelled(20, 20, 0))
    assert not len(memory.add(labelled(10, 12, 20)))  # scores of 1 and above
    for _ in range(20):
        memory.add(labelled(1))
    assert sorted(memory.labels.tolist()) == [0, 1, 1]
    assert sorted(memory.scores.tolist()) == [0, 0.1, 0.1]


def test_the_chance_of_being_replaced_is_that_of_the_paper() -> None:
    """A sample of score c replaces i with probability C_i / sum(C) * C_i / (C_i + c)."""
    replaced = torch.zeros(3)
    for seed in range(1500):
        memory = Scored(buffer_size=3, seed=seed)
        memory.add(labelled(20, 10, 5))
        slots = memory.add(labelled(6))
        replaced[slots] += 1
    scores = torch.tensor([2.0, 1.0, 0.5])
    expected = scores / 3.5 * scores / (scores + 0.6)
    assert torch.allclose(replaced / 1500, expected, atol=0.04)


def test_it_is_the_memory_of_any_method(fit: Fit) -> None:
    method = fit(lambda: build(ER, memory=GradientSelection(comparisons=3)))
    assert len(method.memory) == 10
    assert len(method.memory.labels.unique()) > 2
