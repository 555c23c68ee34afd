"""Streaming readers of Parquet and Arrow files, by pyarrow.

`datasets` writes its Arrow files, those of `save_to_disk` included, in the stream format. A file is
read in batches, and only the columns that are asked for. Arrow files are validated before they are
used, since offsets in a damaged file may point anywhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from xlme_jax.data.text.decompression import Allowance, DataError, file_size, open_file, shown

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS, _FEWEST_ROWS = 1024, 16
_BATCH_BYTES = 1 << 29
_BUFFER_BYTES = 1 << 20
_ARROW_FILE = b"ARROW1"
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


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yields the values of columns row by row, text as bytes.

    Raises:
        DataError: The file is damaged, or lacks a column.
    """
    with open_file(path) as file, _readable(path, "Parquet") as progress:
        table = _parquet(file)
        for column in columns:
            _place(path, table.schema_arrow, column)
        for batch in _parquet_batches(path, table, file_size(file), columns):
            yield from _rows(path, batch, columns)
            progress.append(batch.num_rows)


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
        places = {_place(path, schema, column)[0] for column in columns}
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
    from pyarrow import parquet

    return parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _parquet_batches(
    path: Path, table: Any, size: int, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yields batches that take no more than `_BATCH_BYTES`, or a few rows of a large group.

    A value that a column's dictionary has once may be in all rows, each with a copy in the batch.

    Args:
        path: The file, for errors.
        table: The file, opened.
        size: Its bytes.
        columns: Names of columns, or fields of structs; None for all.
    """
    metadata = table.metadata
    paths = [f"{metadata.schema.column(leaf).path}." for leaf in range(metadata.num_columns)]
    starts = ("",) if columns is None else tuple(f"{column}." for column in columns)
    leaves = [leaf for leaf, name in enumerate(paths) if name.startswith(starts)]
    declared, largest = Allowance(size), 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for leaf in leaves:
            bytes_of_chunk = group.column(leaf).total_uncompressed_size
            declared.use(bytes_of_chunk, str(path))
            largest = max(largest, bytes_of_chunk)
    rows = min(max(_BATCH_BYTES // largest, _FEWEST_ROWS), _BATCH_ROWS)
    read = Allowance(size)
    for batch in table.iter_batches(rows, columns=columns):
        read.use(batch.nbytes, str(path))
        yield batch


def _arrow(file: BinaryIO, places: Sequence[int] | None = None) -> Any:
    """Opens a file of Arrow's stream or file format at its start."""
    from pyarrow import ipc

    file.seek(0)
    is_file = file.read(len(_ARROW_FILE)) == _ARROW_FILE
    file.seek(0)
    options = ipc.IpcReadOptions(included_fields=places)
    return (ipc.open_file if is_file else ipc.open_stream)(file, options=options)


def _batches(path: Path, file: BinaryIO, places: Sequence[int] | None) -> Iterator[pa.RecordBatch]:
    from pyarrow import ipc

    allowance = Allowance(file_size(file))
    reader = _arrow(file, places)
    is_file = isinstance(reader, ipc.RecordBatchFileReader)
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    for batch in batches:
        allowance.use(batch.nbytes, str(path))
        yield batch
    if is_file:
        return
    file.seek(-min(file.seek(0, os.SEEK_END), len(_END_OF_STREAM)), os.SEEK_END)
    if file.read() != _END_OF_STREAM:
        raise EOFError("the stream has no end")


def _rows(path: Path, batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(_values(_column(path, batch, column)) for column in columns))


def _column(path: Path, batch: pa.RecordBatch, column: str) -> pa.Array:
    from pyarrow import compute

    place, child = _place(path, batch.schema, column)
    array = batch.column(place)
    array.validate()
    # Unlike the array's own field, a null struct gives null.
    return array if child is None else compute.struct_field(array, [child])


def _values(array: pa.Array) -> list[Any]:
    """Returns the values; invalid UTF-8 is kept, to be skipped row by row."""
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
    import pyarrow as pa

    return [
        name
        for field in schema
        for name in (
            [f"{field.name}.{child.name}" for child in field.type]
            if pa.types.is_struct(field.type)
            else [field.name]
        )
    ]


def _place(path: Path, schema: pa.Schema, column: str) -> tuple[int, str | None]:
    """Returns the number of a column, and the field of the struct that it is, if any."""
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
        raise DataError(f"{path}: {len(whole)} columns are called {shown(column)!r}; rename one")
    raise_missing(path, column, _names(schema))


def raise_missing(path: Path, column: str, names: Sequence[str]) -> NoReturn:
    """Raises a DataError that lists the columns that exist."""
    known = ", ".join(map(shown, names[:20])) or "none"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    raise DataError(
        f"{path}: no column {shown(column)!r}; its columns are {known}{more}. Name one of them "
        "with --text_column, --language_column or --pair_columns"
    )


@contextlib.contextmanager
def _readable(path: Path, kind: str) -> Iterator[list[int]]:
    """Converts pyarrow's errors; yields a list for the numbers of rows read so far."""
    try:
        from pyarrow import ArrowException
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path}: {kind} files need pyarrow: pip install 'xlme_jax[hfdata]'"
        ) from error
    progress: list[int] = []
    try:
        yield progress
    except DataError:
        raise
    except (ArrowException, OSError, EOFError, MemoryError, UnicodeError) as error:
        why = " ".join(shown_error(error).split())
        raise DataError(
            f"{path}: not a readable {kind} file, truncated or damaged ({why}), after "
            f"{sum(progress):,} rows. Download or copy the file again"
        ) from error


def shown_error(error: BaseException) -> str:
    """Returns the start of an error's message, printable."""
    text = "".join(c if c.isprintable() else " " for c in str(error)[:_SHOWN_CHARS])
    return text or type(error).__name__
