import json
from dataclasses import replace
from itertools import pairwise

import pytest

import sds
from sds.cli.cost import command
from sds.errors import OptionError
from sds.events import Stats
from sds.loader.record import Record
from sds.loader.trace import place_of
from sds.observe import PRICES, Price, cost, estimate, read_prices, read_run
from sds.observe.costs import dollars
from sds.observe.estimates import _spread
from sds.observe.prices import find_price
from sds.stats import Traffic

STATS = Stats(
    traffic=(
        Traffic("s3://photos", "standard", 1_000_000, 100 * 10**9),
        Traffic("s3://photos", "standard_ia", 1000, 10**9),
        Traffic("gs://more", "standard", 2000, 0),
        Traffic("https://example.com", "standard", 500, 10**9),
    )
)


def test_what_a_run_costs_by_bucket_and_class():
    found = cost(STATS)
    lines = {(line.store, line.storage_class): line for line in found.lines}
    assert lines["s3://photos", "standard"].for_requests == pytest.approx(0.40)
    assert lines["s3://photos", "standard"].for_bytes == pytest.approx(9.0)
    assert lines["s3://photos", "standard_ia"].for_bytes == pytest.approx(0.10)
    assert lines["https://example.com", "standard"].total == 0.0
    assert found.total == pytest.approx(0.4 + 9.0 + 0.001 + 0.1 + 0.0008)
    assert found.lines[0].store == "s3://photos", "the dearest first"
    assert (found.requests, found.num_bytes) == (1_003_500, 102 * 10**9)
    assert str(found).splitlines()[-1] == "cost: $9.50"
    assert json.loads(json.dumps(found.to_dict()))["total"] == found.total


def test_the_user_sets_prices_by_scheme_class_and_bucket():
    prices = {"s3": {"transfer_per_gb": 0}, "s3://photos": {"per_1000_requests": 1}, "s3:standard_ia": Price(2.0)}
    found = {(line.store, line.storage_class): line for line in cost(STATS, prices).lines}
    line = found["s3://photos", "standard"]
    assert (line.for_requests, line.for_bytes) == (pytest.approx(1000.0), 0.0), "what is not said is the scheme's"
    table = read_prices(prices)
    assert find_price(table, "s3://other", "standard_ia") == Price(2.0)
    assert find_price(table, "s3://other") == Price(PRICES["s3"].per_1000_requests)
    assert find_price(table, "s3a://other") == find_price(table, "s3://other")
    assert read_prices(None) is PRICES


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_prices_from_a_file(tmp_path, suffix):
    path = tmp_path / f"prices{suffix}"
    path.write_text('{"s3": {"per_1000_requests": 5}}')
    assert read_prices(path)["s3"].per_1000_requests == 5.0
    path.write_text("{broken")
    with pytest.raises(OptionError, match="broken"):
        read_prices(path)
    with pytest.raises(OptionError, match="cannot be read"):
        read_prices(tmp_path / "gone.json")


@pytest.mark.parametrize(
    "prices",
    [
        {"ftp": {}},
        {"s3:": {}},
        {"s3://": {}},
        {5: {}},
        {"s3": 5},
        {"s3": {"per_request": 1}},
        {"s3": {"per_1000_requests": -1}},
        {"s3": {"per_1000_requests": "much"}},
        {"s3": {"per_1000_requests": True}},
        {"s3": {"per_1000_requests": float("nan")}},
    ],
)
def test_prices_that_are_none_are_told(prices):
    with pytest.raises(OptionError, match="price") as caught:
        read_prices(prices)
    assert caught.value.hint


def test_a_file_that_is_no_table(tmp_path):
    (tmp_path / "prices.json").write_text("[1]")
    with pytest.raises(OptionError, match="no table"):
        read_prices(tmp_path / "prices.json")


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "$0.00"), (12.345, "$12.35"), (0.1, "$0.10"), (0.0123, "$0.012"), (0.00012, "$0.00012"), (1e-6, "$1.0e-06")],
)
def test_dollars_read_well(amount, text):
    assert dollars(amount) == text


def test_sending_costs_the_same_for_all_classes_unless_one_says_otherwise():
    prices = read_prices({"s3": {"transfer_per_gb": 0}, "s3:glacier_ir": {"transfer_per_gb": 0.5}})
    assert find_price(prices, "s3://a", "standard_ia") == replace(PRICES["s3:standard_ia"], transfer_per_gb=0.0)
    assert find_price(prices, "s3://a", "glacier_ir").transfer_per_gb == 0.5
    assert find_price(prices, "gs://a", "nearline") == PRICES["gs:nearline"]


@pytest.mark.parametrize(
    ("name", "store", "storage_class"),
    [
        ("s3:STANDARD_IA", "s3://a", "standard_ia"),
        ("s3:standard_ia", "s3://a", "STANDARD_IA"),
        ("s3://a/", "s3://a", "standard"),
        ("s3a", "s3://a", "standard"),
        ("S3", "s3a://a", "standard"),
        ("gcs://a", "gs://a", "standard"),
        ("gs://a", "gcs://a", "nearline"),
        ("azure", "abfs://a", "standard"),
    ],
)
def test_a_price_is_found_however_it_is_spelled(name, store, storage_class):
    assert find_price(read_prices({name: {"per_1000_requests": 5}}), store, storage_class).per_1000_requests == 5


@pytest.mark.parametrize("num_rows", [1, 1999, 2000, 2001, 5000, 10**9])
def test_rows_that_are_looked_at_come_in_clumps_from_all_over(num_rows):
    """A lazy index reads the chunks that they lie in."""
    found = _spread(num_rows)
    assert found == sorted(set(found)) and found[0] == 0 and found[-1] == num_rows - 1
    assert len(found) == min(num_rows, 2000)
    assert sum(after - before > 1 for before, after in pairwise(found)) < 50


def test_only_a_dataset_can_be_estimated(make):
    for other in (sds.interleave([make(), make()]), "s3://bucket", None):
        with pytest.raises(OptionError, match="cannot be estimated") as caught:
            estimate(other)
        assert "each of its datasets" in caught.value.hint


def test_what_ranks_paid_for_one_bucket_is_one_line(tmp_path, capsys):
    for rank in range(3):
        traffic = (Traffic("s3://a", "standard", 1000, 10), Traffic(f"s3://{rank}", "standard", 1000, 0))
        record = Record(place_of(tmp_path / "run.jsonl", rank), lambda: Stats(traffic=traffic), list, rank=rank)  # noqa: B023
        record.close()
    command(run=str(tmp_path / "run.jsonl"), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert {line["store"]: line["requests"] for line in found["stores"]} == {
        "s3://a": 3000,
        "s3://0": 1000,
        "s3://1": 1000,
        "s3://2": 1000,
    }


def test_a_loader_has_its_cost():
    class Loader:
        def stats(self):
            return STATS

    assert cost(Loader()) == cost(STATS)


def test_a_run_that_was_read_has_its_cost(tmp_path):
    record = Record(tmp_path / "run.jsonl", lambda: STATS, list)
    record.close()
    assert cost(read_run(tmp_path / "run.jsonl")) == cost(STATS)


@pytest.mark.parametrize("given", [None, 3, "run.jsonl", {"traffic": ()}, [STATS]])
def test_what_has_no_stats_has_no_cost(given):
    with pytest.raises(OptionError, match="stats are none") as caught:
        cost(given)
    assert "loader.stats()" in caught.value.hint


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--epochs", {"epochs": 3}),
        ("--download", {"download": ["txt"]}),
        ("--cache-limit", {"cache_limit": "1gb"}),
        ("--query", {"query": "select 1"}),
        ("--id-column", {"id_column": "id"}),
        ("--storage", {"storage": ["region=x"]}),
    ],
)
def test_a_recorded_run_takes_no_options_of_an_estimate(tmp_path, option, given):
    Record(tmp_path / "run.jsonl", lambda: STATS, list).close()
    with pytest.raises(OptionError, match=f"{option} is for an estimate"):
        command(run=str(tmp_path / "run.jsonl"), **given)
