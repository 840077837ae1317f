"""Every keyword is checked where it is given: what is unknown or impossible is an OptionError that names it."""

from __future__ import annotations

import inspect

import pytest

import sds
import texts
from sds.dataset import options as opts
from sds.errors import OptionError
from sds.transforms import presets

IMPOSSIBLE = [
    ("transforms", 5),
    ("transforms", ["not callable"]),
    ("transforms", "text"),
    ("pre_download_transforms", [None]),
    ("columns_to_download", "txt"),
    ("columns_to_download", [5]),
    ("columns_to_download", ["txt", "txt"]),
    ("index_col_name", ""),
    ("index_col_name", 5),
    ("data_type", "smell"),
    ("data_type", 5),
    ("allow_missing_columns", "no"),
    ("allow_missing_columns", None),
    ("index_cols_to_keep", "caption"),
    ("sql_query", ""),
    ("sql_query", 5),
    ("max_size", 0),
    ("max_size", -1),
    ("max_size", 1.5),
    ("max_size", True),
    ("max_index_files_to_use", 0),
    ("shuffle_seed", -2),
    ("shuffle_seed", 1.5),
    ("shuffle_seed", True),
    ("shuffle_seed", "1"),
    ("weight_col_name", ""),
    ("weight_col_name", 5),
    ("weight_schedule", 5),
    ("weight_schedule", len),
    ("lazy_index_chunk_size", 0),
    ("lazy_index_chunk_size", "many"),
    ("lazy_index_reach", 0),
    ("lazy_index_reach", 3),  # without chunks there is none
    ("lazy_index_plan", "guess"),
    ("lazy_index_plan", "take"),
    ("lazy_index_num_threads", 0),
    ("lazy_index_prefetch_factor", 0),
    ("min_num_pending_tasks_thresh", -1),
    ("num_downloading_workers", 0),
    ("num_downloading_workers", "many"),
    ("prefetch", -1),
    ("prefetch", 1.5),
    ("prefetch", "many"),
    ("prefetch", (4, "many")),
    ("prefetch", (-4, "1gb")),
    ("prefetch", (1, 2, 3)),
    ("cache_ttl", 0),
    ("cache_ttl", -5),
    ("cache_ttl", "a week"),
    ("cache_ttl", True),
    ("cache_ttl", float("nan")),
    ("num_downloading_retries", -1),
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", float("nan")),
    ("timeout", float("inf")),
    ("timeout", "60"),
    ("timeout", True),
    ("cache_limit", "ten"),
    ("cache_limit", -1),
    ("cache_limit", True),
    ("cache_limit", 0),
    ("cache_limit", "0"),
    ("cache_limit", "0gb"),
    ("cache_limit", 1.5),
    ("cache_limit", "1.5"),
    ("cache_limit", "-3gb"),
    ("cache_limit", float("nan")),
    ("cache_policy", "fifo"),
    ("revalidate", "sometimes"),
    ("on_error", "ignore"),
    ("max_failures", -1),
    ("max_failures", 1.5),
    ("max_failures", -0.1),
    ("max_failures", True),
    ("max_failures", None),
    ("max_failures", float("nan")),
    ("print_exceptions", "yes"),
    ("print_traceback", 2),
    ("infinite_iteration", "yes"),
    ("unaligned_worker_index", []),
    ("node_affine", 0),
    ("node_affine", "yes"),
    ("node_affine", 2.5),
    ("name", ""),
    ("name", 5),
    ("name", "../../x"),
    ("name", "/etc"),
    ("name", ".."),
    ("world", 3),
    ("world", (0, 1)),
    ("storage_options", 5),
    ("storage_options", "endpoint"),
    ("storage_options", {"endpont": "http://127.0.0.1:1"}),
    ("storage_options", {"endpoint": "127.0.0.1:9000"}),
    ("storage_options", {"s3": {"endpoint": "127.0.0.1:9000"}}),
    ("storage_options", {"s4": {"endpoint": "http://127.0.0.1:1"}}),
    ("dst", ""),
    ("dst", 5),
    ("dst", "s3://bucket/cache"),
    ("src", None),
    ("src", 5),
]


@pytest.mark.parametrize(("keyword", "value"), IMPOSSIBLE, ids=lambda each: repr(each))
def test_an_impossible_value_is_named(source, tmp_path, keyword, value):
    given = {"src": source, "dst": tmp_path / "dst", keyword: value}
    with pytest.raises(OptionError, match=keyword) as caught:
        sds.StreamingDataset(**given)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == [], "nothing is made before everything is checked"


def test_every_keyword_of_the_constructor_is_in_the_list_above():
    keywords = set(inspect.signature(sds.StreamingDataset).parameters)
    assert keywords == {keyword for keyword, _ in IMPOSSIBLE}


@pytest.mark.parametrize(
    ("given", "limit"), [(1, 1), (1e9, 10**9), ("1.5gb", 1_500_000_000), (" 7 ", 7), ("2.0", 2), (None, None)]
)
def test_limits_that_are_possible(make, given, limit):
    assert make(cache_limit=given)._options.fetch.limit == limit


def test_a_single_transform_needs_no_list(make):
    assert make(transforms=texts.read)[3]["txt"] == "text 003"


def test_a_transform_that_is_callable_and_iterable_is_one_transform(make):
    class Chain(list):
        def __call__(self, sample):
            return {"chained": len(self)}

    assert make(transforms=Chain([texts.read]))[0] == {"chained": 1}


def test_a_chain_is_a_preset_and_own_transforms(make):
    chain = presets.create_standard_text_pipeline("txt")
    chain += [lambda sample: {"text": sample["text"]}]
    assert make(transforms=chain)[1] == {"text": "text 001"}


@pytest.mark.parametrize("given", ["text", sds.types.DataType.TEXT])
def test_data_type_takes_the_word_or_the_enum(make, given):
    dataset = make(data_type=given)
    assert dataset.data_type == "text"
    assert dataset[0]["__data_type__"] == "text"


def test_without_dst_the_cache_lies_under_the_users_cache_folder(source, tmp_path, monkeypatch):
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "caches"))
    with sds.StreamingDataset(source, columns_to_download=["txt"], name="mine"):
        assert (tmp_path / "caches" / "mine").is_dir()


def test_names_of_different_sources_differ(tmp_path):
    sources = [f"s3://bucket/{name}/index.parquet" for name in ("a", "b", "../../c", "")]
    names = [opts.default_dst(opts._name_of(src)).name for src in sources]
    assert len(set(names)) == len(sources)
    assert all("/" not in name and name.startswith("index-parquet-") for name in names)


@pytest.mark.parametrize(
    ("given", "samples", "num_bytes"),
    [(7, 7, None), ("2gb", 1024, 2 * 10**9), ((16, "1mb"), 16, 10**6), ([0, 5], 0, 5), ((16, None), 16, None)],
)
def test_prefetch_is_samples_or_bytes_or_both(make, given, samples, num_bytes):
    options = make(prefetch=given)._options
    assert (options.prefetch, options.fetch.ahead_bytes) == (samples, num_bytes)


def test_freshness_reaches_the_fetch_room_and_the_words(make):
    dataset = make(cache_ttl="2h", revalidate="run", prefetch=(8, "1mb"))
    fetch = dataset._options.fetch
    assert (fetch.ttl_s, fetch.revalidate, len(fetch.run)) == (7200.0, "run", 16)
    words = dataset.explain()
    assert "older than 7200 s" in words and "once per run" in words and "8 samples, 1 MB" in words
    assert make(revalidate="always")._options.fetch.run == ""
