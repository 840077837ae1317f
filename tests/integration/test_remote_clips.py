"""Clips of long videos on a real store, by byte ranges: the same frames, few bytes, whole files where that fails."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch

import fetching
import sds
from media_files import ffmpeg
from sds.errors import DecodeError, FetchError, IntegrityError, ObjectNotFound, SdsError
from sds.fetch import HEAD, FetchClient, FetchOptions, File, RemoteFile
from sds.testing import Fault, FaultyProxy, HTTPServer, S3Server
from sds.transforms import DecodeAudio, DecodeVideo, DecodeVideoAndAudio, presets

CLIP = 30  # frames: 2 s
X264 = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", 15, "-bf", 2)
X265 = ("-c:v", "libx265", "-crf", 10, "-preset", "ultrafast", "-x265-params", "log-level=0:keyint=15:bframes=3")
LAYOUTS: dict[str, tuple[str, tuple[object, ...]]] = {
    "index first": ("first.mp4", ("-movflags", "+faststart")),
    "index last": ("last.mp4", ()),
    "matroska": ("plain.mkv", ()),
}
# containers and codecs, each in its own way of finding a frame
KINDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "h264": ("mp4", X264),
    "h264 open groups": ("mkv", (*X264, "-x264-params", "open-gop=1:keyint=15:min-keyint=15:scenecut=0")),
    "h264 intra refresh": ("mkv", (*X264, "-x264-params", "intra-refresh=1:keyint=15")),
    "h264 fragments": ("mp4", (*X264, "-movflags", "frag_keyframe+empty_moov")),
    "h264 stream": ("ts", X264),
    "hevc": ("mp4", X265),
    "vp9": ("webm", ("-c:v", "libvpx-vp9", "-g", 15, "-deadline", "realtime", "-cpu-used", 8, "-b:v", "600k")),
    "av1": ("mp4", ("-c:v", "libaom-av1", "-g", 15, "-cpu-used", 8, "-usage", "realtime", "-b:v", "600k")),
    "mpeg4": ("avi", ("-c:v", "mpeg4", "-g", 12, "-q:v", 4)),
    "mpeg2": ("mpg", ("-c:v", "mpeg2video", "-r", 25, "-g", 12, "-bf", 2, "-q:v", 4)),
    "variable rate": ("mkv", ("-vf", "select='mod(n\\,3)*mod(n\\,7)'", "-fps_mode", "vfr", *X264)),
}
# ranges may be of no use: no index, or one that is strewn over the file, or frames that need all before them
NEEDS_ALL = ("h264 fragments", "h264 stream", "mpeg2", "h264 intra refresh")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 s with sound, 1.5 MB; longer ones are repetitions of it."""
    path = tmp_path_factory.mktemp("videos") / "base.mp4"
    ffmpeg(
        *("-f", "lavfi", "-i", "testsrc2=size=320x180:rate=15:duration=8"),
        *("-f", "lavfi", "-i", "sine=frequency=440:duration=8:sample_rate=48000"),
        *("-vf", "noise=alls=30:allf=t", *X264, "-b:v", "1500k", "-maxrate", "1800k", "-bufsize", "2M", "-c:a", "aac"),
        path,
    )
    return path


def repeated(base: Path, layout: str, times: int = 15) -> Path:
    name, options = LAYOUTS[layout]
    path = base.with_name(f"{times}-{name}")
    if not path.exists():
        ffmpeg("-stream_loop", times - 1, "-i", base, "-c", "copy", *options, path)
    return path


class Place:
    """A folder for caches and indexes, and a bucket."""

    def __init__(self, tmp_path: Path, s3: S3Server, bucket: str) -> None:
        self.folder, self.s3, self.bucket = tmp_path, s3, bucket

    def put(self, path: Path, name: str | None = None) -> str:
        self.s3.put(self.bucket, name or path.name, path.read_bytes())
        return f"s3://{self.bucket}/{name or path.name}"

    def dataset(self, urls: list[str], *transforms: Any, dst: str = "cache", **options: Any) -> sds.StreamingDataset:
        table = {"index": [str(i) for i in range(len(urls))], "url": urls}
        pq.write_table(pa.table(table), self.folder / f"{dst}.parquet")
        options = {"on_error": "raise", "storage_options": self.s3.storage_options, "cache_limit": None, **options}
        source, cache = str(self.folder / f"{dst}.parquet"), str(self.folder / dst)
        return sds.StreamingDataset(source, cache, columns_to_download=["url"], transforms=list(transforms), **options)


@pytest.fixture
def place(tmp_path: Path, s3: S3Server, bucket: str) -> Place:
    return Place(tmp_path, s3, bucket)


@pytest.fixture
def client(dst: Path) -> Iterator[FetchClient]:
    client = FetchClient(FetchOptions(dst=str(dst)))
    yield client
    client.close()


def remote_file(client: FetchClient, url: str, block: int) -> RemoteFile:
    (ticket,) = client.submit([[File(url, None, (0, block))]])
    (file,) = ticket.take_files()
    assert isinstance(file, RemoteFile)
    return file


def decoder(**options: Any) -> DecodeVideo:
    return DecodeVideo("url", CLIP, "video", frame_timestamps_output_field="times", **options)


def locally(path: Path, sample: dict[str, Any], transform: Any) -> dict[str, Any]:
    """What the transform makes of the local file, with the dice of the sample."""
    return transform({"url": str(path), "__random_seed__": sample["__random_seed__"]})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_clip_takes_a_small_part_of_a_long_video(base: Path, place: Place, layout: str) -> None:
    path = repeated(base, layout)
    url, size = place.put(path), path.stat().st_size
    assert size > 20e6
    most = 0.0
    for epoch in range(2):  # other places of the video
        with place.dataset([url], decoder(), dst=f"cache{epoch}") as data:
            data.set_epoch(epoch)
            sample = data[0]
            expected = locally(path, sample, decoder())
            assert torch.equal(sample["video"], expected["video"]) and torch.equal(sample["times"], expected["times"])
            assert sample["url"] == url
            stats = data.stats()
            assert (stats.range_reads, stats.range_fallbacks) == (1, 0)
            assert stats.bytes_downloaded == fetching.num_bytes_on_disk(place.folder / f"cache{epoch}")
            assert torch.equal(data[0]["video"], expected["video"]) and data.stats().requests == stats.requests
            most = max(most, stats.bytes_downloaded / size)
    fetching.say(f"{layout}: at most {most:.1%} of {size / 1e6:.0f} MB")
    assert most < 0.12


def test_the_frames_are_those_of_the_local_file(
    base: Path, client: FetchClient, http_server: HTTPServer, tmp_path: Path
) -> None:
    decode = DecodeVideo("url", 10, "video")
    for kind, (extension, options) in KINDS.items():
        path = tmp_path / f"video.{extension}"
        small = () if "-vf" in options else ("-vf", "scale=128:72")
        ffmpeg("-stream_loop", 1, "-i", base, "-an", *small, *options, path)
        http_server.put(f"{tmp_path.name}/{kind}", path.read_bytes())
        url, num_whole = http_server.url(f"{tmp_path.name}/{kind}"), 0
        for seed in range(3):
            expected = decode({"url": str(path), "__random_seed__": seed})
            file = remote_file(client, url, 2048)
            assert torch.equal(decode({"url": file, "__random_seed__": seed})["video"], expected["video"]), kind
            if file.path is not None:
                num_whole += 1
                break  # its whole copy is in the cache now
        assert not num_whole or kind in NEEDS_ALL, kind
    assert client.tally.stats().range_reads > 24


def test_fragments_without_an_index_are_fetched_whole(
    base: Path, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    path = base.with_name("fragments.mp4")
    ffmpeg("-stream_loop", 14, "-i", base, "-c", "copy", "-movflags", "frag_keyframe+empty_moov", path)
    urls = [place.put(path, f"{number}.mp4") for number in range(2)]
    with place.dataset(urls, decoder()) as data, caplog.at_level(logging.INFO, "sds.fetch"):
        for number in range(2):
            sample = data[number]
            assert torch.equal(sample["video"], locally(path, sample, decoder())["video"])
            assert sample["url"] == urls[number]
        stats = data.stats()
        assert (stats.range_reads, stats.range_fallbacks) == (2, 2)
        said = [record.getMessage() for record in caplog.records if "not by ranges" in record.getMessage()]
        assert len(said) == 1 and urls[0] in said[0]
        data.set_epoch(1)
        sample = data[0]  # from the whole copy, without a request
        assert data.stats().requests == stats.requests and data.stats().range_reads == 2
        assert sample["url"] == urls[0]  # whether or not a whole copy was there


def test_a_layout_without_index_is_fetched_ahead_of_time_once_that_is_known(base: Path, place: Place) -> None:
    path = base.with_name("short-fragments.mp4")
    ffmpeg("-i", base, "-c", "copy", "-movflags", "frag_keyframe+empty_moov", "-frag_duration", 100_000, path)
    urls = [place.put(path, f"{number}.mp4") for number in range(12)]
    with place.dataset(urls, decoder(), lambda sample: open(sample["url"]).close() or sample, dst="opened") as data:
        pipeline = data.delivery.pipeline
        pipeline._ranges._worth["url"] = 1  # as if 1.5 MB were large
        for number in range(12):
            data[number]
        assert (data.stats().range_reads, data.stats().range_fallbacks) == (8, 8)


def test_small_videos_are_fetched_whole_and_ahead_of_time(base: Path, place: Place) -> None:
    urls = [place.put(base, f"{number}.mp4") for number in range(16)]
    with place.dataset(urls, decoder(), prefetch=2) as data:
        for sample in data:
            assert os.path.exists(sample["url"])
            assert torch.equal(sample["video"], locally(base, sample, decoder())["video"])
        stats = data.stats()
        assert stats.range_reads == 0
        assert 16 <= stats.requests <= 16 + 8 + 2 + 2  # the first ones are asked how large they are


def test_a_whole_copy_that_is_there_is_used(base: Path, place: Place) -> None:
    url = place.put(repeated(base, "index first"))
    with place.dataset([url], decoder(remote="whole")) as data:
        whole = data[0]
        assert data.stats().requests == 1 and os.path.exists(whole["url"])

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        is_whole = os.path.samefile(sample["url"], whole["url"])
        return {**sample, "notes": {"from": [sample["url"]], "pair": (sample["url"], 1)}, "is_whole": is_whole}

    with place.dataset([url], decoder(), note) as data:
        sample = data[0]
        assert data.stats().requests == 0 and data.stats().range_reads == 0 and data.stats().range_fallbacks == 0
        assert torch.equal(sample["video"], whole["video"]) and sample["is_whole"]
        assert sample["url"] == url and sample["notes"] == {"from": [url], "pair": (url, 1)}


def test_a_transform_that_wants_a_path_gets_one(base: Path, place: Place) -> None:
    path = repeated(base, "index first")
    url = place.put(path)

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        with open(sample["url"], "rb") as file:
            return {**sample, "size": len(file.read()), "place": os.fspath(sample["url"])}

    with place.dataset([url], decoder(), note) as data:
        sample = data[0]
        assert sample["size"] == path.stat().st_size and sample["url"] == url
        assert os.path.exists(sample["place"])  # it is held with the sample
        assert data.stats().range_fallbacks == 1
    with place.dataset([url], note, decoder(), dst="other") as data:  # whoever comes first is no friend of ranges
        assert data[0]["url"].endswith(".mp4") and data.stats().range_reads == 0


def test_sound_by_ranges(base: Path, place: Place, tmp_path: Path) -> None:
    path = repeated(base, "index last")
    joint = DecodeVideoAndAudio("url", "video", "audio", "rate", CLIP)
    with place.dataset([place.put(path)], joint, dst="joint") as data:
        sample = data[0]
        expected = locally(path, sample, joint)
        assert torch.equal(sample["video"], expected["video"]) and torch.equal(sample["audio"], expected["audio"])
        assert data.stats().bytes_downloaded < 0.12 * path.stat().st_size
    for name in ("long.wav", "long.flac"):
        noise = np.random.default_rng(0).normal(0, 0.1, (16_000 * 700, 1)).astype(np.float32)
        soundfile.write(tmp_path / name, noise, 16_000)
        decode = DecodeAudio("url", "audio", duration=2.0)
        with place.dataset([place.put(tmp_path / name)], decode, dst=f"cache of {name}") as data:
            sample = data[0]
            assert torch.equal(sample["audio"], locally(tmp_path / name, sample, decode)["audio"])
            stats = data.stats()
            fetching.say(f"{name}: {stats.bytes_downloaded / (tmp_path / name).stat().st_size:.1%}")
            assert (stats.range_reads, stats.range_fallbacks) == (1, 0)
            assert stats.bytes_downloaded < 0.2 * (tmp_path / name).stat().st_size


def test_an_object_that_changes_between_two_parts(base: Path, place: Place) -> None:
    path = repeated(base, "index first")
    url = place.put(path)
    with place.dataset([url], decoder()) as data:
        data[0]
        other = bytearray(path.read_bytes())
        other[-1] ^= 1
        place.s3.put(place.bucket, path.name, bytes(other))
        with pytest.raises(IntegrityError, match="changed while it was read") as caught:
            for epoch in range(1, 20):  # some of these places are not in the cache
                data.set_epoch(epoch)
                data[0]
        assert url in str(caught.value) and caught.value.url == url and "revalidate" in str(caught.value)


def test_an_object_that_goes_away(base: Path, place: Place, http_server: HTTPServer) -> None:
    path = repeated(base, "index first")
    name = f"{place.folder.name}/{path.name}"
    http_server.put(name, path.read_bytes())
    with place.dataset([http_server.url(name)], decoder()) as data:
        data[0]
        (http_server.folder / name).unlink()
        with pytest.raises(ObjectNotFound, match=path.name):
            for epoch in range(1, 20):
                data.set_epoch(epoch)
                data[0]


def test_a_truncated_object_is_told_by_its_url(base: Path, place: Place) -> None:
    path = repeated(base, "index last")
    url = f"s3://{place.bucket}/short.mp4"
    place.s3.put(place.bucket, "short.mp4", path.read_bytes()[:20_000_000])  # the index is gone
    with place.dataset([url], decoder()) as data, pytest.raises(DecodeError) as caught:
        data[0]
    assert url in str(caught.value) and caught.value.url == url and "objects" not in str(caught.value)


def test_a_video_much_larger_than_the_cache(base: Path, place: Place) -> None:
    path = repeated(base, "matroska")
    url = place.put(path)
    with place.dataset([url], decoder(), cache_limit="2mb") as data, fetching.Watch(place.folder / "cache") as watch:
        for epoch in range(4):
            data.set_epoch(epoch)
            sample = data[0]
            assert torch.equal(sample["video"], locally(path, sample, decoder())["video"])
        assert data.stats().range_fallbacks == 0
    assert 0 < watch.most <= 2e6


def test_killed_servers_in_the_middle_of_reading(dst: Path, http_server: HTTPServer, new_name: Any) -> None:
    (url,) = fetching.publish(http_server, new_name(), [4_000_000])
    data = fetching.content("0.bin", 4_000_000)
    client = FetchClient(FetchOptions(dst=str(dst)))
    num_right = 0
    with fetching.killing(dst, 4, 0.15) as killed:
        deadline = time.monotonic() + 30
        while (len(killed) < 4 or num_right < 20) and time.monotonic() < deadline:
            file = remote_file(client, url, 2048)
            for start in range(0, 4_000_000, 400_001):
                assert file.read_at(start, 5000) == data[start : start + 5000]
            num_right += 1
    assert len(killed) == 4 and num_right >= 20
    assert client.tally.stats().range_fallbacks == 0
    client.close()


def test_a_server_that_gives_no_parts(base: Path, place: Place) -> None:
    body = base.read_bytes()
    with (
        fetching.RawServer(lambda _: fetching.response("200 OK", body, ETag='"x"')) as server,
        place.dataset([f"{server.url}/video.mp4"], decoder(remote="ranges")) as data,
    ):
        sample = data[0]
        assert torch.equal(sample["video"], locally(base, sample, decoder())["video"])
        assert data.stats().range_reads == 0 and sample["url"] == f"{server.url}/video.mp4"


def test_closing_a_loader_ends_a_read_that_hangs(base: Path, place: Place) -> None:
    body = repeated(base, "index first").read_bytes()
    head = {"Content_Range": f"bytes 0-{HEAD[1] - 1}/{len(body)}", "ETag": '"x"'}
    answers = [fetching.response("206 Partial Content", body[: HEAD[1]], **head)]  # and then silence
    with (
        fetching.RawServer(lambda _: answers.pop() if answers else None) as server,
        place.dataset([str(base), f"{server.url}/video.mp4?x=1"], decoder(), timeout=60) as data,
    ):
        loader = sds.StreamingDataLoader(data, batch_size=1)
        batches = iter(loader)
        next(batches)
        fetching.until(lambda: len(server.targets) > 1)
        began = time.monotonic()
        loader.close()
        assert time.monotonic() - began < 20


def test_presets_choose_how(base: Path, place: Place) -> None:
    url = place.put(base)
    for remote, num_reads in (("ranges", 1), ("whole", 0)):
        chain = presets.create_standard_video_pipeline("url", 8, (64, 64), decode_kwargs={"remote": remote})
        with place.dataset([url], *chain, dst=remote) as data:
            assert data[0]["video"].shape == (8, 3, 64, 64)
            assert data.stats().range_reads == num_reads
    with pytest.raises(SdsError, match="remote"):
        decoder(remote="sometimes")


def test_any_bytes_can_be_read_as_of_a_file(client: FetchClient, http_server: HTTPServer, new_name: Any) -> None:
    (url,) = fetching.publish(http_server, new_name(), [300_000])
    data, dice = fetching.content("0.bin", 300_000), random.Random(0)
    remote = remote_file(client, url, 1000)
    assert remote.size == len(data)
    file = remote.open()
    is_in_parts = set()
    for _ in range(60):  # the last ones are read from the whole object
        place = file.seek(dice.randrange(310_000))
        length = dice.choice([0, 1, 999, 1000, 1001, 7000])
        assert file.read(length) == data[place : place + length] and file.tell() == place + len(data[place:][:length])
        is_in_parts.add(remote.path is None)
    assert is_in_parts == {True, False}
    assert remote.open().read() == data
    assert file.seek(-10, os.SEEK_END) == len(data) - 10 and file.read() == data[-10:]
    assert Path(remote).read_bytes() == data
    (ticket,) = client.submit([[File(url, None, (0, 1000))]])
    ticket.release()
    with pytest.raises(FetchError, match="let go of"):
        ticket.take_files()


def failing(file: RemoteFile, number: int) -> list[int]:
    """Makes one of its fetches fail; the list grows with each of them."""
    fetch, asked = file._fetch, []

    def fail(numbers: list[int]) -> None:
        asked.append(len(numbers))
        if len(asked) == number:
            raise file._failed(FetchError("line is dead", hint="mend it", url=file.name))
        fetch(numbers)

    file._fetch = fail  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("format", ["OGG", "WAV"])
def test_bytes_that_cannot_be_had_are_no_silence(
    base: Path, client: FetchClient, http_server: HTTPServer, tmp_path: Path, format: str
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (8 * 16_000, 1)).astype(np.float32)
    soundfile.write(tmp_path / "noise", noise, 16_000, format=format, subtype="FLOAT" if format == "WAV" else None)
    http_server.put(f"{tmp_path.name}/noise", (tmp_path / "noise").read_bytes())
    joint = DecodeVideoAndAudio(
        *("video", "frames", "sound", "rate", 15),
        audio_input_field="url",
        decode_kwargs={"crop_interval": (4.0, 6.0), "random_offset": False, "min_size": (16, 16)},
    )
    for decode in (joint, DecodeAudio("url", "sound", duration=2.0, clip_offset_strategy="center")):
        expected = decode({"video": str(base), "url": str(tmp_path / "noise")})
        for number in range(1, 100):
            # each from an empty memory; a float WAV clip is more than it reads at once
            url = http_server.url(f"{tmp_path.name}/noise") + f"?{type(decode).__name__}={number}"
            file = remote_file(client, url, 1024)
            asked = failing(file, number)
            try:
                sample = decode({"video": str(base), "url": file})
            except FetchError as error:
                assert "line is dead" in str(error) and len(asked) >= number
                continue
            assert len(asked) < number and torch.equal(sample["sound"], expected["sound"])
            assert format == "OGG" or not file.fell_back
            break
        assert number > 2


def test_places_that_were_foreseen_are_no_jumps(client: FetchClient, http_server: HTTPServer, new_name: Any) -> None:
    (url,) = fetching.publish(http_server, new_name(), [1_000_000])
    data, remote = fetching.content("0.bin", 1_000_000), remote_file(client, url, 1000)
    asked = failing(remote, 0)
    places = range(5_500, 1_000_000, 10_000)  # 100: more than it holds
    remote.expect([(place, place + 10) for place in places])
    for place in places:
        assert remote.read_at(place, 10) == data[place : place + 10]
    assert remote.path is None and len(asked) == 4
    for place in places:  # a little past what was foreseen, and some of it long let go of
        assert remote.read_at(place, 1000) == data[place : place + 1000]
    assert remote.path is None


def test_an_object_that_would_fill_the_cache_is_read_on_by_ranges(
    dst: Path, http_server: HTTPServer, new_name: Any
) -> None:
    (url,) = fetching.publish(http_server, new_name(), [300_000])
    data = fetching.content("0.bin", 300_000)
    client = FetchClient(FetchOptions(dst=str(dst), limit=200_000))
    with contextlib.closing(client), fetching.Watch(dst) as watch:
        remote = remote_file(client, url, 8000)
        assert remote.open().read() == data  # in order: more than half of it, and no jump
        assert remote._num_jumps == 0
        for place in random.Random(0).sample(range(300_000), 40):  # and at many places
            assert remote.read_at(place, 100) == data[place : place + 100]
    assert remote.path is None and client.tally.stats().range_fallbacks == 0
    assert 0 < watch.most <= 200_000


def test_a_whole_copy_of_another_version_is_not_mixed_with_parts(
    client: FetchClient, http_server: HTTPServer, new_name: Any
) -> None:
    name = new_name()
    old, new = bytes(100_000), bytes(1000) + b"x" * 99_000  # of the same size
    for is_met in (False, True):
        http_server.put(f"{name}/{is_met}", old)
        one, other = (remote_file(client, http_server.url(f"{name}/{is_met}"), 1000) for _ in range(2))
        assert one.read_at(2000, 1) == b"\0"
        http_server.put(f"{name}/{is_met}", new)
        if is_met:
            assert Path(client.submit([[File(one.url)]])[0].take()[0]).read_bytes() == new
        with pytest.raises(IntegrityError, match="changed while it was read"):
            one.read_at(50_000, 1) if is_met else os.fspath(one)
        assert one.path is None and one.error is not None
    # what this one has read is the same in both
    assert other.read_at(50_000, 1) == b"x" and other.path is not None and not other.fell_back


def test_a_bad_line_is_met_with_retries(base: Path, place: Place) -> None:
    path = repeated(base, "index last")
    url = place.put(path)
    faults = [Fault("status", share=0.3, attempts=(1,)), Fault("reset", share=0.3, attempts=(1, 2))]
    with FaultyProxy(place.s3.endpoint, faults) as proxy:
        options = {**place.s3.storage_options, "endpoint": proxy.endpoint}
        with place.dataset([url], decoder(), storage_options=options, num_downloading_retries=5) as data:
            sample = data[0]
            assert torch.equal(sample["video"], locally(path, sample, decoder())["video"])
            assert data.stats().retries >= sum(proxy.injected.values()) > 0
            assert data.stats().range_fallbacks == 0


def test_worker_processes_read_ranges_too(base: Path, place: Place) -> None:
    path = repeated(base, "index first")
    urls = [place.put(path, f"{number}.mp4") for number in range(4)]
    with place.dataset(urls, decoder(min_size=(16, 16))) as data:
        loader = sds.StreamingDataLoader(data, batch_size=1, num_workers=2)
        batches = list(loader)
        assert [batch["url"] for batch in batches] == [[url] for url in urls]
        assert loader.stats().range_reads == 4
        for batch in batches:
            sample = {"__random_seed__": int(batch["__random_seed__"][0])}
            assert torch.equal(batch["video"][0], locally(path, sample, decoder(min_size=(16, 16)))["video"])
        loader.close()
