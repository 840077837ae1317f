"""Methods that datasets of other libraries have: an error that says what does the same here.

Comes in: a name that a dataset lacks. Goes out: an AttributeError, so `hasattr` stays honest, with a hint for names
that people bring along from Hugging Face datasets, WebDataset, torch, Mosaic Streaming and LitData.
"""

from __future__ import annotations

from sds.errors import NoSuchName

__all__ = ["check_foreign"]

_TRANSFORMS = "functions of samples are a keyword: StreamingDataset(..., transforms=[f]); they run ahead, in threads"
_SHUFFLE = "the order is a keyword: StreamingDataset(..., shuffle_seed=42) shuffles all rows, anew in each epoch"
_FILTER = (
    'rows are chosen by SQL: StreamingDataset(..., sql_query="SELECT * FROM dataframe WHERE ..."); what only a decoded '
    "sample shows: a transform that returns None leaves it out"
)
_LOADER = "batches are made by a loader: sds.StreamingDataLoader(dataset, batch_size=32)"
_FORMAT = "samples are what transforms return, and a loader makes tensors of them: sds.StreamingDataLoader(dataset, 32)"
_COLUMNS = "columns are a keyword: StreamingDataset(..., index_cols_to_keep=[...]), or a SELECT as sql_query"
_SPLIT = "each split is an index of its own: `sds index split SRC -o DIR --val-ratio 0.1`, or an sql_query for each"
_ENDLESS = "endless epochs are a keyword: StreamingDataset(..., infinite_iteration=True)"
_SCHEMA = "the columns of an index are dataset.schema.names, their types dataset.schema; a mix has those of its members"
_ROWS = "rows are chosen where they are named: StreamingDataset(..., max_size=100) has the first ones; "
_RANKS = "ranks and workers divide the rows by themselves; world=sds.World(...) says who is who where that is not found"

_FOREIGN = {
    "map": _TRANSFORMS,
    "map_dict": _TRANSFORMS,
    "set_transform": _TRANSFORMS,
    "with_transform": _TRANSFORMS,
    "decode": "decoders are transforms: transforms=presets.create_standard_image_pipeline('jpg', (256, 256))",
    "shuffle": _SHUFFLE,
    "filter": _FILTER,
    "select": _ROWS + _FILTER,
    "take": _ROWS + _FILTER,
    "skip": 'rows that are left out: sql_query="SELECT * FROM dataframe OFFSET 100"; a state goes on in mid-epoch',
    "batch": _LOADER,
    "batched": _LOADER,
    "collate": _LOADER,
    "with_format": _FORMAT,
    "set_format": _FORMAT,
    "to_tuple": "samples and batches are dicts: batch['image'], batch['caption']",
    "select_columns": _COLUMNS,
    "remove_columns": _COLUMNS,
    "rename_column": _COLUMNS,
    "rename_columns": _COLUMNS,
    "column_names": _SCHEMA,
    "features": _SCHEMA,
    "num_rows": "the number of samples is len(dataset)",
    "size": "the number of samples is len(dataset)",
    "train_test_split": _SPLIT,
    "random_split": _SPLIT,
    "repeat": _ENDLESS,
    "with_epoch": "an epoch has as many rows as max_size=... or an sql_query leaves; " + _ENDLESS,
    "shard": _RANKS,
    "cache": "what was fetched is kept by itself, up to cache_limit='10gb'; tensors: sds.transforms.Remember",
    "prefetch": "what is fetched ahead is a keyword: StreamingDataset(..., prefetch=128)",
}


def check_foreign(name: str) -> None:
    """Says what does the same here, if the name is one of another library."""
    hint = _FOREIGN.get(name)
    if hint is not None:
        raise NoSuchName(f"a dataset of sds has no such method or attribute: {name!r}", hint=hint)
