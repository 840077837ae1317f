"""One file for each workload: its title, the figure that it is judged by, and the contenders with their programs.

A workload has `TITLE`, `ABOUT`, `FIGURE` (a key of what contenders print; `LOWER` if less is better) and
`cases(bench)`. It may have `HEADS` (names of columns that differ from the report's) and `COMPARED` (False: rows do
different work, so the report has no ratio to sds). Contenders whose package is not installed are left out by
`bench.peer`, with a note.
"""
