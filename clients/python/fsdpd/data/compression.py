"""Decompression of gzip and Zstandard, which are recognized by their first bytes. A truncated file is a Fault."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from fsdpd.faults import Fault

ZSTD_SUFFIXES = (".zst", ".zstd")
SUFFIXES = (".gz", *ZSTD_SUFFIXES)
UNSUPPORTED = {".bz2": "bzip2", ".xz": "xz"}
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MAX_WINDOW = 1 << 31  # Of `zstd --long=31`. The decompressor allocates the window that a file declares.
CHUNK = 1 << 16


class ZstdStream(io.RawIOBase):
    """The content of all frames. zstandard's own reader does not report a truncated last frame."""

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard

        self._raw, self._library = raw, zstandard
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            self._input = self._input or self._raw.read(CHUNK)
            if not self._input:
                if self._frame:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._frame = self._frame or self._library.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()
            try:
                self._output = memoryview(self._frame.decompress(self._input))
            except self._library.ZstdError as error:
                raise EOFError(error) from None
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size


@contextmanager
def decompressed(raw: io.BufferedReader, name: str) -> Iterator[IO[bytes]]:
    head = raw.peek(4)[:4]
    compression = "gzip" if head.startswith(GZIP_MAGIC) or name.endswith(".gz") else \
        "Zstandard" if head == ZSTD_MAGIC or name.endswith(ZSTD_SUFFIXES) else None
    try:
        if compression and not head:
            raise EOFError("the file is empty")
        if compression == "gzip":
            yield cast(IO[bytes], gzip.GzipFile(fileobj=raw, mode="rb"))
        else:
            yield io.BufferedReader(ZstdStream(raw), CHUNK) if compression else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Fault(f"{name}: invalid or truncated {compression}: {error}") from None
