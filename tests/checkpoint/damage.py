"""Damaged files: cut off, with flipped bytes, with swapped entries, or of another kind."""

import io
import random
import zipfile

ARCHIVE_NAME = "archive"


def damaged(content: bytes, number: int) -> bytes:
    """The damage with this number to a file of ``torch.save``, or to any other file."""
    chance = random.Random(number)
    kind = number % 8
    if kind == 0:
        return content[: chance.randrange(len(content))]
    if kind in (1, 2, 3):
        changed = bytearray(content)
        for _ in range(1 if kind == 1 else 8 if kind == 2 else 200):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind == 4:
        start = chance.randrange(len(content))
        return content[:start] + chance.randbytes(chance.randrange(1, 2000)) + content[start + chance.randrange(2000) :]
    if kind == 5:
        return _rewritten(content, chance) if content[:2] == b"PK" else content[::-1]
    if kind == 6:
        return chance.choice([b"", b"PK", b"root:x:0:0\n", b"epoch,loss\n1,0.5\n", b"\x80\x02.", chance.randbytes(500)])
    return _archive({"notes.txt": chance.randbytes(50), "archive/data.pkl": chance.randbytes(100)}, chance)


def _rewritten(content: bytes, chance: random.Random) -> bytes:
    """The archive with two entries swapped, one left out, one changed, or all compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    first, second = chance.sample(sorted(entries), 2)
    action = chance.randrange(4)
    if action == 0:
        entries[first], entries[second] = entries[second], entries[first]
    elif action == 1:
        del entries[first]
    elif action == 2:
        entries[f"{ARCHIVE_NAME}/data.pkl"] = chance.randbytes(100)
    return _archive(entries, chance, zipfile.ZIP_DEFLATED if action == 3 else zipfile.ZIP_STORED)


def _archive(entries: dict[str, bytes], chance: random.Random, compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()
