"""The shell completes commands, options, and names of configurations."""

import json
import subprocess
import sys
from pathlib import Path

from ddn_lightning.cli.commands import LINES

COMPLETED: dict[str, set[str]] = {
    "ddn ": {*LINES, "-h", "--help"},
    "ddn rep": {"report", "reproduce"},
    "ddn report --ou": {"--output"},
    "ddn fit --trainer.max_e": {"--trainer.max_epochs"},
    "ddn fit -c quick": {"quickstart", "quickstart_ddn", "quick.yaml"},
    "ddn fit -c quickstart -c method/derp": {"method/derpp"},
}
IN_FORKS = """
import json, os, sys
from ddn_lightning.cli import main
found = {}
for line in sys.argv[1:]:
    if (child := os.fork()) == 0:
        asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\\n", "_ARGCOMPLETE_STDOUT_FILENAME": "words"}
        os.environ.update(asked, COMP_LINE=line, COMP_POINT=str(len(line)), COMP_TYPE="9")
        main()
        os._exit(1)  # argcomplete ends the process before
    assert os.waitpid(child, 0)[1] == 0, line
    found[line] = [word.strip() for word in open("words").read().split("\\n")]
print(json.dumps(found))
"""


def test_lines_are_completed() -> None:
    Path("quick.yaml").touch()
    done = subprocess.run([sys.executable, "-c", IN_FORKS, *COMPLETED], check=True, stdout=subprocess.PIPE, text=True)
    assert {line: set(words) for line, words in json.loads(done.stdout).items()} == COMPLETED
