"""Use a trained method: load it, predict with it, export it."""

from ddn_lightning.deploy.exported_model import ExportedModel
from ddn_lightning.deploy.predict import Predictions

__all__ = ["ExportedModel", "Predictions"]
