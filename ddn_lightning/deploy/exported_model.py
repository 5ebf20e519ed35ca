"""A method as one module from raw images to probabilities, and its graph for files that leave this package."""

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ddn_lightning.distill.learner import Predicting
from ddn_lightning.errors import ConfigurationError

SHAPES = ({0: Dim("batch")},)  # of the images; all but the batch size is fixed
EXAMPLE_SIZE = 2  # torch.export takes a batch size of 0 or 1 for a constant


class ExportedModel(nn.Module):
    """Everything between an image file and a class: normalisation, network and the method's own class scores.

    Takes raw ``uint8`` images (batch, channels, height, width) of the size that the method was trained on, and returns
    a probability per class (batch, num_classes), as :func:`predict` does. BatchNorm uses the statistics
    that the method has: those of a trained or loaded method are calibrated if it was evaluated so.

    Args:
        method: A trained method.

    Example:
        >>> model = ExportedModel(ddn_lightning.load("runs/mine")).eval()  # doctest: +SKIP
        >>> model(torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)).shape  # doctest: +SKIP
        torch.Size([5, 10])
    """

    def __init__(self, method: Predicting) -> None:
        super().__init__()
        self.method = method

    def forward(self, images: Tensor) -> Tensor:
        """The probability of each class."""
        return self.method.probabilities(images)


def graph_of(model: ExportedModel, images: Tensor) -> ExportedProgram:
    """The computation of a model in evaluation mode, for any batch size, with only the weights that it uses.

    Args:
        model: The model; it must have run once, which moves the transform to the network's device.
        images: Raw images, ``EXAMPLE_SIZE`` of them.
    """
    try:
        with torch.compiler.set_stance("force_eager"):
            graph = torch.export.export(model, (images,), dynamic_shapes=SHAPES)
    except Exception as error:  # of many types, from tracing the user's own network
        name = type(model.method.backbone).__name__
        raise ConfigurationError(f"torch.export cannot capture {name} and its method: {first_line(error)}") from error
    _drop_unused_weights(graph)
    return graph


def first_line(error: Exception) -> str:
    """The first line of an error of torch or onnxruntime, which may have a hundred."""
    return str(error).strip().partition("\n")[0]


def _drop_unused_weights(graph: ExportedProgram) -> None:
    """Remove inputs that nothing uses: torch.export keeps every weight, such as those of a distiller."""
    unused = {node.name: node for node in graph.graph.nodes if node.op == "placeholder" and not node.users}
    for node in unused.values():
        graph.graph.erase_node(node)
    signature = graph.graph_signature
    for spec in signature.input_specs:
        if spec.arg.name in unused:
            graph.state_dict.pop(spec.target, None)
    signature.input_specs = [spec for spec in signature.input_specs if spec.arg.name not in unused]
    graph.graph_module.recompile()
