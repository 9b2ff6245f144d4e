"""Output files that get their name only when they are complete. Until then a file is .NAME.part in the same directory,
which is removed on failure or interruption. A lock on it rejects a second concurrent run; a run reuses the file that a
killed run left."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import types


class OutputFile:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.part")
        self.bytes = 0
        self._hash = hashlib.sha256()
        descriptor = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and lock another run may have finished and renamed the file that was opened.
            if os.fstat(descriptor).st_ino != os.stat(self.part).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            raise BlockingIOError(0, "another run is writing this file", str(path)) from None
        os.ftruncate(descriptor, 0)
        self._file = os.fdopen(descriptor, "wb", buffering=1 << 20)

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def commit(self) -> None:
        os.replace(self.part, self.path)
        self._file.close()

    def discard(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.part)
        # close() flushes the buffer, which may fail again on a full disk.
        with contextlib.suppress(OSError):
            self._file.close()


class Outputs:
    """Files that are committed together: `finish` syncs all of them and then renames them in the order of open()."""

    def __init__(self, overwrite: bool) -> None:
        self._overwrite = overwrite
        self._files: list[OutputFile] = []

    def open(self, path: pathlib.Path) -> OutputFile:
        if path.exists() and not self._overwrite:
            raise FileExistsError(0, "already exists; --overwrite replaces it", str(path))
        self._files.append(OutputFile(path))
        return self._files[-1]

    def finish(self) -> None:
        for file in self._files:
            file.sync()
        while self._files:
            self._files[0].commit()
            del self._files[0]

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        for file in self._files:
            file.discard()
