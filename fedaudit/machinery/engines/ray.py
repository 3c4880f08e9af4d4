"""The engine of many machines: a worker is an actor of Ray (extra `cluster`) on a node that shares the folder of --out.

RAY_ADDRESS names a running cluster; without it one is started on this machine, and ended afterwards. Jobs and results
travel as in `parcels`, large ones by files of the shared folder; the object store holds what builds the bench. Ray
itself restarts nothing: who runs a job again is the crew, as on one machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedaudit.machinery.engines.crew import DIED, Crew, Lost
from fedaudit.machinery.engines.parcels import pickled, unpickled, unwrap, unwrap_outcome, wrap, wrap_outcome
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Job, WorkerDied, one_thread

SETTINGS = {  # read by Ray when it is imported, and by the processes that it starts
    "RAY_USAGE_STATS_ENABLED": "0",  # an auditor of privacy does not phone home
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill workers for what other processes use
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",  # /dev/shm of a container may have 64 MB
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` it would make an environment for each worker
}
STORE = 128 * 2**20  # bytes of the object store of a cluster that is started here
PATIENCE = 60.0  # seconds in which a node must have place for a worker
SIMD = "vector instructions of the processor"  # of `environment`: a mix of them is said, not refused

Environment = Callable[[], Mapping[str, str]]


def start(
    build: Callable[[], Any], workers: int, say: Callable[[str], None], *, folder: Path, cpus: float, gpus: float,
    environment: Environment,
) -> Crew:  # fmt: skip
    """Start actors. `folder` is one that all nodes share; `environment` says, anywhere, what must be alike there: by
    name, and `SIMD`. InputError: Ray or a place for the workers is missing, or a node is unlike this process."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise InputError("--engine ray: Ray is not installed; pip install 'fedaudit[cluster]'") from error
    ours = not ray.is_initialized()
    shared = folder.absolute() / f"ray-{secrets.token_hex(8)}"

    def leave() -> None:
        shutil.rmtree(shared, ignore_errors=True)
        if ours:
            with _handler_kept():
                ray.shutdown()

    shared.mkdir(parents=True)
    started: list[_Actor] = []
    try:
        if ours:
            _connect(ray, workers, cpus, gpus)
        _check_place(ray.cluster_resources(), workers, cpus, gpus)
        build_ref = ray.put(pickled(build))  # kept by `hire`: a later worker reads it too
        kind = ray.remote(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD", max_restarts=0)(_Bench)

        def hire() -> _Actor | None:
            actor = _Actor(kind.remote(str(shared)), shared)
            actor.prepare(build_ref)
            return actor if actor.ready(PATIENCE) else None

        started += [_Actor(kind.remote(str(shared)), shared) for _ in range(workers)]
        _check_alike([actor.tell(environment) for actor in started], environment(), shared, say)
        for actor in started:
            actor.prepare(build_ref)
        if not all(actor.ready() for actor in started):
            raise WorkerDied(DIED)
    except BaseException:
        for actor in started:
            actor.kill()
        leave()
        raise
    return Crew(started, hire, say, leave)


def _connect(ray: Any, workers: int, cpus: float, gpus: float) -> None:
    """Join the cluster of RAY_ADDRESS, or start one on this machine."""
    address = os.environ.get("RAY_ADDRESS")
    here = {"num_cpus": workers * cpus, "num_gpus": workers * gpus, "object_store_memory": STORE}
    with _handler_kept():
        try:
            ray.init(
                address or "local", include_dashboard=False if not address else None, log_to_driver=False,
                logging_level="ERROR", **({} if address else here),
            )  # fmt: skip
        except (ConnectionError, ValueError, RuntimeError) as error:
            if not address:
                raise
            raise InputError(f"RAY_ADDRESS {address}: no Ray cluster answers there ({error})") from error


@contextmanager
def _handler_kept() -> Iterator[None]:
    """Keep this process' handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_place(resources: Mapping[str, float], workers: int, cpus: float, gpus: float) -> None:
    """InputError: the cluster has fewer processors or GPUs than the workers need, which would wait for ever."""
    for flag, name, each in (("--worker-cpus", "CPU", cpus), ("--worker-gpus", "GPU", gpus)):
        if workers * each > (has := resources.get(name, 0.0)):
            raise InputError(
                f"--workers {workers}: with {flag} {each:g} they need {workers * each:g} {name}s, and the Ray cluster "
                f"has {has:g}; at most {int(has // each)}"
            )


def _check_alike(
    told: list[Mapping[str, str]], here: Mapping[str, str], shared: Path, say: Callable[[str], None]
) -> None:
    """InputError: a node differs from this process, or does not see the shared folder. `say` is told of processors with
    different vector instructions."""
    for there in told:
        node = there["node"]
        if there["folder"] != "seen":
            raise InputError(f"node {node} does not see {shared.parent}: --out must be a folder that all nodes share")
        differing = [name for name in here if name != SIMD and there.get(name) != here[name]]
        if unlike := [f"{name} {there.get(name)} there, {here[name]} here" for name in differing]:
            raise InputError(f"node {node} is unlike this machine: {'; '.join(unlike)}; install the same on all nodes")
    kinds = sorted({here.get(SIMD, ""), *(there.get(SIMD, "") for there in told)})
    if len(kinds) > 1:
        say(f"warning: {SIMD} differ between machines ({', '.join(kinds)}): last digits may differ from run to run")


class _Bench:
    """The bench on a node, and the calls of its functions. Ray makes an actor of it."""

    def __init__(self, shared: str) -> None:
        self._shared, self._bench = Path(shared), list[Any]()
        one_thread()

    def tell(self, environment: Environment) -> dict[str, str]:
        """The environment of this node, its name, and whether it sees the shared folder."""
        import ray

        folder = "seen" if self._shared.is_dir() else "missing"
        return {**environment(), "node": ray.util.get_node_ip_address(), "folder": folder}

    def prepare(self, build: bytes) -> bytes:
        """Build the bench; None as a parcel."""
        return wrap_outcome(lambda: self._bench.append(unpickled(build)()), self._shared)

    def call(self, parcel: bytes) -> bytes:
        """The outcome of a job as a parcel."""

        def work() -> Any:
            function, job = unwrap(parcel)
            return function(self._bench[0], job)

        return wrap_outcome(work, self._shared)


class _Actor:
    """A worker on a node, as this process reaches it."""

    def __init__(self, actor: Any, shared: Path) -> None:
        self._actor, self._shared = actor, shared

    def tell(self, environment: Environment) -> dict[str, str]:
        """See `_Bench`. InputError: the node cannot import FedAudit."""
        import ray

        try:
            return dict(ray.get(self._actor.tell.remote(environment)))
        except ray.exceptions.RayError as error:
            raise InputError(
                f"a node of the Ray cluster cannot start a worker ({str(error).splitlines()[0]}); install the same "
                "FedAudit on all nodes"
            ) from error

    def prepare(self, build_ref: Any) -> None:
        """Begin to build the bench."""
        self._prepared = self._actor.prepare.remote(build_ref)

    def ready(self, patience: float | None = None) -> bool:
        """Whether the bench is built, within `patience` seconds. What its building raises is raised here."""
        import ray

        done, _ = ray.wait([self._prepared], timeout=patience)
        try:
            if done:
                unwrap_outcome(ray.get(self._prepared))
                return True
        except ray.exceptions.RayError:
            pass
        self.kill()
        return False

    def call(self, function: Job, job: Any) -> Any:
        """See `Worker`."""
        import ray

        parcel = wrap((function, job), self._shared)
        try:
            answer = ray.get(self._actor.call.remote(parcel))
        except ray.exceptions.RayError as error:
            raise Lost from error
        return unwrap_outcome(answer)

    def end(self) -> None:
        """See `Worker`."""
        self.kill()

    def kill(self) -> None:
        """See `Worker`."""
        import ray

        ray.kill(self._actor)
