import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "pyarrow", "numpy", "duckdb", "obstore", "msgspec", "PIL", "rich", "typer")
# measured inside a fresh interpreter, without its own start; the best of three, for the machine may be busy
MEASURE = """
import json, sys, threading, time
start = time.perf_counter()
import {module}
took = time.perf_counter() - start
print(json.dumps([took, threading.active_count(), sorted({{name.partition('.')[0] for name in sys.modules}})]))
"""


def measure(module):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(module=module)], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_importing_sds_loads_nothing_and_starts_nothing():
    took, num_threads, modules = min(measure("sds") for _ in range(3))
    assert not set(HEAVY) & set(modules)
    assert num_threads == 1
    assert took < 0.3


@pytest.mark.parametrize("module", ["sds.errors", "sds.world", "sds.units"])
def test_the_ground_floor_is_light(module):
    _, num_threads, modules = measure(module)
    assert not set(HEAVY) & set(modules)
    assert num_threads == 1


def test_the_plan_loads_numpy_only():
    _, num_threads, modules = measure("sds.plan")
    assert set(HEAVY) & set(modules) == {"numpy"}
    assert num_threads == 1
