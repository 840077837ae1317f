"""Work on an engine of Ray: the one at RAY_ADDRESS, or one of this machine, which ends with the work.

Comes in: a function and its tasks. Goes out: their results, in order. A worker that dies is started again with its
task; what a task raises is raised here. Paths lead to the same files on all machines, or are URLs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from sds.errors import OptionError, SdsError

__all__ = ["check_engine", "check_resources", "run_on_ray", "started_ray"]

_NUM_RESTARTS = 5  # of a task whose worker died


def check_engine(engine: str | None, **only_with_engine: object) -> bool:
    """Whether Ray is asked for.

    Raises:
        OptionError: another engine is, or an option is given that needs one.
    """
    if engine not in (None, "ray"):
        raise OptionError(f"engine is unknown: {engine!r}", hint="'ray', or leave it out for this process")
    given = [f"--{name.replace('_', '-')}" for name, value in only_with_engine.items() if value is not None]
    if engine is None and given:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in only_with_engine)
        verb = "are" if len(only_with_engine) > 1 else "is"
        hint = "add --engine ray; in this process, --threads says how many work side by side"
        raise OptionError(f"{names} {verb} for an engine", hint=hint)
    return engine == "ray"


@contextmanager
def started_ray() -> Iterator[Any]:
    """Ray, connected; inside of the block it is there for all, and one that was begun here ends with it.

    Raises:
        OptionError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        hint = "pip install 'streaming-dataset[ray]'; or leave --engine out"
        raise OptionError("engine 'ray' needs the package ray", hint=hint) from error
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with redirect_stdout(sys.stderr):  # Ray speaks of what dies; results alone are for stdout
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
        try:
            yield ray
        finally:
            ray.shutdown()


def run_on_ray(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    num_workers: int,
    num_gpus: float = 0.0,
    title: str = "",
) -> list[Any]:
    """Calls a function with each task's arguments, so many at once as there are workers.

    Args:
        work: a function of a module.
        tasks: what it is called with.
        num_workers: how many work side by side.
        num_gpus: what each of them needs.
        title: what people read while they wait.

    Raises:
        OptionError: Ray is not installed, or no machine of it has what a worker needs.
        SdsError: what a worker raised; or one died again and again.
    """
    with started_ray() as ray:
        try:
            check_resources([node["Resources"] for node in ray.nodes() if node["Alive"]], num_gpus)
            run = ray.remote(num_cpus=1, num_gpus=num_gpus, max_retries=_NUM_RESTARTS)(work)
            return _results(ray, run, tasks, num_workers, title)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, SdsError) else error) from None
        except ray.exceptions.RayError as error:
            hint = "was it killed for want of memory? What was made is kept: start it again, with fewer workers"
            raise SdsError(f"a worker of Ray died again and again: {type(error).__name__}", hint=hint) from error


def _results(ray: Any, run: Any, tasks: Sequence[tuple[Any, ...]], num_workers: int, title: str) -> list[Any]:
    results: list[Any] = [None] * len(tasks)
    waiting: dict[Any, int] = {}
    num_started = num_done = 0
    while num_done < len(tasks):
        while num_started < len(tasks) and len(waiting) < num_workers:
            waiting[run.remote(*tasks[num_started])] = num_started
            num_started += 1
        for done in ray.wait(list(waiting))[0]:
            results[waiting.pop(done)] = ray.get(done)
            num_done += 1
        print(f"{title}{num_done} of {len(tasks)} shares are done", file=sys.stderr, flush=True)
    return results


def check_resources(nodes: Sequence[Mapping[str, float]], num_gpus: float) -> None:
    """OptionError if no machine of Ray has what a worker needs: Ray itself would wait for one, for ever."""
    if num_gpus > 1 and num_gpus % 1:
        raise OptionError(f"worker_gpus is no whole number: {num_gpus}", hint="several GPUs are whole ones, such as 2")
    if not any(node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= num_gpus for node in nodes):
        there = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes) or "none"
        hint = "lower --worker-gpus, or start Ray on machines that have them (RAY_ADDRESS says which Ray)"
        raise OptionError(f"no machine of Ray has 1 CPU and {num_gpus:g} GPUs; there are: {there}", hint=hint)
