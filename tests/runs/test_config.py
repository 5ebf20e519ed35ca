import os
import time
from pathlib import Path

import pytest
import yaml

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.config import changes, load_yaml, read_settings

DOUBLED = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 80))
CHAINED = "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000))
MERGED = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))
REFUSED = {
    "doubled": "a0: &a0 [x, x]\n" + DOUBLED,
    "chained": "a0: &a0 [x, x]\n" + CHAINED,
    "merged": "a0: &a0 {x: 1}\n" + MERGED,
    "itself": "a: &a [*a]",
    "itself, further down": "a: &a {b: {c: [1, *a]}}",
    "nested": "[" * 50_000,
    "nested blocks": "- " * 50_000,
    "long": "a" * 1_000_001,
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_yaml_that_would_take_forever_to_load_is_refused(text: str) -> None:
    Path("config.yaml").write_text(text)
    started = time.process_time()
    with pytest.raises(yaml.YAMLError, match="must not"):
        load_yaml(text)
    with pytest.raises(yaml.YAMLError, match="must not"):
        changes(text, "")
    with pytest.raises(ConfigurationError, match="config.yaml must be a configuration file in YAML and UTF-8: "):
        read_settings(Path("config.yaml"))
    assert time.process_time() - started < 3


def test_ordinary_configurations_are_loaded() -> None:
    text = "a: &a {x: [1, 2.5, null, true], y: {z: 'w'}}\nb: *a\nc: {<<: *a, x: 0}\nd: [*a, *a]\n"
    assert load_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "must hold settings, such as 'seed_everything: 1', got nothing"),
        (b"# nothing\n", "got nothing"),
        (b"- 1", "got a list"),
        (b"\xff\xfe\x00", "can't decode byte 0xff"),
        (b"a: [", "node content"),
        (None, "not a regular file"),
    ],
)
def test_a_file_without_settings_is_refused(content: bytes | None, expected: str) -> None:
    os.mkfifo("config.yaml") if content is None else Path("config.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match="config.yaml must ") as caught:
        read_settings(Path("config.yaml"))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
