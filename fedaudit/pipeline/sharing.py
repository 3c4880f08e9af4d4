"""Work that several commands with one --out share: what another one works on is left out first, and waited for last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from fedaudit.machinery.locks import Busy

Item = TypeVar("Item")
Result = TypeVar("Result")
Chains = Callable[[Callable[[Any, Any], Any], Iterable[Iterable[Any]]], Iterator[Any]]  # as `Executor.chains`


def free_first(work: Callable[[Item, bool], Result], items: Sequence[Item]) -> list[Result]:
    """`work(item, wait)` of each item, in the order of the items. It is called without waiting first; the items for
    which that raises Busy come last, and wait."""
    results: dict[int, Result] = {}
    for wait in (False, True):
        for i, item in enumerate(items):
            if i not in results:
                try:
                    results[i] = work(item, wait)
                except Busy:
                    continue
    return [results[i] for i in range(len(items))]


def free_chains_first(
    chains: Chains, function: Callable[[Any, Any], int], jobs: Sequence[tuple[object, ...]], untils: Sequence[int]
) -> Iterator[int]:
    """Run trainings in workers, part by part, and yield the result of each part. The argument of `function` is that of
    `jobs`, a number of `untils` and whether to wait; after Busy the rest of that training comes last."""
    position = [0] * len(jobs)
    for wait in (False, True):
        busy = set[int]()

        def chain(i: int, wait: bool = wait, busy: set[int] = busy) -> Iterator[Any]:
            while position[i] < len(untils) and i not in busy:
                yield function, i, (*jobs[i], untils[position[i]], wait)

        for i, result in chains(_unless_busy, [chain(i) for i in range(len(jobs))]):
            if result is None:
                busy.add(i)
            else:
                position[i] += 1
                yield result


def _unless_busy(bench: Any, job: tuple[Callable[[Any, Any], int], int, Any]) -> tuple[int, int | None]:
    """A job's number and result; None in its place if another process works on it."""
    function, i, argument = job
    try:
        return i, function(bench, argument)
    except Busy:
        return i, None
