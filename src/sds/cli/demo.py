"""`sds demo`: the whole path in under a minute, on this machine alone.

Makes captioned images and an index of them, serves both from a local S3-compatible server, and trains a small network
on what it streams from there: filtered by SQL, shuffled, through a cache that holds half of the data. `stream` is what
a user would write; the rest is scenery. Everything it made is gone when it ends.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.words import show
from sds.units import format_bytes

if TYPE_CHECKING:
    import sds
    from sds.events import Stats
    from sds.types import Sample

__all__ = ["EXAMPLES", "HELP", "command"]

HELP = "Stream images from a local S3 server into a training loop, and show what happened."
EXAMPLES = "Examples:  sds demo  |  sds demo --images 2000 --epochs 3  |  sds demo --json > demo.json"

_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")
_QUERY = "SELECT * FROM dataframe WHERE quality >= 0.25"
_SIZE = (240, 320)
_MIN_IMAGES = 40  # with fewer, half of the data is less than what a step has in use at once


@dataclass(frozen=True)
class Shop:
    """What the demo streams from, and how much of it passes the filter."""

    src: str
    storage_options: dict[str, Any]
    num_rows: int
    num_bytes: int


@dataclass(frozen=True)
class Epoch:
    """What one epoch was like."""

    epoch: int
    samples: int
    seconds: float
    samples_per_s: float
    hits: int
    misses: int
    hit_rate: float
    bytes_downloaded: int
    loss: float
    accuracy: float


def command(
    images: Annotated[int, typer.Option(min=_MIN_IMAGES, help="Images to make.")] = 600,
    epochs: Annotated[int, typer.Option(min=1, help="Times to go through them.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per training step.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Runs the demo."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sds-demo-", ignore_cleanup_errors=True)))
        shop = _open_shop(folder, images, stack)
        limit = shop.num_bytes // 2
        loader = stream(shop, folder / "cache", limit, batch_size)
        stack.callback(loader.dataset.close)
        stack.callback(loader.close)
        results = train(loader, epochs)
        report = _report(loader, results, shop, limit)
    show(report, _text(report, str(loader.stats())), as_json)


def _open_shop(folder: Path, num_images: int, stack: ExitStack) -> Shop:
    """Makes images, captions and an index, and serves them until the stack unwinds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sds.seeds import derive
    from sds.testing import S3Server
    from sds.testing.media import make_images

    server = stack.enter_context(S3Server())  # first: without its program there is nothing to show
    _say(f"local S3-compatible server (SeaweedFS) is up at {server.endpoint}")
    records = make_images(folder / "data" / "images", num_images, size=_SIZE)
    qualities = derive(0, "quality").random(num_images).round(3).tolist()
    rows = []
    for record, quality in zip(records, qualities, strict=True):
        image = Path(record["path"])
        image.with_suffix(".txt").write_text(record["caption"])
        url = f"s3://demo/images/{record['id']}"
        size = {"width": record["width"], "height": record["height"]}
        rows.append({"id": record["id"], "image": f"{url}.jpg", "caption": f"{url}.txt", **size, "quality": quality})
    pq.write_table(pa.Table.from_pylist(rows), folder / "data" / "index.parquet")
    keys = server.upload_folder(folder / "data", "demo")
    _say(f"{num_images} captioned images and their index are in s3://demo ({len(keys)} objects)")
    chosen = [Path(record["path"]) for record, quality in zip(records, qualities, strict=True) if quality >= 0.25]
    num_bytes = sum(path.with_suffix(end).stat().st_size for path in chosen for end in (".jpg", ".txt"))
    return Shop("s3://demo/index.parquet", server.storage_options, len(chosen), num_bytes)


def stream(shop: Shop, cache: Path, limit: int, batch_size: int) -> sds.StreamingDataLoader:
    """What a user would write."""
    import sds
    from sds.transforms import presets

    dataset = sds.StreamingDataset(
        shop.src,
        cache,
        columns_to_download=["image", "caption"],
        index_col_name="id",
        sql_query=_QUERY,
        shuffle_seed=42,
        cache_limit=limit,
        prefetch=batch_size,  # the default is 128; with so few images, most of the cache would be in use at any time
        transforms=[
            *presets.create_standard_image_pipeline("image", resolution=(64, 64)),
            *presets.create_standard_text_pipeline("caption", output_field="caption"),
            label_ground,
            presets.EnsureFieldsTransform(["image", "label"], drop_others=True),
        ],
        storage_options=shop.storage_options,
    )
    return sds.StreamingDataLoader(dataset, batch_size)


def label_ground(sample: Sample) -> Sample:
    """A user's own transform: "... on a red ground" -> the number of red."""
    sample["label"] = _COLOURS.index(sample["caption"].split()[-2])
    return sample


def train(loader: sds.StreamingDataLoader, num_epochs: int) -> list[Epoch]:
    """Teaches a small network to tell the colour of the ground."""
    from sds.observe import ProgressBar

    learn = make_learner()
    results = []
    for epoch in range(num_epochs):
        before = loader.stats()
        losses, num_right = [], 0
        bar = ProgressBar(loader, f"epoch {epoch + 1}")
        for batch in bar:
            loss, right = learn(batch)
            losses.append(loss)
            num_right += right
            bar.note(f"loss {loss:.3f}")
        results.append(_summarise(epoch, before, loader.stats(), losses, num_right))
    return results


def make_learner() -> Callable[[dict[str, Any]], tuple[float, int]]:
    """A network of a few thousand weights: batch in, (loss, how many were guessed right before learning) out."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, kernel_size=8, stride=8),  # [b, 32, 8, 8]
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),  # [b, 32, 2, 2]
        nn.Flatten(),
        nn.Linear(128, len(_COLOURS)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def learn(batch: dict[str, Any]) -> tuple[float, int]:
        images = batch["image"].float() / 127.5 - 1  # [b, 3, 64, 64]
        guesses = model(images)  # [b, 8]
        loss = nn.functional.cross_entropy(guesses, batch["label"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item(), int((guesses.argmax(1) == batch["label"]).sum())

    return learn


def _summarise(epoch: int, before: Stats, after: Stats, losses: list[float], num_right: int) -> Epoch:
    hits, misses = after.hits - before.hits, after.misses - before.misses
    samples, seconds = after.samples - before.samples, after.wall_s - before.wall_s
    return Epoch(
        epoch=epoch + 1,
        samples=samples,
        seconds=round(seconds, 3),
        samples_per_s=round(samples / seconds, 1),
        hits=hits,
        misses=misses,
        hit_rate=round(hits / (hits + misses), 4),
        bytes_downloaded=after.bytes_downloaded - before.bytes_downloaded,
        loss=round(sum(losses) / len(losses), 4),
        accuracy=round(num_right / samples, 4),
    )


def _report(loader: sds.StreamingDataLoader, epochs: list[Epoch], shop: Shop, limit: int) -> dict[str, Any]:
    stats = loader.stats()
    return {
        "rows": shop.num_rows,
        "data_bytes": shop.num_bytes,
        "cache_limit": limit,
        "epochs": [asdict(epoch) for epoch in epochs],
        "time_to_first_batch": stats.time_to_first_batch,
        "failures": stats.failures,
        "bottleneck": stats.bottleneck,
        "explain": loader.dataset.explain(),
        "state": loader.state_dict(),
    }


def _text(report: dict[str, Any], stats: str) -> str:
    data, limit = format_bytes(report["data_bytes"]), format_bytes(report["cache_limit"])
    lines = ["What was streamed (dataset.explain())", *_indented(report["explain"]), "", "Epoch by epoch"]
    lines += [
        f"  {epoch['epoch']}: {epoch['samples']} images in {epoch['seconds']:.2f} s "
        f"({epoch['samples_per_s']:.0f}/s), hit rate {epoch['hit_rate']:.0%}, "
        f"{format_bytes(epoch['bytes_downloaded'])} downloaded, "
        f"loss {epoch['loss']:.2f}, {epoch['accuracy']:.0%} right"
        for epoch in report["epochs"]
    ]
    best = report["cache_limit"] / report["data_bytes"]
    lines += [
        f"  The cache may hold {limit} of {data}: from the second epoch on, no policy can hit more than {best:.0%},",
        "  and files that are in use at the moment take a part of that (less, the larger the data is).",
        "",
        "All of it (loader.stats())",
        *_indented(stats),
        "",
        "Where training stands (loader.state_dict()): save this with your model, load it, and go on at the next sample",
        f"  {json.dumps(report['state'])}",
        "",
        "Where to look next",
        "  docs/guide/quickstart.md     from a folder of your own files to training",
        "  docs/guide/stores.md         S3, GCS, Azure, HTTP and their credentials",
        "  docs/guide/state.md          stop and go on, exactly",
        "  docs/reference/cli.md        the command line; in sds/cli/demo.py, `stream` is what a user writes",
    ]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
