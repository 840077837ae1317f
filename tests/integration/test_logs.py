"""The log of a program that sets nothing up itself."""

from __future__ import annotations

import subprocess
import sys


def test_a_dataset_sets_it_up(tmp_path):
    (tmp_path / "a.csv").write_text("id,image\n1,gone.jpg\n2,gone.jpg\n")
    code = (
        "import sds\n"
        f"ds = sds.StreamingDataset({str(tmp_path / 'a.csv')!r}, {str(tmp_path / 'dst')!r}, index_col_name='id',"
        " columns_to_download=['image'], print_exceptions=True, max_failures=5)\n"
        "try:\n    list(ds)\nexcept sds.errors.TooManyFailures: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("sds WARNING: sample") == 2
