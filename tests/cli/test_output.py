import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ddn_lightning.cli import main
from ddn_lightning.cli.output import check_output, write_output
from ddn_lightning.errors import ConfigurationError, note


def test_a_link_is_followed_and_not_replaced() -> None:
    Path("elsewhere").mkdir()
    Path("elsewhere/page.html").write_text("old")
    Path("link").symlink_to("elsewhere/page.html")
    Path("new").symlink_to("elsewhere/new.html")  # to what is not there yet
    for name, target in (("link", "page.html"), ("new", "new.html")):
        write_output(name, "text →")
        assert Path(name).is_symlink()
        assert Path("elsewhere", target).read_bytes() == "text →".encode()
    assert sorted(path.name for path in Path("elsewhere").iterdir()) == ["new.html", "page.html"]


def test_a_device_is_written_to() -> None:
    master, slave = os.openpty()
    name = os.ttyname(slave)
    Path("terminal").symlink_to(name)
    for output in (name, "terminal"):
        write_output(output, "text")
        assert os.read(master, 100) == b"text"
    assert stat.S_ISCHR(os.stat(name).st_mode)
    assert Path("terminal").is_symlink()
    os.close(slave)
    os.close(master)


def test_a_folder_a_missing_folder_and_a_loop_are_refused() -> None:
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    for name in ("folder", "loop/page.html", "no/page.html", "folder/."):
        for refuse in (check_output, lambda output: write_output(output, "text")):
            with pytest.raises(ConfigurationError, match=f"output must be .*, got {name}"):
                refuse(name)
    assert list(Path("folder").iterdir()) == []


def test_a_file_that_may_not_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ConfigurationError, match="output must be a file that can be written, got page.html: .*denied"):
        write_output("page.html", "text")


def test_a_dash_prints_the_page_and_nothing_else(recorded_runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(recorded_runs / "stopped"), "-o", "-"]) == 0
    printed = capfd.readouterr()
    assert printed.out.lstrip().startswith("<!DOCTYPE html>")
    assert printed.out.endswith("</html>")
    assert printed.err == "1 run in -\n"
    assert main(["report", str(recorded_runs / "stopped"), "-o", "-", "--open"]) == 2
    assert capfd.readouterr().err == "error: output must be a file for --open, got -\n"
    assert list(Path().iterdir()) == []


RED, BELL, CSI = "\x1b[31m", "\a", "\x9b2J"


def test_control_characters_of_foreign_names_do_not_reach_the_terminal(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    note(f"left out {RED}")
    assert main(["compare", f"no{BELL}runs{CSI}"]) == 2
    write_output("-", f"file,class\n{RED}.png,a\tb{CSI}\n")
    printed = capsysbinary.readouterr()
    for text in (printed.out.decode(), printed.err.decode()):
        assert all(letter.isprintable() or letter in "\n\t" for letter in text), text
    assert r"left out \x1b[31m" in printed.err.decode()
    assert r"there is no no\x07runs\x9b2J" in printed.err.decode()
    assert printed.out.decode() == "file,class\n\\x1b[31m.png,a\tb\\x9b2J\n"
