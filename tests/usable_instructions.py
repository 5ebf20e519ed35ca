"""Keeps torch from instructions that the machine announces and cannot execute.

Some virtual machines announce AMX, with which oneDNN multiplies matrices in bfloat16, and end the process that uses it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"  # oneDNN reads it when it is first used, not when torch is imported
PROCESSOR = Path("/proc/cpuinfo")
MULTIPLY = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def avoid_broken_amx() -> None:
    """Limit oneDNN to AVX-512, here and in processes started from here, if AMX is an illegal instruction."""
    if VARIABLE in os.environ or not PROCESSOR.exists() or "amx_bf16" not in PROCESSOR.read_text():
        return
    if subprocess.run([sys.executable, "-c", MULTIPLY], capture_output=True).returncode == -signal.SIGILL:
        os.environ[VARIABLE] = "AVX512_CORE_BF16"
