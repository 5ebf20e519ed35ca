"""Continual-learning methods."""

from ddn_lightning.methods.a_gem import AGEM
from ddn_lightning.methods.bic import BiC
from ddn_lightning.methods.cls_er import CLSER
from ddn_lightning.methods.der import DER
from ddn_lightning.methods.derpp import DERPlusPlus
from ddn_lightning.methods.er import ER
from ddn_lightning.methods.er_ace import ERACE
from ddn_lightning.methods.er_las import ERLAS
from ddn_lightning.methods.exemplar_method import ExemplarMethod
from ddn_lightning.methods.finetune import Finetune
from ddn_lightning.methods.gdumb import GDumb
from ddn_lightning.methods.gec import GEC
from ddn_lightning.methods.gss import GSS
from ddn_lightning.methods.icarl import ICaRL
from ddn_lightning.methods.joint import Joint
from ddn_lightning.methods.lode import LODE
from ddn_lightning.methods.lodm import LoDM
from ddn_lightning.methods.lucir import LUCIR
from ddn_lightning.methods.mir import MIR
from ddn_lightning.methods.mkd import MKD
from ddn_lightning.methods.mnemonics import Mnemonics
from ddn_lightning.methods.ncm import NCM
from ddn_lightning.methods.pcr import PCR
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.methods.rar import RAR
from ddn_lightning.methods.scr import SCR
from ddn_lightning.methods.si import SI
from ddn_lightning.methods.slda import SLDA
from ddn_lightning.methods.temporal_ensemble import TemporalEnsemble
from ddn_lightning.methods.whole_buffer_distillation import WholeBufferDistillation
from ddn_lightning.methods.x_der import XDER

__all__ = [
    "AGEM",
    "CLSER",
    "DER",
    "ER",
    "ERACE",
    "ERLAS",
    "GEC",
    "GSS",
    "LODE",
    "LUCIR",
    "MIR",
    "MKD",
    "NCM",
    "PCR",
    "RAR",
    "SCR",
    "SI",
    "SLDA",
    "XDER",
    "BiC",
    "DERPlusPlus",
    "ExemplarMethod",
    "Finetune",
    "GDumb",
    "ICaRL",
    "Joint",
    "LoDM",
    "Mnemonics",
    "PixelDistillation",
    "TemporalEnsemble",
    "WholeBufferDistillation",
]
