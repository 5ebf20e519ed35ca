"""A plan on a Ray cluster of a head and two machines, one of which is lost in the middle, if Ray is installed."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bit_for_bit import difference

clusters = pytest.importorskip("ray.cluster_utils")
psutil = pytest.importorskip("psutil")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray has warnings of its own
CONFIGS = Path(__file__).parents[2] / "configs"
DDN = [sys.executable, "-m", "ddn_lightning"]
PLAN = ["reproduce", "digits", "--methods", "er", "--plugins", "none", "--seeds", "1", "2", "--configs", str(CONFIGS)]
SHORT = ["--", "--data.epochs_per_task", "20"]
CLOCKS = ("seconds", "cpu_minutes")  # all that may differ
PATIENCE = 1200  # seconds, on a machine that is busy with other things


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without processors and two machines with one each."""
    cluster = clusters.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def processes_of(machine: Any) -> list[Any]:
    """The Ray processes of a machine and all that they have started."""
    found = []
    for started in machine.all_processes.values():
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(one.process.pid)
                found += [process, *process.children(recursive=True)]
    return found


def runs_on(machine: Any) -> set[str]:
    """Names of the runs that a machine executes."""
    names = set()
    for process in processes_of(machine):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            names |= {words[words.index("--name") + 1]} if "fit" in words and "--name" in words else set()
    return names


def wait_for(condition: Callable[[], Any], program: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert program.poll() is None, program.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def results(runs: Path) -> dict[str, Any]:
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(runs.glob("*/results.json"))}
    return {
        name: {key: value for key, value in content.items() if key not in CLOCKS} for name, content in found.items()
    }


def test_a_lost_machine_costs_time_but_changes_no_number(cluster: Any) -> None:
    alone = [*DDN, *PLAN, "--runs", "alone", *SHORT]
    expected = subprocess.run(alone, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    command = [*DDN, *PLAN, "--runs", "lost", "--executor", "ray", "--address", cluster.address, *SHORT]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def victim() -> tuple[Any, str] | None:
        """A machine, and its run that has learned a task and not all of them."""
        for machine in cluster.worker_nodes:
            for name in runs_on(machine):
                if Path("lost", name, "checkpoints", "last.ckpt").exists():
                    return machine, name
        return None

    machine, lost = wait_for(victim, program)
    for process in processes_of(machine):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    printed, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    assert Path(f"lost/{lost}.log").read_text().count("$ ddn fit") == 2
    assert "--ckpt_path auto" in Path(f"lost/{lost}.log").read_text()
    assert printed.splitlines()[2:] == expected.splitlines()[2:]
    assert len(results(Path("alone"))) == 2
    assert difference(results(Path("alone")), results(Path("lost"))) is None
