"""The viewer over HTTP: who may ask, what is answered, that it is what training sees. Real files, a real store."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import select
import signal
import socket
import tarfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image

import sds
from commands import Sds
from sds.errors import OptionError
from sds.tensors import TensorCacheWriter
from sds.transforms import rng
from sds.view.gallery import Gallery
from sds.view.server import Viewer
from sds.view.shelf import Shelf
from viewing import HUGE_CHUNK, Answer, get, huge, make_clips, make_photos, served

NUM = 30


def jitter(sample):
    """A random number that belongs to the sample."""
    sample["drawn"] = float(rng(sample).random())
    return sample


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"), NUM, size=(96, 128))


@pytest.fixture(scope="module")
def viewer(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    with served(photos, tmp_path_factory.mktemp("dst"), data_type="image") as viewer:
        yield viewer


def view_of(viewer: Viewer, words: str = "") -> str:
    return get(f"{viewer.url}api/page?num=1&{words}").json["view"]


# ---- who may ask


def test_only_loopback_is_listened_to(viewer):
    assert viewer.url.startswith("http://127.0.0.1:")
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for host in others - {"127.0.0.1"}:
        with socket.socket() as other:
            other.settimeout(2)
            assert other.connect_ex((host, viewer.port)) != 0, host


def test_without_the_token_nothing_is_told(viewer):
    wrong, short = "A" * len(viewer.token), viewer.token[:-1]
    paths = ["", "/", "/api/page", f"/{wrong}/", f"/{short}/api/page", f"/{viewer.token}x/", "/%00/", "/favicon.ico"]
    for path in paths:
        answer = get(f"http://127.0.0.1:{viewer.port}{path}")
        assert answer.code == 403, path
        assert b"rows" not in answer.body and viewer.token.encode() not in answer.body, path


def test_a_page_of_another_site_is_refused_even_with_the_token(viewer):
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{viewer.port}"},
        {"Host": f"127.0.0.1.evil.example:{viewer.port}"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ):
        answer = get(f"{viewer.url}api/page", **headers)
        assert answer.code == 403, headers
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_port_that_was_forwarded_under_another_number_is_fine(viewer):
    assert get(f"{viewer.url}api/page?num=1", Host="localhost:9000", Origin="http://localhost:9000").code == 200


def test_every_answer_forbids_what_it_can_and_only_gives(viewer):
    thumb = f"thumb?view={view_of(viewer)}&row=0&column=image"
    for path in ("", "app.js", "api/page", thumb, "api/page?sql=x", "nothing", f"api/page?sql={'x' * 70_000}"):
        check_headers(get(viewer.url + path), path[:40])
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=10)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        connection.request(method, f"/{viewer.token}/api/page")
        reply = connection.getresponse()
        check_headers(Answer(reply.status, reply.headers, reply.read()), method)
        assert reply.status == 501
        connection.close()


def check_headers(answer: Answer, what: str) -> None:
    headers = answer.headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self'"), what
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    assert not re.search(r"Python|BaseHTTP", headers["Server"])


def test_odd_requests_are_errors_with_a_hint(viewer):
    view = view_of(viewer)
    for path in (
        f"file?view={view}&row=0&column=../../../etc/passwd",
        f"file?view={view}&row=0&column=caption",
        f"file?view={view}&row=99999&column=image",
        f"file?view={view}&row=-1&column=image",
        "file?view=/etc/passwd&row=0&column=image",
        f"thumb?view={view}&row=0",
        f"text?view={view}&row=1e3&column=image",
        f"api/sample?at={NUM}",
        "api/page?seed=x",
        "api/page?at=99999999999999999999999",
        f"api/place?row={NUM}",
        "api/place?row=3&key=another",
        f"output?view={view}&epoch=0&at=0&item=0&part=0",
        f"output?view={view}&epoch=0&at=0&item=7&part=0",
    ):
        answer = get(viewer.url + path)
        assert answer.code == 400, path
        assert answer.json["error"]["message"] and answer.json["error"]["hint"], path


def test_paths_lead_nowhere(viewer):
    for path in ("../", "static/app.js", "..%2f..%2fserver.py", "app.js/", "index.html", "/etc/passwd"):
        assert get(viewer.url + path).code in (403, 404), path


def test_a_file_that_is_no_media_is_not_given_out(tmp_path):
    (tmp_path / "page.jpg").write_text("<!doctype html><script>alert(1)</script>")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "t.csv").write_text("id,image\na,page.jpg\nb,pipe.jpg\nc,/etc/passwd\n")
    with served(tmp_path / "t.csv", tmp_path / "dst") as viewer:
        view = view_of(viewer)
        for row, code in ((0, 400), (1, 404), (2, 400)):
            answer = get(f"{viewer.url}file?view={view}&row={row}&column=image")
            assert answer.code == code and answer.headers["Content-Type"] == "application/json", answer
            assert b"alert" not in answer.body and b"root:" not in answer.body
            assert get(f"{viewer.url}thumb?view={view}&row={row}&column=image").code in (400, 404)


def test_a_small_file_with_a_large_image_in_it_does_not_reach_the_browser(tmp_path):
    Image.new("1", (2_500, 2_500)).save(tmp_path / "a.png")
    whole = bytearray((tmp_path / "a.png").read_bytes())
    assert len(whole) < 20_000
    whole[16:24] = (9_500).to_bytes(4, "big") * 2  # in its header, width and height
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    (tmp_path / "b.png").write_bytes(whole)
    (tmp_path / "t.csv").write_text("id,image\na,a.png\nb,b.png\n")
    with served(tmp_path / "t.csv", tmp_path / "dst") as viewer:
        urls = [f"{viewer.url}{{}}?view={view_of(viewer)}&row={row}&column=image" for row in (0, 1)]
        assert Image.open(io.BytesIO(get(urls[0].format("thumb")).body)).size == (480, 480), "drawn small"
        assert get(urls[0].format("file")).code == 200
        for path in ("thumb", "file"):
            answer = get(urls[1].format(path))
            assert answer.code == 400 and "pixels" in answer.json["error"]["message"], path


def test_a_query_that_nobody_waits_for_is_stopped(viewer):
    names = "abcdefgh"
    tables, total = ", ".join(f"dataframe {name}" for name in names), " + ".join(f"{name}.quality" for name in names)
    query = quote(f"SELECT a.* FROM {tables} WHERE {total} < 0")
    before = set(threading.enumerate())
    with socket.create_connection(("127.0.0.1", viewer.port)) as browser:
        head = f"GET /{viewer.token}/api/page?sql={query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        browser.sendall(head.encode())
        assert not select.select([browser], [], [], 0.3)[0], "it takes years"
    deadline = time.monotonic() + 60
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert get(f"{viewer.url}api/page?num=1").code == 200


# ---- what is answered


@pytest.mark.parametrize(("seed", "epoch"), [(None, 0), (5, 0), (5, 3)])
def test_rows_come_in_the_order_of_training(viewer, photos, tmp_path, seed, epoch):
    words = f"epoch={epoch}" + ("" if seed is None else f"&seed={seed}")
    pages = [get(f"{viewer.url}api/page?num=12&at={at}&{words}").json for at in (0, 12, 24)]
    keys = [row["key"] for page in pages for row in page["rows"]]
    dataset = sds.StreamingDataset(
        photos, tmp_path / "dst", index_col_name="id", columns_to_download=["image"], shuffle_seed=seed
    )
    wanted = [str(dataset.plan.row(epoch, k)) for k in range(NUM)]
    assert [str(int(key)) for key in keys] == wanted
    assert [page["total"] for page in pages] == [NUM] * 3
    assert (keys == sorted(keys)) == (seed is None)


def test_a_sample_is_what_the_loop_gets_at_that_position(photos, tmp_path):
    options = {"columns_to_download": [], "index_col_name": "id", "shuffle_seed": 3}
    dataset = sds.StreamingDataset(photos, tmp_path / "dst", transforms=[jitter], **options)
    dataset.set_epoch(2)
    wanted = [(sample["__sample_key__"], f"{sample['drawn']}") for sample in dataset]
    with served(photos, tmp_path / "dst", download=[], chain=[jitter]) as viewer:
        view_of(viewer)  # another order of the same rows is open
        for position in (0, 17, NUM - 1):
            sample = get(f"{viewer.url}api/sample?seed=3&epoch=2&at={position}").json
            parts = {part["name"]: part["text"] for part in sample["outputs"][0]}
            assert (sample["key"], parts["drawn"]) == wanted[position]
            for each in sample["comes_at"]:
                there = get(f"{viewer.url}api/page?seed=3&epoch={each['epoch']}&at={each['position']}&num=1").json
                assert there["rows"][0]["key"] == sample["key"]


def test_images_are_shown_and_transforms_drawn(viewer):
    page = get(f"{viewer.url}api/page?num=3").json
    assert page["rows"][0]["files"] == {"image": "image"} and page["rows"][0]["places"] == {"image": "local"}
    thumb = get(f"{viewer.url}thumb?view={page['view']}&row=0&column=image")
    assert thumb.headers["Content-Type"] == "image/jpeg"
    assert Image.open(io.BytesIO(thumb.body)).size == (128, 96), "a small one as it is"
    sample = get(f"{viewer.url}api/sample?at=0").json
    (number,) = [k for k, part in enumerate(sample["outputs"][0]) if part["kind"] == "image"]
    drawn = get(f"{viewer.url}output?view={sample['view']}&epoch=0&at=0&item=0&part={number}")
    assert Image.open(io.BytesIO(drawn.body)).size == (64, 64)


def test_large_and_odd_images_get_thumbnails(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (900, 1400, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(noise[:64, :64]).save(tmp_path / "b.tif")
    (tmp_path / "t.csv").write_text("id,image\na,a.jpg\nb,b.tif\n")
    with served(tmp_path / "t.csv", tmp_path / "dst") as viewer:
        view, sizes = view_of(viewer), []
        for row in (0, 1):
            answer = get(f"{viewer.url}thumb?view={view}&row={row}&column=image")
            assert answer.headers["Content-Type"] == "image/jpeg"
            sizes.append(Image.open(io.BytesIO(answer.body)).size)
        assert sizes == [(480, 309), (64, 64)]
        whole = get(f"{viewer.url}file?view={view}&row=0&column=image")
        assert whole.body == (tmp_path / "a.jpg").read_bytes()


def test_what_failed_is_said_and_listed(viewer):
    view = view_of(viewer)
    broken = get(f"{viewer.url}thumb?view={view}&row=8&column=image")
    assert broken.code == 404 and "file not found" in broken.json["error"]["message"]
    sample = get(f"{viewer.url}api/sample?at=7").json
    assert sample["outputs"] == [] and sample["error"]["kind"] == "DecodeError" and sample["key"] == "000007"
    get(f"{viewer.url}api/sample?at=7")
    for words in ("", "?seed=5"):  # whatever the order
        failures = get(f"{viewer.url}api/failures{words}").json
        assert sorted(each["row"] for each in failures["failures"]) == [7, 8] and failures["total"] == 2, "each once"
    assert get(f"{viewer.url}api/place?row=7&seed=5").json["position"] < NUM


def test_sql_answers_inline(viewer):
    wrong = get(f"{viewer.url}api/page?sql=SELECT+nope+FROM+dataframe")
    assert wrong.code == 400
    assert wrong.json["error"]["kind"] == "QueryError" and "caption" in wrong.json["error"]["hint"]
    assert get(f"{viewer.url}api/page?sql=SELECT+*+FROM+read_csv('/etc/passwd')").json["error"]["kind"] == "QueryError"
    empty = get(f"{viewer.url}api/page?sql=SELECT+*+FROM+dataframe+WHERE+quality>5")
    assert empty.code == 200 and empty.json["total"] == 0 and f"none of {NUM} rows" in empty.json["message"]
    some = get(f"{viewer.url}api/page?sql=SELECT+*+FROM+dataframe+WHERE+quality>0.5+ORDER+BY+quality&num=5").json
    qualities = [row["values"]["quality"] for row in some["rows"]]
    assert qualities == sorted(qualities) and min(qualities) > 0.5 and some["rows_at_source"] == NUM
    thumb = get(f"{viewer.url}thumb?view={some['view']}&row={some['rows'][0]['row']}&column=image")
    assert thumb.code == 200 and thumb.headers["Content-Type"] == "image/jpeg"
    bare = get(f"{viewer.url}api/page?sql=SELECT+id,+caption+FROM+dataframe&num=1").json
    assert bare["rows"][0]["files"] == {}, "a query may leave the column of files out that nobody named"


def test_clips_and_sounds_come_by_ranges(tmp_path):
    clips, sounds = make_clips(tmp_path / "media", 1, 1.0)
    for src, column, kind in ((clips, "video", "video/mp4"), (sounds, "sound", "audio/wav")):
        data = (tmp_path / "media" / ("00.mp4" if column == "video" else "00.wav")).read_bytes()
        with served(src, tmp_path / "dst", data_type=kind.partition("/")[0]) as viewer:
            url = f"{viewer.url}file?view={view_of(viewer)}&row=0&column={column}"
            whole = get(url)
            assert (whole.code, whole.body, whole.headers["Accept-Ranges"]) == (200, data, "bytes")
            part = get(url, Range="bytes=100-299")
            assert (part.code, part.body) == (206, data[100:300])
            assert part.headers["Content-Range"] == f"bytes 100-299/{len(data)}"
            assert part.headers["Content-Type"] == kind
            assert get(url, Range="bytes=-10").body == data[-10:]
            past = get(url, Range=f"bytes={len(data)}-")
            assert (past.code, past.headers["Content-Range"]) == (416, f"bytes */{len(data)}")
            sample = get(f"{viewer.url}api/sample?at=0").json
            assert "error" not in sample, sample
            (number,) = [k for k, part in enumerate(sample["outputs"][0]) if part["is_drawn"]]
            made = get(f"{viewer.url}output?view={sample['view']}&epoch=0&at=0&item=0&part={number}")
            assert made.headers["Content-Type"] == ("image/jpeg" if column == "video" else "audio/wav")
            if column == "video":
                poster = get(url.replace("file?", "thumb?"))
                assert Image.open(io.BytesIO(poster.body)).size == (320, 240)


def test_sources_that_hold_their_samples_are_shown(photos, tmp_path):
    folder = photos.parent / "photos"
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for number in range(4):
            tar.add(folder / f"{number:06d}.jpg", f"{number}.jpg")
            (tmp_path / "caption").write_text(f"number {number}")
            tar.add(tmp_path / "caption", f"{number}.txt")
    with served(tmp_path / "t.tar", tmp_path / "dst", id_column="index") as viewer:
        page = get(f"{viewer.url}api/page?num=4").json
        assert page["rows"][2]["files"] == {"jpg": "image", "txt": "text"}
        assert page["rows"][2]["places"] == {"jpg": "inside", "txt": "inside"}
        assert get(f"{viewer.url}text?view={page['view']}&row=2&column=txt").json == {"text": "number 2"}
        thumb = get(f"{viewer.url}thumb?view={page['view']}&row=2&column=jpg")
        assert thumb.body == (folder / "000002.jpg").read_bytes()
    with TensorCacheWriter(tmp_path / "t.tensors") as cache:
        cache.add("a", {"latent": torch.randn(4, 8, 8), "age": 7})
    with served(tmp_path / "t.tensors", tmp_path / "dst", id_column="index") as viewer:
        parts = {part["name"]: part for part in get(f"{viewer.url}api/sample?at=0").json["outputs"][0]}
        assert parts["latent"]["is_drawn"] and "float32 [4, 8, 8]" in parts["latent"]["text"]


def test_rows_that_changed_are_not_mixed_with_those_that_were_shown(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, colour in (("b", "red"), ("c", "blue")):
        Image.new("RGB", (8, 8), colour).save(folder / f"{name}.png")
    with served(folder, tmp_path / "dst", id_column="index") as viewer:
        before = get(f"{viewer.url}api/page").json
        url = f"{viewer.url}thumb?view={before['view']}&row=0&column=png"
        assert get(url).body == (folder / "b.png").read_bytes()
        Image.new("RGB", (8, 8), "green").save(folder / "a.png")
        for number in range(5):  # as many as push the first one off the shelf
            get(f"{viewer.url}api/page?sql=SELECT+*+FROM+dataframe+WHERE+{number}={number}")
        now = get(f"{viewer.url}api/page").json
        assert [row["key"] for row in now["rows"]] == ["a", "b", "c"] and now["view"] != before["view"]
        answer = get(url)
        assert answer.code == 400 and "have changed" in answer.json["error"]["message"]
        assert get(url.replace(before["view"], now["view"])).body == (folder / "a.png").read_bytes()


def test_remote_files_pass_through_the_cache(photos, s3, bucket, dst, tmp_path):
    rows = ["id,image"]
    for number in range(6):
        data = (photos.parent / "photos" / f"{number:06d}.jpg").read_bytes()
        s3.put(bucket, f"{number}.jpg", data)
        rows.append(f"{number},s3://{bucket}/{number}.jpg")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    storage = [f"endpoint={s3.endpoint}", f"region={s3.region}"]
    environment = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    with pytest.MonkeyPatch.context() as patch, served(tmp_path / "t.csv", dst, storage=storage) as viewer:
        for name, value in environment.items():
            patch.setenv(name, value)
        view = view_of(viewer)
        answer = get(f"{viewer.url}thumb?view={view}&row=2&column=image")
        assert answer.body == (photos.parent / "photos" / "000002.jpg").read_bytes()
        places = [row["places"]["image"] for row in get(f"{viewer.url}api/page").json["rows"]]
        assert places == ["remote", "remote", "cached", "remote", "remote", "remote"], "only what was looked at"
        cache = get(f"{viewer.url}api/cache").json
        assert cache["files"] == 1 and cache["bytes"] == len(answer.body) and cache["misses"] == 1
        assert s3.secret_key not in json.dumps(get(f"{viewer.url}api/about").json)


def test_of_a_large_remote_sound_only_what_is_played_is_fetched(s3, bucket, dst, tmp_path):
    data = b"RIFF\0\0\0\0WAVEfmt " + bytes(16_000_000) + bytes(range(100)) + bytes(2_000_000)
    start = 16_000_016
    s3.put(bucket, "a.wav", data)
    (tmp_path / "t.csv").write_text(f"id,sound\na,s3://{bucket}/a.wav\n")
    storage = [f"endpoint={s3.endpoint}", f"region={s3.region}"]
    with pytest.MonkeyPatch.context() as patch, served(tmp_path / "t.csv", dst, storage=storage) as viewer:
        patch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
        url = f"{viewer.url}file?view={view_of(viewer)}&row=0&column=sound"
        part = get(url, Range=f"bytes={start}-{start + 99}")
        assert (part.code, part.body) == (206, bytes(range(100)))
        assert part.headers["Content-Range"] == f"bytes {start}-{start + 99}/{len(data)}"
        assert get(f"{viewer.url}api/cache").json["bytes_downloaded"] < 3_000_000


def test_a_hundred_million_rows_are_no_burden(tmp_path_factory):
    src, dst = huge(tmp_path_factory)
    began = time.process_time()
    with served(src, dst, id_column="index", lazy_index_chunk_size=HUGE_CHUNK) as viewer:
        for seed, at in (("", 99_999_990), ("", 54_321_000), ("7", 87_654_321)):
            page = get(f"{viewer.url}api/page?num=24&at={at}&seed={seed}").json
            assert page["total"] == 100_000_000 and len(page["rows"]) == min(24, 100_000_000 - at)
        row = page["rows"][0]
        assert get(f"{viewer.url}thumb?view={page['view']}&row={row['row']}&column=image").code == 200
        sample = get(f"{viewer.url}api/sample?at={row['position']}&seed=7").json
        assert sample["key"] == row["key"] and sample["comes_at"][0]["position"] == row["position"]
    # to read all of it would take minutes of CPU
    assert time.process_time() - began < 20


# ---- the command


def test_the_command_opens_a_browser_lists_failures_of_a_run_and_ends_by_interrupt(
    photos, tmp_path, monkeypatch, capsys
):
    chain = [*sds.transforms.presets.create_standard_image_pipeline("image", (16, 16))]
    options = {"index_col_name": "id", "columns_to_download": ["image"], "transforms": chain, "max_failures": 10}
    dataset = sds.StreamingDataset(photos, tmp_path / "dst", **options)
    with sds.StreamingDataLoader(dataset, 8, collate_fn=len) as loader:
        loader.record(tmp_path / "run.jsonl")
        list(loader)
    query, seen = "SELECT * FROM dataframe WHERE quality < 0.7", {}

    def look(url: str) -> None:
        """What a person does: looks, and presses Ctrl-C."""
        try:
            seen["url"], seen["code"], seen["start"] = url, get(url).code, get(f"{url}api/start").json
            words = f"sql={quote(query)}"
            seen["failures"] = get(f"{url}api/failures?{words}").json["failures"]
            seen["places"] = [
                get(f"{url}api/place?{words}&row={each['row']}&key={each['key']}").code for each in seen["failures"]
            ]
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("DISPLAY", ":0")
    threads: list[threading.Thread] = []

    def open_browser(url: str) -> None:
        threads.append(threading.Thread(target=look, args=(url,)))
        threads[0].start()

    monkeypatch.setattr("webbrowser.open", open_browser)
    before = signal.getsignal(signal.SIGTERM)
    try:
        words = (
            "--id",
            "id",
            "--seed",
            "4",
            "--dst",
            tmp_path / "dst",
            "--sql",
            query,
            "--run",
            tmp_path / "run.jsonl",
        )
        done = Sds(monkeypatch, capsys)("view", photos, *words)
    finally:
        signal.signal(signal.SIGTERM, before)
        for thread in threads:
            thread.join()
    assert done.code == 0 and done.err.endswith("ended\n") and "Traceback" not in done.err
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", done.out), done.out
    assert seen["url"] == done.out.strip() and seen["code"] == 200
    assert seen["start"] == {"sql": query, "seed": 4, "epoch": 0, "at": 0}
    assert {each["row"] for each in seen["failures"]} == {7, 8}
    assert seen["places"] == [400, 400], "the run had other rows under these numbers"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["gone.parquet"], 1, "gone.parquet"),
        (["{src}", "--sql", "SELEC"], 1, "sql_query is not SQL"),
        (["{src}", "--data-type", "imag"], 2, "did you mean 'image'"),
        (["{src}", "--data-type", "image", "--transforms", "a:b"], 2, "exclude each other"),
        (["{src}", "--transforms", "no_such_module:chain"], 2, "cannot be imported"),
        (
            ["{src}", "--data-type", "audio", "--download", "image", "--download", "caption"],
            2,
            "finds no column of audio",
        ),
    ],
)
def test_what_cannot_be_shown_is_told_at_once(photos, tmp_path, monkeypatch, capsys, words, code, message):
    done = Sds(monkeypatch, capsys)(
        "view", *(word.format(src=photos) for word in words), "--id", "id", "--no-open", "--dst", tmp_path / "dst"
    )
    assert done.code == code and message in done.err and "hint:" in done.err and done.out == ""


def test_a_port_that_is_taken_is_an_error(viewer):
    with pytest.raises(OptionError, match="cannot be served"):
        Viewer(Gallery(Shelf(lambda query, seed: None)), viewer.port)
