"""One file for each workload: its title, the figure that it is judged by, and the contenders with their programs.

A workload has `TITLE`, `ABOUT`, `FIGURE` (a key of what contenders print; `LOWER` if less is better) and
`cases(bench)`. Contenders whose package is not installed are left out by `bench.peer`, with a note.
"""
