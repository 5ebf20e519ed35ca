import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddn_lightning import ConfigurationError, ExemplarSet, Samples
from ddn_lightning.memory.exemplar_set import herding


def of_class(label: int, number: int) -> Samples:
    """Samples whose pixels are their index."""
    images = torch.arange(number, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 2, 2)
    return Samples(images, torch.full((number,), label), tasks=torch.full((number,), label // 2))


def distances(features: Tensor, chosen: list[int]) -> dict[int, float]:
    """Distance between the means for each candidate."""
    rest = set(range(len(features))) - set(chosen)
    return {i: (features.mean(0) - features[[*chosen, i]].mean(0)).norm().item() for i in rest}


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 25), st.integers(1, 8), st.integers(1, 30), st.integers(0, 2**31))
def test_herding_is_the_greedy_search(size: int, dim: int, number: int, seed: int) -> None:
    features = torch.randn(size, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 3
    chosen = herding(features, number).tolist()
    assert len(set(chosen)) == len(chosen) == min(number, size)
    for place, choice in enumerate(chosen):
        tried = distances(features, chosen[:place])
        assert tried[choice] <= min(tried.values()) + 1e-9  # of two samples, either is as near as the other


def test_fewer_choices_are_the_beginning_of_more() -> None:
    features = torch.randn(40, 5)
    assert herding(features, 30)[:7].tolist() == herding(features, 7).tolist()


@settings(deadline=None, max_examples=50)
@given(st.integers(4, 60), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4))
def test_the_memory_is_balanced_and_never_too_full(buffer_size: int, sizes: list[tuple[int, int]]) -> None:
    exemplars = ExemplarSet(buffer_size)
    offered: list[int] = []
    for task, pair in enumerate(sizes):
        new = [of_class(2 * task + i, number) for i, number in enumerate(pair)]
        offered += pair
        both = Samples(*(torch.cat([getattr(part, f) for part in new]) for f in ("images", "labels")))
        tasks = torch.cat([part.tasks for part in new])
        both = Samples(both.images, both.labels, tasks=tasks)[torch.randperm(len(both)).sort().values]
        exemplars.store(both, num_classes=len(offered))
        assert len(exemplars) <= buffer_size
        share = buffer_size // len(offered)
        held = exemplars.samples if len(exemplars) else of_class(0, 0)
        for label, number in enumerate(offered):
            of_label = held[held.labels == label]
            # the first ones of the order in which they came, whatever the shares were in between
            assert of_label.images[:, 0, 0, 0].tolist() == list(range(min(number, share)))
            assert (of_label.tasks == label // 2).all()


def test_more_classes_than_num_classes_are_refused() -> None:
    exemplars = ExemplarSet(4)
    exemplars.store(of_class(0, 4), num_classes=1)
    with pytest.raises(ValueError, match="at most num_classes = 1 classes"):
        exemplars.store(of_class(1, 4), num_classes=1)
    exemplars.clear()
    with pytest.raises(ValueError, match="no exemplars before the first task"):
        _ = exemplars.samples


def test_exemplars_are_saved_and_restored_with_the_state_dict() -> None:
    exemplars, other = ExemplarSet(6), ExemplarSet(6)
    other.load_state_dict(exemplars.state_dict())
    assert len(other) == 0
    exemplars.store(of_class(3, 9), num_classes=1)
    file = io.BytesIO()
    torch.save(exemplars.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for name in ("images", "labels", "tasks"):
        assert torch.equal(getattr(other.samples, name), getattr(exemplars.samples, name))
    with pytest.raises(ConfigurationError, match="buffer_size is 5, but the checkpoint's memory has 6 slots"):
        ExemplarSet(5).load_state_dict(exemplars.state_dict())
