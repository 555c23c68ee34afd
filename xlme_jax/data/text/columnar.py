"""Streaming readers of Parquet and Arrow files, by pyarrow.

`datasets` writes its Arrow files, those of `save_to_disk` included, in the stream format. A file is
read in batches, and only the columns that are asked for. Arrow files are validated before they are
used, since offsets in a damaged file may point anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import numpy as np

from xlme_jax.data.text import row_conditions
from xlme_jax.data.text.decompression import (
    Allowance,
    DataError,
    check_is_data,
    file_size,
    open_file,
    printable,
)
from xlme_jax.storage.paths import is_remote
from xlme_jax.validation import extras

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 1024
_FEWEST_ROWS = 16
_BATCH_BYTES = 1 << 29
_BUFFER_BYTES = 1 << 20
_ARROW_FILE = b"ARROW1"
_STREAM_IN_FILE = 8
_PARQUET = b"PAR1"
# Ends every stream that was written to its end.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_SHOWN_CHARS = 200
# What is yielded for a value of another type than text, number and null.
_OTHER = ()


def parquet_names(path: Path) -> list[str]:
    """Returns the columns of a Parquet file; a field of a struct is `column.field`."""
    with open_file(path) as file, _readable(path, "Parquet"):
        return _names(_parquet(file).schema_arrow)


def parquet_rows(
    path: Path, columns: Sequence[str], where: str = ""
) -> Iterator[tuple[Any, ...] | str]:
    """Yields the values of columns row by row, text as bytes.

    Args:
        path: The file.
        columns: Columns to read.
        where: Conditions of `row_conditions`; a row that does not satisfy them gives the reason.
            Groups of rows without a row that satisfies them, by the file's statistics, are not
            read. In the groups that are read, the text of rows that do not satisfy them is not
            decoded.

    Raises:
        DataError: The file is damaged, or lacks a column, or `where` does not fit a column.
    """
    compared = row_conditions.columns(where)
    with open_file(path) as file, _readable(path, "Parquet") as progress:
        table = _parquet(file)
        for column in (*columns, *compared):
            _find_column(path, table.schema_arrow, column)
        groups = _groups(path, file, table, where)
        names = list(dict.fromkeys([*columns, *compared]))
        batches = _parquet_batches(path, table, file_size(file), names, groups)
        if not where:
            for batch in batches:
                yield from _rows(path, batch, columns)
                progress.append(batch.num_rows)
            return
        reason = row_conditions.reason(where)
        unread = _unread_rows(table, groups)
        number = 0
        for batch in batches:
            chosen = _satisfying(path, batch, where)
            rows = _rows(path, batch.filter(chosen), columns)
            for is_chosen in chosen.to_pylist():
                yield from itertools.repeat(reason, unread[number])
                yield next(rows) if is_chosen else reason
                number += 1
            progress.append(batch.num_rows)
        yield from itertools.repeat(reason, unread[number])


def _unread_rows(table: Any, groups: Sequence[int]) -> Counter[int]:
    """Returns {number of rows that are read before: rows of groups that are not read there}."""
    unread: Counter[int] = Counter()
    rows_before = 0
    for group in range(table.metadata.num_row_groups):
        rows = table.metadata.row_group(group).num_rows
        if group in groups:
            rows_before += rows
        else:
            unread[rows_before] += rows
    return unread


def _groups(path: Path, file: BinaryIO, table: Any, where: str) -> list[int]:
    """Returns the numbers of the row groups that may have a row that satisfies `where`.

    The statistics of the file tell which groups have no such row.
    """
    everything = list(range(table.metadata.num_row_groups))
    expression = _statistics_filter(path, table.schema_arrow, where)
    if expression is None or not everything:
        return everything
    from pyarrow import dataset

    fragment = dataset.ParquetFileFormat().make_fragment(file).subset(expression)
    return [group.id for group in fragment.row_groups]


def _statistics_filter(path: Path, schema: pa.Schema, where: str) -> Any:
    """Returns the conditions that statistics of a file can decide, as an expression of pyarrow.

    These are conditions that compare columns of numbers with numbers, and columns of text with
    text. Returns None if there are none.

    Raises:
        DataError: A condition compares a column of text with a number, or of numbers with text.
    """
    terms = [_term(path, schema, condition) for condition in row_conditions.parse(where)]
    decidable = [term for term in terms if term is not None]
    return functools.reduce(operator.and_, decidable) if decidable else None


def _term(path: Path, schema: pa.Schema, condition: row_conditions.Condition) -> Any:
    """Returns a condition as an expression of pyarrow; None if statistics cannot decide it."""
    import pyarrow as pa
    from pyarrow import compute

    types = pa.types
    position, child = _find_column(path, schema, condition.column)
    field = schema.field(position)
    kind = field.type if child is None else field.type.field(child).type
    is_numeric = types.is_integer(kind) or types.is_floating(kind)
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not is_numeric and not is_text:
        return None
    condition.check(is_numeric, str(kind), str(path))
    if is_text and condition.numbers is not None:
        return None  # Numbers in text are compared as numbers, which statistics of text are not.
    values = condition.numbers if is_numeric else condition.values
    reference = compute.field(field.name) if child is None else compute.field(field.name, child)
    return condition.compared(reference, values)


def _satisfying(path: Path, batch: pa.RecordBatch, where: str) -> pa.BooleanArray:
    """Returns whether each row of a batch satisfies the conditions `where`."""
    import pyarrow as pa

    compared = [_column(path, batch, column) for column in row_conditions.columns(where)]
    for array in compared:
        array.validate(full=True)
    rows = zip(*(array.to_pylist() for array in compared))
    batch.validate()
    return pa.array([row_conditions.satisfies(where, row, str(path)) for row in rows], pa.bool_())


def arrow_names(path: Path) -> list[str]:
    """Returns the columns of an Arrow file; a field of a struct is `column.field`."""
    with open_file(path) as file, _readable(path, "Arrow"):
        return _names(_arrow(file).schema)


def arrow_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yields the values of columns row by row, text as bytes.

    Raises:
        DataError: The file is damaged or truncated, or lacks a column.
    """
    with open_file(path) as file, _readable(path, "Arrow") as progress:
        schema = _arrow(file).schema
        places = {_find_column(path, schema, column)[0] for column in columns}
        for batch in _batches(path, file, sorted(places)):
            yield from _rows(path, batch, columns)
            progress.append(batch.num_rows)


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet or Arrow file with all columns, lists and structs included.

    Raises:
        DataError: The file is damaged or truncated, or has text that is not UTF-8.
    """
    with open_file(path) as file:
        is_parquet = file.read(len(_PARQUET)) == _PARQUET
        with _readable(path, "Parquet" if is_parquet else "Arrow") as progress:
            batches: Iterator[pa.RecordBatch] = (
                _parquet_batches(path, _parquet(file), file_size(file), None)
                if is_parquet
                else _batches(path, file, None)
            )
            for batch in batches:
                batch.validate(full=True)
                yield from batch.to_pylist()
                progress.append(batch.num_rows)


def _parquet(file: BinaryIO) -> Any:
    """Returns the `pyarrow.parquet.ParquetFile` of an open file."""
    from pyarrow import parquet

    return parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _parquet_batches(
    path: Path,
    table: Any,
    size: int,
    columns: Sequence[str] | None,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields batches of rows, with few rows where a value may be long.

    A file may store a long value once, in the dictionary of a column, for many rows, each of which
    gets a copy in the batch. A batch therefore has as many rows as take `_BATCH_BYTES` if each of
    them has all bytes of the largest part of a column, but at least `_FEWEST_ROWS`.

    Args:
        path: The file, for errors.
        table: The file as `_parquet` returns it.
        size: Size of the file in bytes.
        columns: Names of columns, or fields of structs; None for all.
        groups: Numbers of the row groups to read; None for all.

    Raises:
        DataError: The columns expand to more bytes than `Allowance` admits.
    """
    metadata = table.metadata
    # The dot keeps `text` from matching `text2`; a list of texts has the path `text.list.element`.
    paths = [f"{metadata.schema.column(leaf).path}." for leaf in range(metadata.num_columns)]
    starts = ("",) if columns is None else tuple(f"{column}." for column in columns)
    leaves = [leaf for leaf, name in enumerate(paths) if name.startswith(starts)]
    declared = Allowance(size)
    largest = 1
    groups = range(metadata.num_row_groups) if groups is None else groups
    for number in groups:
        group = metadata.row_group(number)
        for leaf in leaves:
            bytes_of_chunk = group.column(leaf).total_uncompressed_size
            declared.use(bytes_of_chunk, str(path))
            largest = max(largest, bytes_of_chunk)
    rows = min(max(_BATCH_BYTES // largest, _FEWEST_ROWS), _BATCH_ROWS)
    read = Allowance(size)
    for batch in table.iter_batches(rows, row_groups=list(groups), columns=columns):
        yield from _slices(path, batch, read)


def _arrow(file: BinaryIO, places: Sequence[int] | None = None) -> Any:
    """Returns a reader of the record batches of an Arrow file, from the first one.

    Args:
        file: A file of the stream format, or of the file format, which has a stream inside.
        places: Numbers of the columns to read; None for all.
    """
    from pyarrow import ipc

    _to_stream(file)
    return ipc.open_stream(file, options=ipc.IpcReadOptions(included_fields=places))


def _to_stream(file: BinaryIO) -> bool:
    """Moves to the start of the stream; returns whether the file has the file format.

    The file format is the stream between a magic number and a footer.
    """
    file.seek(0)
    is_file = file.read(len(_ARROW_FILE)) == _ARROW_FILE
    file.seek(_STREAM_IN_FILE if is_file else 0)
    return is_file


def _batches(path: Path, file: BinaryIO, places: Sequence[int] | None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of an Arrow file, in slices of few rows where rows share long values.

    Raises:
        DataError: The file expands to more bytes than `Allowance` admits.
        EOFError: The file does not end as a complete file does.
    """
    _check_expansion(path, file)
    allowance = Allowance(file_size(file))
    for batch in _arrow(file, places):
        yield from _slices(path, batch, allowance)
    end = _ARROW_FILE if _to_stream(file) else _END_OF_STREAM
    file.seek(-min(file.seek(0, os.SEEK_END), len(end)), os.SEEK_END)
    if file.read() != end:
        raise EOFError("the stream has no end")


def _check_expansion(path: Path, file: BinaryIO) -> None:
    """Raises DataError if a file expands to more bytes than `Allowance` admits.

    The sizes that the file declares are added up; nothing is expanded.
    """
    import pyarrow as pa
    from pyarrow import ipc

    allowance = Allowance(file_size(file))
    with contextlib.ExitStack() as stack:
        # Of a mapped file, little is read but the heads of its messages.
        source = file if is_remote(path) else stack.enter_context(pa.memory_map(str(path)))
        _to_stream(source)
        for message in ipc.MessageReader.open_stream(source):
            if message.type in ("record batch", "dictionary"):
                allowance.use(_expanded_bytes(message), str(path))


def _expanded_bytes(message: Any) -> int:
    """Returns the size in bytes of the buffers of a message after decompression.

    pyarrow does not tell this size, so the metadata are read here: FlatBuffers, whose tables
    Arrow's format/Message.fbs defines.
    """
    data, body = memoryview(message.metadata), memoryview(message.body)

    def field(table: int, number: int) -> int | None:
        """Returns the position in `data` of a table's field; None if the field is absent.

        A table begins with the distance back to its vtable. The vtable is two uint16 sizes, the
        first of which is its own, then the offset of each field from the table, 0 for none.
        """
        offsets = table - struct.unpack_from("<i", data, table)[0]
        entry = 4 + 2 * number
        if struct.unpack_from("<H", data, offsets)[0] <= entry:
            return None
        (offset,) = struct.unpack_from("<H", data, offsets + entry)
        return table + offset if offset else None

    def target(position: int | None) -> int:
        """Returns the position that the reference at `position` leads to.

        A reference is the distance from itself, a uint32.

        Raises:
            ValueError: `position` is None, as that of an absent field.
        """
        if position is None:
            raise ValueError("a message without a field")
        return position + struct.unpack_from("<I", data, position)[0]

    batch = target(field(target(0), 2))  # Message.header
    if message.type == "dictionary":
        batch = target(field(batch, 1))  # DictionaryBatch.data
    is_compressed = field(batch, 3) is not None  # RecordBatch.compression
    buffers = target(field(batch, 2))  # RecordBatch.buffers
    # A vector is its number of items, then the items: the start in the body and the length of each.
    (count,) = struct.unpack_from("<I", data, buffers)
    expanded = 0
    for start, length in struct.iter_unpack("<qq", data[buffers + 4 : buffers + 4 + 16 * count]):
        declared = -1
        if is_compressed and length:
            # The buffer begins with its size after decompression, or -1 if it is not compressed.
            (declared,) = struct.unpack_from("<q", body, start)
        expanded += length if declared < 0 else declared
    return expanded


def _slices(path: Path, batch: pa.RecordBatch, allowance: Allowance) -> Iterator[pa.RecordBatch]:
    """Yields slices of a batch whose rows, copied, take at most `_BATCH_BYTES` in each column.

    A single row may take more.

    Raises:
        DataError: The values expand to more bytes than `allowance` admits.
    """
    max_bytes = 1
    allowance.use(batch.nbytes, str(path))
    for lengths in map(_shared_lengths, batch.columns):
        if len(lengths):
            max_bytes = max(max_bytes, int(lengths.max()))
            allowance.use(int(lengths.sum(dtype=np.int64)), str(path))
    rows = max(_BATCH_BYTES // max_bytes, 1)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _shared_lengths(array: pa.Array) -> np.ndarray:
    """Returns the length in bytes of each value of a column whose rows may share values.

    Returns an empty array for a column of a type whose rows share nothing, or only short values.
    """
    import pyarrow as pa
    from pyarrow import compute

    types = pa.types
    if types.is_dictionary(array.type):
        kind = array.type.value_type
        texts = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
        if any(is_text(kind) for is_text in texts):
            array.validate(full=True)
            lengths = compute.binary_length(array.dictionary)
            return lengths.take(array.indices).fill_null(0).to_numpy(zero_copy_only=False)
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        array.validate()
        # Each view of 16 bytes begins with the length of its value.
        views = np.frombuffer(array.buffers()[1], np.int32)[::4]
        return views[array.offset : array.offset + len(array)]
    return np.empty(0, np.int32)


def _rows(path: Path, batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Returns an iterator over the rows of a batch, as the values of `columns`."""
    return zip(*(_values(_column(path, batch, column)) for column in columns))


def _column(path: Path, batch: pa.RecordBatch, column: str) -> pa.Array:
    """Returns a column of a batch, or the field of a struct that `column.field` names."""
    from pyarrow import compute

    number, child = _find_column(path, batch.schema, column)
    array = batch.column(number)
    array.validate()
    # `struct_field` gives null where the struct is null; `array.field` would not.
    return array if child is None else compute.struct_field(array, [child])


def _values(array: pa.Array) -> list[Any]:
    """Returns the values of a column: bytes for text, numbers, None, and `_OTHER` for other types.

    Text is not decoded, so that invalid UTF-8 makes only its row unusable.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(array.type):
        array.validate(full=True)
        array = array.dictionary_decode()
    if types.is_string(array.type):
        array = array.cast(pa.binary())
    elif types.is_large_string(array.type) or types.is_string_view(array.type):
        array = array.cast(pa.large_binary())
    kind = array.type
    plain = (types.is_binary, types.is_large_binary, types.is_integer, types.is_floating)
    if not any(is_kind(kind) for is_kind in (*plain, types.is_null)):
        return [_OTHER] * len(array)
    array.validate(full=True)
    return array.to_pylist()


def _names(schema: pa.Schema) -> list[str]:
    """Returns the columns of a schema; a field of a struct is `column.field`."""
    import pyarrow as pa

    names: list[str] = []
    for field in schema:
        if pa.types.is_struct(field.type):
            names += [f"{field.name}.{child.name}" for child in field.type]
        else:
            names.append(field.name)
    return names


def _find_column(path: Path, schema: pa.Schema, column: str) -> tuple[int, str | None]:
    """Finds a column in a schema.

    Returns:
        (number of the column, None), or for `column.field` (number of the struct, name of the
        field). A column that is itself named `column.field` takes precedence.

    Raises:
        DataError: No column has this name, or several have it.
    """
    import pyarrow as pa

    whole = schema.get_all_field_indices(column)
    if len(whole) == 1:
        return whole[0], None
    head, dot, child = column.partition(".")
    places = schema.get_all_field_indices(head)
    if dot and len(places) == 1:
        kind = schema.field(places[0]).type
        if pa.types.is_struct(kind) and [field.name for field in kind].count(child) == 1:
            return places[0], child
    if len(whole) > 1:
        raise DataError(
            f"{path}: {len(whole)} columns are called {printable(column)!r}; rename one"
        )
    raise_missing(path, column, _names(schema))


def raise_missing(path: Path, column: str, names: Sequence[str]) -> NoReturn:
    """Raises DataError for a column that a file lacks; names the columns that the file has."""
    listed = ", ".join(map(printable, names[:20])) or "none"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    raise DataError(
        f"{path}: no column {printable(column)!r}; its columns are {listed}{more}. Name one of "
        "them with --text_column, --language_column, --pair_columns or --where"
    )


@contextlib.contextmanager
def _readable(path: Path, kind: str) -> Iterator[list[int]]:
    """Raises DataError in place of pyarrow's errors, and if pyarrow is not installed.

    Args:
        path: The file, for errors.
        kind: Name of the format, for errors.

    Yields:
        A list to which the caller appends the number of rows of each batch that was read.
    """
    try:
        from pyarrow import ArrowException
    except ModuleNotFoundError as error:
        raise DataError(extras.missing(f"{path}: a {kind} file", "pyarrow")) from error
    progress: list[int] = []
    try:
        yield progress
    except DataError:
        raise
    except (ArrowException, OSError, EOFError, MemoryError, ValueError, struct.error) as error:
        check_is_data(path)
        why = " ".join(shown_error(error).split())
        raise DataError(
            f"{path}: not a readable {kind} file, truncated or damaged ({why}), after "
            f"{sum(progress):,} rows. Download or copy the file again"
        ) from error


def shown_error(error: BaseException) -> str:
    """Returns the start of an error's message in printable characters, or the error's type."""
    text = "".join(c if c.isprintable() else " " for c in str(error)[:_SHOWN_CHARS])
    return text or type(error).__name__
