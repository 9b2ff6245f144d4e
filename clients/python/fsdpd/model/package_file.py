"""The package: a zip archive of stored members, in which equal inputs give equal bytes."""

from __future__ import annotations

import hashlib
import os
import pathlib
import zipfile
from collections.abc import Callable

TIME = (1980, 1, 1, 0, 0, 0)
MANIFEST = "manifest.json"
ZIP64 = 1 << 31  # Members of this size need its header.


class PackageFile:
    """Collects members, and writes the archive under a temporary name until it is complete. The content of a member is read
    when it is needed, so only one at a time is in memory."""

    def __init__(self) -> None:
        self._members: dict[str, Callable[[], bytes]] = {}

    def add(self, name: str, content: Callable[[], bytes]) -> str:
        self._members[name] = content
        return name

    def files(self) -> list[tuple[str, int, str]]:
        """Name, size and SHA-256 of each member, by name."""
        found = []
        for name, content in sorted(self._members.items()):
            data = content()
            found.append((name, len(data), hashlib.sha256(data).hexdigest()))
        return found

    def write(self, path: pathlib.Path, manifest: bytes) -> None:
        part = path.with_name(f".{path.name}.part")
        try:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
                write_member(archive, MANIFEST, manifest)
                for name, content in sorted(self._members.items()):
                    write_member(archive, name, content())
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def write_member(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = 0o644 << 16
    with archive.open(entry, "w", force_zip64=len(data) >= ZIP64) as out:
        out.write(data)
