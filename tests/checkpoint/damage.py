"""Damaged files: cut off, with flipped bytes, with swapped entries, or of another kind."""

import io
import random
import zipfile

PACKAGE, CANARY = b"ddn_lightning", b"canary_module"  # of the same length


def damaged(content: bytes, number: int) -> bytes:
    """The damage with this number to a file of ``torch.save``, or to any other file."""
    chance = random.Random(number)
    kind = number % 8
    if kind == 0:
        return content[: chance.randrange(len(content))]
    if kind in (1, 2, 3):
        return _flipped(content, chance, 1 if kind == 1 else 8 if kind == 2 else 200)
    if kind == 4:
        start = chance.randrange(len(content))
        return content[:start] + chance.randbytes(chance.randrange(1, 2000)) + content[start + chance.randrange(2000) :]
    if kind in (5, 7):
        return _rewritten(content, chance) if content[:2] == b"PK" else _flipped(content[:500], chance) + content[500:]
    other = _archive({"notes.txt": chance.randbytes(50), "archive/data.pkl": chance.randbytes(100)})
    return chance.choice([b"", b"PK", b"root:x:0:0\n", b"epoch,loss\n1,0.5\n", b"\x80\x02.", other])


def _flipped(content: bytes, chance: random.Random, bits: int = 2) -> bytes:
    changed = bytearray(content)
    for _ in range(bits):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _rewritten(content: bytes, chance: random.Random) -> bytes:
    """The archive with right checksums, but other entries: swapped, left out, changed, naming a module, compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    first, second = chance.sample(sorted(entries), 2)
    (pickled,) = [name for name in entries if name.endswith("/data.pkl")]
    action = chance.randrange(10)
    if action == 0:
        entries[first], entries[second] = entries[second], entries[first]
    elif action == 1:
        del entries[first]
    elif action == 2:
        entries[pickled] = chance.randbytes(100)
    elif action in (3, 4):
        parts = entries[pickled].split(PACKAGE)
        place = chance.randrange(1, max(2, len(parts)))
        entries[pickled] = CANARY.join([PACKAGE.join(parts[:place]), PACKAGE.join(parts[place:])])
    elif action < 9:
        entries[pickled] = _flipped(entries[pickled], chance)
    return _archive(entries, zipfile.ZIP_DEFLATED if action == 9 else zipfile.ZIP_STORED)


def _archive(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()
