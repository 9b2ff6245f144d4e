"""Rows of Parquet and Arrow files (streams and files), read with pyarrow.

Only the needed columns are read, in batches of some MiB, so memory does not grow with the file. Arrow files are read one
record batch at a time. An invalid or truncated file is a Fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow
import pyarrow.parquet

from fsdpd.data.fields import Record
from fsdpd.faults import Fault

BATCH_ROWS, BATCH_BYTES = 512, 8 << 20
BUFFER_BYTES = 1 << 20
FILE_MAGIC = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
BINARY = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}


def rows(raw: IO[bytes], name: str, format: str, columns: frozenset[str]) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Returns the place of each row and a function that converts it. Values of columns outside `columns` are None."""
    number = 0
    try:
        for names, batch in (parquet_batches if format == "parquet" else arrow_batches)(raw, name, columns):
            unread = dict.fromkeys(names)
            for part in parts(batch):
                convert = converter(part, name, number)
                for at in range(part.num_rows):
                    yield f"{name}: row {number}", lambda: {**unread, **convert(at)}
                    number += 1
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        title = {"parquet": "Parquet", "arrow": "Arrow"}[format]
        after = f" after row {number - 1}" if number else ""
        raise Fault(f"{name}: invalid or truncated {title} file{after}: {first_line(error)}") from None


def parquet_batches(raw: IO[bytes], name: str, columns: frozenset[str]) -> Iterator[tuple[list[str], Any]]:
    # Without these options, pyarrow reads all bytes of a row group at first.
    file = pyarrow.parquet.ParquetFile(raw, pre_buffer=False, buffer_size=BUFFER_BYTES)
    names = file.schema_arrow.names
    read = wanted(names, columns, name)
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        size = max(min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)), 1)
        for batch in file.iter_batches(size, row_groups=[number], columns=read, use_threads=False):
            yield names, batch


def arrow_batches(raw: IO[bytes], name: str, columns: frozenset[str]) -> Iterator[tuple[list[str], Any]]:
    if raw.read(len(FILE_MAGIC)) == FILE_MAGIC:
        file = pyarrow.ipc.open_file(raw)
        schema, batches = file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        if raw.seek(0, os.SEEK_END) >= len(STREAM_END):
            raw.seek(-len(STREAM_END), os.SEEK_END)
        # pyarrow accepts a stream that ends between two batches.
        if raw.read() != STREAM_END:
            raise Fault(f"{name}: is not an Arrow file, or is truncated: it has no end of stream")
        raw.seek(0)
        stream = pyarrow.ipc.open_stream(raw)
        schema, batches = stream.schema, iter(stream)
    read = wanted(schema.names, columns, name)
    for batch in batches:
        # Text is decoded by row, so that a row with invalid UTF-8 can be reported and skipped.
        arrays = [array.view(BINARY[array.type]) if array.type in BINARY else array for array in map(batch.column, read)]
        batch = pyarrow.RecordBatch.from_arrays(arrays, read) if read else batch.select([])
        # An invalid offset ends the process when the array is used.
        batch.validate(full=True)
        yield schema.names, batch


def wanted(names: list[str], columns: frozenset[str], name: str) -> list[str]:
    found = [each for each in names if each in columns]
    for each in found:
        if found.count(each) > 1:
            raise Fault(f"{name}: several columns have the name {each!r}")
    return found


def parts(batch: Any) -> Iterator[Any]:
    """Splits a batch, because Python objects take several times the memory of its arrays."""
    size = max(min(BATCH_ROWS, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)), 1)
    for begin in range(0, batch.num_rows, size):
        yield batch.slice(begin, size)


def converter(part: Any, name: str, first: int) -> Callable[[int], Record]:
    try:
        lines = part.to_pylist()
        return lambda at: plain_record(lines[at], f"{name}: row {first + at}")
    except (ValueError, OverflowError):  # Strings that are not UTF-8, and times outside Python's range.
        return lambda at: plain_record(row_of(part, at, f"{name}: row {first + at}"), f"{name}: row {first + at}")


def row_of(part: Any, at: int, place: str) -> Record:
    made: Record = {}
    for field, column in zip(part.schema.names, part.columns):
        try:
            made[field] = column[at].as_py()
        except (ValueError, OverflowError) as error:
            raise Fault(f"{place}: field {field!r} cannot be read: {described(error)}") from None
    return made


def plain_record(row: Record, place: str) -> Record:
    made: Record = {}
    for field, value in row.items():
        try:
            made[field] = plain(value)
        except UnicodeDecodeError as error:
            raise Fault(f"{place}: field {field!r} cannot be read: {described(error)}") from None
    return made


def plain(value: Any) -> Any:
    """Converts binary to text, as some writers do not mark text. Omits null fields of objects: all objects of a column
    have the same fields in Arrow, so `tool_calls` is null in each message that has none."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if each is not None}
    return value


def described(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} (0x{error.object[error.start]:02x}) is not UTF-8"
    return first_line(error)


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
