import re
from html.parser import HTMLParser

import msgspec
import pytest

from sds.errors import OptionError, SdsError, SourceError, SourceNotFound
from sds.events import Stats
from sds.observe import read_run, report
from sds.observe.plots import draw_lines, draw_stack, round_up
from sds.observe.runs import read_runs
from sds.stats import Beginning, Failed, Moment, Slow, Traffic
from sds.types import Failure

EVIL = '<script>alert("x")</script><img src=http://x/y>'


def lines(number=20, rank=0):
    yield Beginning(1_800_000_000.0, rank, "0.1.0", 77)
    for k in range(1, number + 1):
        yield Moment(
            float(k),
            Stats(
                samples=100 * k,
                batches=k,
                bytes_downloaded=10**6 * k,
                hits=k,
                misses=3 * k,
                wall_s=float(k),
                num_threads=2,
                time_to_first_batch=0.5,
                wait_s={"consumer": 0.5 * k, "fetch": 1.5 * k},
                busy_s={"consumer": 0.5 * k, "decode": 0.2 * k},
                traffic=(Traffic("s3://photos", "standard", 1000 * k, 10**9 * k),),
                slowest=(Slow(2.5, f"https://host/{EVIL}", 1000),),
            ),
        )
    yield Failed(3.0, Failure(f"key {EVIL}", 3, None, "decode", f"reason {EVIL}"))


def write(path, *args, **options):
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines(*args, **options)))
    return path


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.all, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.all.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.all.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text):
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def test_a_record_is_read_as_it_was_written(tmp_path):
    run = read_run(write(tmp_path / "run.jsonl"))
    assert (run.beginning.rank, len(run.moments), len(run.failures)) == (0, 20, 1)
    assert run.stats.samples == 2000
    assert run.stats.traffic == (Traffic("s3://photos", "standard", 20_000, 20 * 10**9),)
    assert run.stats.bottleneck == "fetch"


def test_the_line_that_a_killed_run_did_not_finish_is_left_out(tmp_path):
    path = write(tmp_path / "run.jsonl")
    whole = path.read_bytes()
    for cut in (whole[:-5], whole + b'{"ty', whole + b"\xff\xfe"):
        path.write_bytes(cut)
        assert len(read_run(path).moments) == 20


@pytest.mark.parametrize("content", [b"", b"id,url\n1,2\n", b'{"a": 1}\n{"b": 2}\n', b"\x00\xff\n\n"])
def test_what_is_no_record_is_told(tmp_path, content):
    (tmp_path / "run.jsonl").write_bytes(content)
    with pytest.raises(SourceError, match="no record of a run") as caught:
        read_run(tmp_path / "run.jsonl")
    assert "loader.record" in caught.value.hint


def test_no_record_at_all(tmp_path):
    for path in (tmp_path / "gone.jsonl", tmp_path):
        with pytest.raises(SourceNotFound):
            read_runs(path)


def test_ranks_are_found_beside_the_first_and_in_a_folder(tmp_path):
    write(tmp_path / "run.rank1.jsonl", rank=1)
    write(tmp_path / "run.jsonl")
    assert [run.beginning.rank for run in read_runs(tmp_path / "run.jsonl")] == [0, 1]
    assert [run.beginning.rank for run in read_runs(tmp_path)] == [0, 1]
    write(tmp_path / "run[1].rank1.jsonl", rank=1)
    write(tmp_path / "run[1].jsonl")
    assert [run.beginning.rank for run in read_runs(tmp_path / "run[1].jsonl")] == [0, 1]


def test_the_page_is_whole_and_asks_nobody_for_anything(tmp_path):
    page = report(write(tmp_path / "run.jsonl"), tmp_path / "made" / "report.html").read_text()
    tags = parsed(page)
    assert not {"script", "img", "link", "iframe", "a"} & set(tags.all)
    assert not [value for name, value in tags.attributes if name in ("src", "href", "srcset")]
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page
    assert EVIL not in page and "&lt;script&gt;" in page
    assert tags.all.count("svg") == 6


def test_the_page_has_the_figures(tmp_path):
    page = report(write(tmp_path / "run.jsonl"), tmp_path / "report.html").read_text()
    for words in ("2,000", "25.0%", "Bottleneck: <b>fetch</b>", "s3://photos", "$1.81", "2.50 s", "reason &lt;"):
        assert words in page, words
    cheap = report(tmp_path / "run.jsonl", tmp_path / "report.html", {"s3": {"transfer_per_gb": 0}}).read_text()
    assert "$0.008" in cheap


def test_a_run_of_several_ranks_has_a_part_for_each(tmp_path):
    write(tmp_path / "run.jsonl")
    write(tmp_path / "run.rank1.jsonl", rank=1)
    page = report(tmp_path, tmp_path / "report.html").read_text()
    assert "2 ranks" in page and "Rank 1" in page
    assert parsed(page).all.count("svg") == 12


def test_a_run_that_just_began_has_a_page_too(tmp_path):
    page = report(write(tmp_path / "run.jsonl", 0), tmp_path / "report.html").read_text()
    parsed(page)
    assert page.count("nothing yet") == 6


def test_a_page_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(OptionError, match="cannot be written"):
        report(write(tmp_path / "run.jsonl"), tmp_path)


def test_errors_of_records_are_ours(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(b"[" * 100_000)
    with pytest.raises(SdsError):
        read_run(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    ("value", "end"), [(0, 1), (-1, 1), (0.3, 0.5), (1, 1), (7, 10), (11, 20), (21, 25), (260, 500), (float("inf"), 1)]
)
def test_axes_end_at_round_numbers(value, end):
    assert round_up(value) == pytest.approx(end)


def test_points_lie_where_their_values_are():
    svg = draw_lines("t", {"a": [(0.0, 0.0), (10.0, 50.0), (20.0, 100.0)]}, str)
    (points,) = re.findall(r'<polyline[^>]*points="([^"]+)"', svg)
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, point.split(","))) for point in points.split())
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x0 < x1
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y0 > y1


def test_areas_stand_on_each_other_and_many_points_become_few():
    times = [float(k) for k in range(5000)]
    svg = draw_stack("t", {"a": [(x, 0.25) for x in times], "b": [(x, 0.75) for x in times]}, str, top=1.0)
    first, second = re.findall(r'<polygon[^>]*points="([^"]+)"', svg)
    assert len(first.split()) <= 800
    assert second.split()[-1] == first.split()[0], "the second begins where the first ends"
