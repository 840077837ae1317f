import json

import pytest

from sds.errors import OptionError
from sds.events import Stats
from sds.observe import PRICES, Price, cost, read_prices
from sds.observe.costs import dollars
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
