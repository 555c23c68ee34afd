"""Worker processes with a progress bar, for items of very different size."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")
Report = Callable[[int], None]


class WorkerDied(ValueError):
    """A worker process ended without returning a result."""


def run(
    work: Callable[[Item, Report], Result],
    items: Sequence[Item],
    workers: int,
    start: Callable[[], object] | None,
    desc: str = "prepare",
    unit: str = "file",
    size_of: Callable[[Item], int] = lambda item: 0,
) -> Iterator[tuple[Item, Result]]:
    """Processes items in parallel.

    Args:
      work: Function that processes an item and returns the result. Its arguments are the item and
        a function to call with the number of texts processed since the last call. `work` and the
        items are pickled if there are several workers.
      items: Items to process, preferably the longest first.
      workers: Number of processes; with one worker or one item, this process does all work.
      start: Function that is called once in every new process, or None.
      desc: Name of the progress bar.
      unit: Noun for an item in the progress bar, such as "file".
      size_of: Function that returns the bytes of an item. The bar estimates the time that is left
        from bytes, or from the number of items if all sizes are 0.

    Yields:
      (item, result), in order of completion.

    Raises:
      WorkerDied: A process was killed, for example because it ran out of memory.
    """
    workers = min(workers, len(items))
    sizes = [size_of(item) for item in items]
    with _progress(sizes, desc, unit) as bar:
        if workers <= 1:
            for item, size in zip(items, sizes):
                yield item, work(item, bar.add)
                bar.finish(size)
        else:
            for item, result in _in_processes(work, items, workers, start, bar):
                yield item, result
                bar.finish(size_of(item))


def _in_processes(
    work: Callable[[Item, Report], Result],
    items: Sequence[Item],
    workers: int,
    start: Callable[[], object] | None,
    bar: _Bar,
) -> Iterator[tuple[Item, Result]]:
    """Yields the results of `run`, computed in worker processes."""
    # Spawn, because forking a process with TensorFlow's threads can hang.
    context = multiprocessing.get_context("spawn")
    counts = context.Queue()
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _start, (counts, start))
    try:
        waiting: dict[concurrent.futures.Future[Result], Item] = {
            pool.submit(_call, work, item): item for item in items
        }
        while waiting:
            done, _ = concurrent.futures.wait(waiting, 0.5, concurrent.futures.FIRST_COMPLETED)
            with contextlib.suppress(queue.Empty):
                while True:
                    bar.add(counts.get_nowait())
            for future in done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
        raise WorkerDied(
            "A worker process died, probably because it ran out of memory. Run the same command "
            "again with fewer --workers; finished tasks are kept."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# In a worker process: the queue of the numbers of texts that were processed.
_counts: Any = None


def _start(counts: Any, start: Callable[[], object] | None) -> None:
    """Initializes a worker process."""
    global _counts
    _counts = counts
    # First, before anything slow. If the parent is killed, the pool's workers would wait forever,
    # since each of them holds both ends of the queue that they read from.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if start:
        start()


def _end_with_parent() -> None:
    """Waits until the parent process ends, then ends this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are child processes"
    parent.join()
    os._exit(1)


def _call(work: Callable[[Item, Report], Result], item: Item) -> Result:
    return work(item, _counts.put)


class _Bar:
    """A progress bar over items that also counts texts, to show progress within a large item.

    Args:
      bar: The bar, of bytes or of items.
      items: Number of items.
      unit: Noun for an item.
      counts_bytes: Whether the bar counts bytes rather than items.
    """

    def __init__(self, bar: tqdm, items: int, unit: str, counts_bytes: bool):
        self._bar, self._items, self._unit = bar, items, unit
        self._counts_bytes = counts_bytes
        self._done = self._texts = 0

    def add(self, texts: int) -> None:
        """Adds texts that were processed."""
        self._texts += texts
        self._show()
        self._bar.update(0)

    def finish(self, size: int) -> None:
        """Counts an item of `size` bytes as finished."""
        self._done += 1
        self._show()
        self._bar.update(size if self._counts_bytes else 1)

    def _show(self) -> None:
        done = f"{self._done} of {self._items} {self._unit}s, " if self._counts_bytes else ""
        self._bar.set_postfix_str(f"{done}{self._texts:,} texts", refresh=False)


@contextlib.contextmanager
def _progress(sizes: Sequence[int], desc: str, unit: str) -> Iterator[_Bar]:
    total = sum(sizes)
    options = {"total": total, "unit": "B", "unit_scale": True} if total else {"total": len(sizes)}
    with open_bar(**{"desc": desc, "unit": unit, **options}) as bar:
        yield _Bar(bar, len(sizes), unit, bool(total))


def open_bar(**options: Any) -> tqdm:
    """Opens a progress bar on stderr; updates at most every 10 seconds if stderr is not a terminal.

    Args:
      **options: Further arguments of `tqdm`.
    """
    from tqdm import tqdm

    return tqdm(
        file=sys.stderr,
        dynamic_ncols=True,
        mininterval=0.1 if sys.stderr.isatty() else 10,
        # By default, tqdm also waits for as much progress as between earlier updates, which would
        # freeze the text count while a file is processed.
        miniters=0,
        **options,
    )
