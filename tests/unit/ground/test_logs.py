import os
import subprocess
import sys

import pytest

# pytest has handlers of its own on the root logger, so what a program sees is looked at in a program
PROGRAM = """
import logging, sys
{before}
from sds import logs
logs.set_up()
logs.set_up()
log = logging.getLogger("sds.fetch")
log.debug("a debug line")
log.info("an info line")
log.warning("a warning")
"""


def lines(level=None, before=""):
    env = {k: v for k, v in os.environ.items() if k != "SDS_LOG_LEVEL"} | ({"SDS_LOG_LEVEL": level} if level else {})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_it_is_quiet_but_for_warnings():
    assert lines() == ["sds.fetch WARNING: a warning"]


@pytest.mark.parametrize(
    ("level", "number"), [("debug", 3), ("INFO", 2), (" warning ", 1), ("error", 0), ("critical", 0)]
)
def test_the_level_decides(level, number):
    assert len(lines(level)) == number


def test_a_program_with_logging_of_its_own_gets_the_records_once():
    before = "logging.basicConfig(format='mine: %(message)s')"
    assert lines("info", before) == ["mine: an info line", "mine: a warning"]
