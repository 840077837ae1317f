"""`sds view`: a local web page to look at a dataset, as training will see it.

Comes in: a source of any kind, and what a dataset would be told of it. Goes out: an address on loopback, printed; the
page is served until Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.file_columns import guess_files
from sds.cli.tensors_build import load_chain
from sds.cli.words import Download, Dst, IdColumn, Query, Src, Storage, check_name, open_dataset, parse_limit, say
from sds.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from sds.dataset import StreamingDataset
    from sds.index import Index

__all__ = ["EXAMPLES", "HELP", "Opener", "command", "preset"]

HELP = "Look at a dataset in a browser: files, metadata, SQL, the shuffled order, what transforms make of a sample."
EXAMPLES = (
    "Examples:  sds view photos  |  sds view photos.parquet --id id --seed 42 --data-type image  |  "
    "sds view 's3://bucket/parts/*.parquet' --lazy 100000 --download url --no-open --port 8765  |  "
    "sds view clips.csv --transforms my_code:chain --sql 'SELECT * FROM dataframe WHERE duration > 5'"
)
_PRESETS = ("image", "video", "audio", "text", "image_latent", "video_latent")


def command(
    src: Src,
    query: Query = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", "--shuffle", min=0, metavar="SEED", help="In the order of this seed."),
    ] = None,
    epoch: Annotated[int, typer.Option(min=0, help="The epoch whose order is shown first.")] = 0,
    at: Annotated[int, typer.Option(min=0, help="The position that is shown first.")] = 0,
    transforms: Annotated[str | None, typer.Option(help="module:name of a chain, to see what it makes.")] = None,
    data_type: Annotated[str | None, typer.Option(help=f"A preset in its place: {', '.join(_PRESETS)}.")] = None,
    resolution: Annotated[int, typer.Option(min=8, help="The size that the presets make.")] = 256,
    run: Annotated[str | None, typer.Option(help="A record of a run (loader.record): lists its failures.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; 0 chooses a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the address.")] = False,
    lazy: Annotated[int | None, typer.Option(min=1, metavar="ROWS", help="Read the index in chunks.")] = None,
    reach: Annotated[int, typer.Option(min=1, help="Of --lazy: chunks that are shuffled together.")] = 8,
    weights: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of weights.")] = None,
    keep_missing: Annotated[bool, typer.Option("--keep-missing", help="Keep rows without a file.")] = False,
    id_column: IdColumn = "index",
    download: Download = None,
    dst: Dst = None,
    limit: Annotated[str, typer.Option("--limit", "--cache-limit", help="Bytes that the cache may hold.")] = "none",
    storage: Storage = None,
) -> None:
    """Serves the page until it is interrupted."""
    from sds.observe.runs import read_runs
    from sds.view.gallery import Gallery
    from sds.view.server import Viewer
    from sds.view.shelf import Shelf, View

    if transforms is not None and data_type is not None:
        raise OptionError("--transforms and --data-type exclude each other", hint="put the decoding into your chain")
    if data_type is not None:
        check_name("--data-type", data_type, list(_PRESETS))
    failures = [] if run is None else [each for found in read_runs(run) for each in found.failures]
    opener = Opener(
        src,
        download=download,
        chain=None if transforms is None else load_chain(transforms),
        data_type=data_type,
        resolution=resolution,
        dst=dst,
        id_column=id_column,
        storage=storage,
        allow_missing_columns=keep_missing,
        cache_limit=parse_limit(limit),
        lazy_index_chunk_size=lazy,
        lazy_index_reach=reach,
        weight_col_name=weights,
    )
    opener.look(query)
    shelf = Shelf(opener)
    with Viewer(Gallery(shelf, failures), port, {"sql": query, "seed": seed, "epoch": epoch, "at": at}) as viewer:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C
        try:
            with shelf.use(View(query and query.strip(), seed)) as dataset:
                say(f"{dataset!r}; Ctrl-C ends it")
            print(viewer.url, flush=True)
            if not no_open and _has_screen():
                import webbrowser

                webbrowser.open(viewer.url)
            viewer.serve()
        except KeyboardInterrupt:
            say("ended")


class Opener:
    """Opens the dataset of a query and a seed, with what was typed.

    Args:
        src: the source.
        download: columns of files. None: a table's are found by what their values are called.
        chain: transforms.
        data_type: a preset in their place.
        resolution: of the preset.
        options: the rest, for `open_dataset`.
    """

    def __init__(
        self,
        src: str,
        *,
        download: list[str] | None,
        chain: list[Any] | None,
        data_type: str | None,
        resolution: int,
        **options: Any,
    ) -> None:
        self._src = src
        self._download = download
        self._is_guessed = False
        self._chain = chain
        self._data_type = data_type
        self._resolution = resolution
        self._options = options

    def look(self, query: str | None) -> None:
        """Finds out which columns name files, and what the preset decodes.

        Raises:
            OptionError: the preset finds nothing to decode.
        """
        if self._download is not None and self._data_type is None:
            return
        with self._open(query, None, self._download, []) as dataset:
            index = dataset.delivery.pipeline.index
            if self._download is None and not index.columns_to_download:
                self._download = guess_files(index) or None
                self._is_guessed = self._download is not None
            if self._data_type is None:
                return
            kind = self._data_type.partition("_")[0]
            column = _column_of(index, [*index.columns_to_download] or self._download or [], kind)
        self._chain = preset(self._data_type, column, self._resolution)

    def __call__(self, query: str | None, seed: int | None) -> StreamingDataset:
        """Opens one."""
        try:
            return self._open(query, seed, self._download, self._chain or [])
        except SchemaError:
            if not self._is_guessed:
                raise
        return self._open(query, seed, None, [])  # the query leaves the columns of files out: then there are none

    def _open(
        self, query: str | None, seed: int | None, download: list[str] | None, chain: list[Any]
    ) -> StreamingDataset:
        return open_dataset(
            self._src,
            download=download,
            query=query,
            shuffle_seed=seed,
            transforms=chain,
            data_type=self._data_type,
            **self._options,
        )


def preset(data_type: str, column: str, resolution: int) -> list[Any]:
    """The standard chain for a kind of data."""
    from sds.transforms import presets

    size = (resolution, resolution)
    if data_type == "image":
        return [*presets.create_standard_image_pipeline(column, size)]
    if data_type == "video":
        short = {"shorter_videos": "repeat_last"}
        return [*presets.create_standard_video_pipeline(column, 16, size, decode_kwargs=short)]
    if data_type == "audio":
        short_audio = {"allow_shorter_audio": True}
        return [*presets.create_standard_audio_pipeline(column, 5.0, audio_decoding_kwargs=short_audio)]
    if data_type == "text":
        return [*presets.create_standard_text_pipeline(column)]
    if data_type == "image_latent":
        return [*presets.create_standard_image_latent_pipeline(column)]
    return [*presets.create_standard_video_latent_pipeline(column)]


def _column_of(index: Index, columns: list[str], kind: str) -> str:
    """The column that a preset decodes: the first with such files, else the only one."""
    from sds.view.kinds import kind_of_name

    (row,) = index.rows([0])
    for name in columns:
        value = row.values.get(name)
        if kind_of_name(value if isinstance(value, str) else f"x.{name}") == kind:
            return name
    if len(columns) == 1:
        return columns[0]
    hint = f"name the column with --download; the columns: {', '.join(index.schema.names)}"
    raise OptionError(f"--data-type finds no column of {kind} files", hint=hint)


def _has_screen() -> bool:
    """Whether somebody could see a browser that is opened from here."""
    is_mac = sys.platform == "darwin" and "SSH_CONNECTION" not in os.environ
    return is_mac or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
