"""The table of pre-trained results: means by hand, in order, beside runs from scratch."""

from study.measured import measured_runs
from study.pretrained import PRETRAINED, pretrained_table

HEADER = "data,network,setting,buffer_size,method,plugin,options,seed,acc,fm,per_task,calibrated_acc,calibrated_fm,"
RUNS = f"""{HEADER}cpu_minutes,command
cifar10,"{PRETRAINED}",online,500,er,none,lr=0.001,30,60,20,60,,,0.2,ddn fit one
cifar10,"{PRETRAINED}",online,500,er,none,lr=0.001,31,64,24,64,,,0.4,ddn fit two
cifar10,"{PRETRAINED}",online,500,er,none,lr=0.001,0,99,0,99,,,0.4,ddn fit chose
cifar10,"{PRETRAINED}",online,0,slda,none,,30,80,3,80,,,0.1,ddn fit slda
cifar10,ResNet18 width 20,online,500,er,none,,20,40,50,40,,,15,ddn fit scratch
cifar10,ResNet18 width 20,online,500,er,none,lr=0.1,20,41,50,40,,,15,ddn fit scratch
cifar10,ResNet18 width 20,online,200,er,none,,20,30,50,30,,,15,ddn fit scratch
"""


def test_rows_and_their_order() -> None:
    lines = pretrained_table(measured_runs(RUNS)).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    assert [row[0] for row in rows] == ["SLDA", "ER", "ER"]
    assert [row[1] for row in rows] == [PRETRAINED, PRETRAINED, "ResNet18 width 20"]
    assert rows[1][2:4] == ["500", "30 31"]
    assert rows[1][4].startswith("62.00 ± 2.83")
    assert rows[1][5].startswith("22.00 ± 2.83")
    assert rows[1][6] == "0.30"
    assert "ddn fit slda" in lines


def test_without_runs_it_says_so() -> None:
    assert pretrained_table(measured_runs(RUNS.splitlines()[0])) == "Nothing was measured yet."
