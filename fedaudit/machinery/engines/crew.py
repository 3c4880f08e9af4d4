"""The engines' common half: threads that hand jobs to workers, and give the job of a dead worker to another one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedaudit.machinery.executor import Job, WorkerDied

TRIES = 3  # of one job whose worker dies, in all

AGAIN = "a worker process died (was it killed for its memory?); its job runs again in another one"
DIED = "a worker process died (was it killed for its memory?); run the same command to resume"


class Lost(Exception):
    """A worker died, or cannot be reached any more."""


class Worker(Protocol):
    """A process that holds the bench. One thread uses it at a time; any thread may kill it."""

    def call(self, function: Job, job: Any) -> Any:
        """`function(bench, job)`, computed by the worker; an error of the function is raised here. Lost: it died."""
        ...

    def end(self) -> None:
        """End an idle worker, and wait until it is gone."""
        ...

    def kill(self) -> None:
        """Kill the worker, whatever it does, and wait until it is gone."""
        ...


@dataclass
class _Task:
    function: Job
    job: Any
    future: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)
    tries: int = 0

    def begin(self) -> bool:
        """Whether the job is still wanted; counts a try."""
        self.tries += 1
        return self.tries > 1 or self.future.set_running_or_notify_cancel()


class Crew:
    """Workers with a thread each in this process. Jobs start in the order in which they were submitted.

    A job whose worker died runs again, up to `TRIES` times in all; `say` is told of the first death. `hire` returns a
    worker in place of a dead one, None if there are no more; `leave` cleans up when all workers are gone.
    """

    def __init__(
        self, workers: Sequence[Worker], hire: Callable[[], Worker | None], say: Callable[[str], None],
        leave: Callable[[], None],
    ) -> None:  # fmt: skip
        self._hire, self._say, self._leave = hire, say, leave
        self._tasks = queue.SimpleQueue[_Task | None]()
        self._lock = threading.Lock()  # of what follows
        self._workers, self._announced, self._closed = list(workers), False, False
        self._threads = [threading.Thread(target=self._serve, args=(worker,), daemon=True) for worker in workers]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Job, job: Any) -> concurrent.futures.Future[Any]:
        """The future result of `function(bench, job)`."""
        task = _Task(function, job)
        with self._lock:
            if self._workers:
                self._tasks.put(task)
            else:
                task.future.set_exception(WorkerDied(DIED))
        return task.future

    def end(self) -> None:
        """Wait for the jobs that have begun, drop the others, and end the workers."""
        for task in self._waiting():
            task.future.cancel()
        self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.end()
        self._leave()

    def kill(self) -> None:
        """Kill the workers, whatever they do, and wait until they are gone."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        self._tasks.put(None)
        self._leave()

    def _serve(self, worker: Worker | None) -> None:
        """Hand jobs to a worker, one after the other, and to those that come after it."""
        while worker is not None and (task := self._tasks.get()) is not None:
            if not task.begin():
                continue
            try:
                task.future.set_result(worker.call(task.function, task.job))
            except Lost:
                worker = self._replace(worker)
                self._retry(task)
            except BaseException as error:
                task.future.set_exception(error)
        if worker is not None:
            self._tasks.put(None)  # for the other threads

    def _replace(self, dead: Worker) -> Worker | None:
        """A worker in place of a dead one; None if there are no more."""
        dead.kill()
        with self._lock:
            announce = not self._announced and not self._closed
            self._announced |= announce
        if announce:
            self._say(AGAIN)
        try:
            worker = None if self._closed else self._hire()
        except Exception:  # it could not be started: the others go on
            worker = None
        with self._lock:
            self._workers.remove(dead)
            if worker is not None and self._closed:
                worker.kill()
                worker = None
            self._workers += [] if worker is None else [worker]
        return worker

    def _retry(self, task: _Task) -> None:
        """Run a job again whose worker died. The job fails after `TRIES`, and all jobs if no worker is left."""
        with self._lock:
            if task.tries < TRIES and self._workers and not self._closed:
                self._tasks.put(task)
                return
            dropped = [] if self._workers else [one for one in self._waiting() if one.begin()]
        for one in (task, *dropped):
            one.future.set_exception(WorkerDied(DIED))

    def _waiting(self) -> Iterator[_Task]:
        """Take all waiting jobs out of the queue."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (task := self._tasks.get_nowait()) is not None:
                    yield task
