"""NCM and SLDA are batch classifiers of everything seen, computed here from all features at once."""

import numpy
import pytest
import torch
from every_method import build
from tiny import BatchNormNet, Fit, TinySequence
from torch import Tensor

from ddn_lightning import NCM, SLDA, FrozenFeatures, ReplayMethod


class Plain(TinySequence):
    padding, flip = 0, False


def features_of_all(method: ReplayMethod) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Features and labels of the training images, and features of the test images, in double precision."""
    assert method.transform is not None
    method.eval()
    with torch.no_grad():
        train, test = (
            method.backbone(method.transform(method.sequence.load(train=one)[0])).double().numpy()
            for one in (True, False)
        )
    return train, method.sequence.load(train=True)[1].numpy(), test


def scores_of(method: ReplayMethod) -> Tensor:
    method.eval()
    with torch.no_grad():
        return method.class_scores(method.normalised(method.sequence.load(train=False)[0]))


@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_the_scores_are_distances_to_the_means_of_all_data(fit: Fit, batch_size: int) -> None:
    method = fit(lambda: build(NCM, backbone=BatchNormNet()), Plain(batch_size=batch_size, drop_last=False))
    train, labels, test = features_of_all(method)
    means = numpy.stack([train[labels == c].mean(axis=0) for c in range(6)])
    distances = ((test[:, None] - means) ** 2).sum(axis=2)
    scores = scores_of(method).double().numpy()
    expected = ((test**2).sum(axis=1, keepdims=True) - distances) / 2
    numpy.testing.assert_allclose(scores, expected, atol=1e-5)
    assert (scores.argmax(axis=1) == distances.argmin(axis=1)).all()


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_slda_is_the_linear_discriminant_analysis_of_all_data(fit: Fit, batch_size: int, epochs: int) -> None:
    data = Plain(batch_size=batch_size, drop_last=False, epochs_per_task=epochs)
    method = fit(lambda: build(SLDA, backbone=BatchNormNet(), shrinkage=0.01), data)
    train, labels, test = features_of_all(method)
    means = numpy.stack([train[labels == c].mean(axis=0) for c in range(6)])
    around = train - means[labels]
    inverse = numpy.linalg.inv(0.99 * around.T @ around / len(around) + 0.01 * numpy.eye(8))
    expected = test @ inverse @ means.T - ((means @ inverse) * means).sum(axis=1) / 2
    numpy.testing.assert_allclose(scores_of(method).double().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_without_shrinkage_it_predicts_as_scikit_learn(fit: Fit) -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    data = Plain(batch_size=6)
    method = fit(lambda: build(SLDA, backbone=FrozenFeatures(BatchNormNet()), shrinkage=1e-9), data)
    train, labels, test = features_of_all(method)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(train, labels)
    assert (scores_of(method).argmax(dim=1).numpy() == reference.predict(test)).mean() > 0.98


def test_a_class_without_samples_is_never_predicted_and_nothing_is_trained(fit: Fit) -> None:
    for kind in (NCM, SLDA):
        method = fit(lambda kind=kind: build(kind, backbone=BatchNormNet()), Plain(batch_size=6), max_steps=5)
        assert set(scores_of(method).argmax(dim=1).tolist()) <= set(method.class_counts.nonzero().flatten().tolist())
        assert method.backbone.layers[1].num_batches_tracked == 0
