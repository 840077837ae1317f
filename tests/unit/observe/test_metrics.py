import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sds.errors import OptionError
from sds.events import STAGES, Stats
from sds.observe import prometheus
from sds.observe.metrics import COUNTS
from sds.stats import Traffic

STATS = Stats(
    samples=10,
    batches=2,
    bytes_downloaded=2**60 + 1,
    wall_s=2.5,
    time_to_first_batch=0.5,
    num_threads=2,
    wait_s={"consumer": 1.5},
    busy_s={"decode": 3.0, "collate": 0.25},
    queue_depths={"batches": 1.5},
    traffic=(Traffic("s3://a", "standard", 3, 30), Traffic('http://odd"\\\nhost', "glacier", 1, 5)),
)


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families(text).values()
        for sample in family.samples
    }


def test_prometheus_own_parser_reads_it():
    found = samples(prometheus(STATS))
    assert found[("sds_samples_total",)] == 10
    assert found[("sds_wait_seconds_total", ("stage", "consumer"))] == 1.5
    assert found[("sds_busy_seconds_total", ("stage", "decode"))] == 3.0
    assert found[("sds_ready", ("queue", "batches"))] == 1.5
    assert found[("sds_time_to_first_batch_seconds",)] == 0.5
    assert found[("sds_bottleneck", ("stage", "decode"))] == 1.0
    assert sum(value for name, value in found.items() if name[0] == "sds_bottleneck") == 1.0
    assert found[("sds_store_requests_total", ("storage_class", "standard"), ("store", "s3://a"))] == 3
    odd = ("sds_store_bytes_total", ("storage_class", "glacier"), ("store", 'http://odd"\\\nhost'))
    assert found[odd] == 5
    assert math.isclose(found[("sds_bytes_downloaded_total",)], 2**60)


def test_kinds_and_words_are_told():
    found = families(prometheus(STATS))
    assert found["sds_samples"].type == "counter"
    assert found["sds_wall_seconds"].type == "gauge"
    assert all(family.documentation for family in found.values())


def test_labels_are_on_every_sample():
    found = families(prometheus(STATS, {"rank": "3", "job": 'a "b"'}))
    every = [sample.labels for family in found.values() for sample in family.samples]
    assert all(labels["rank"] == "3" and labels["job"] == 'a "b"' for labels in every)


@pytest.mark.parametrize("name", ["0a", "a-b", "", "__name__", "ä", 1])
def test_labels_that_prometheus_does_not_take_are_told(name):
    with pytest.raises(OptionError, match="label"):
        prometheus(STATS, {name: "x"})


def test_labels_that_are_no_table_are_told():
    with pytest.raises(OptionError, match="labels are no table"):
        prometheus(STATS, ["rank"])


def test_every_count_of_stats_is_served():
    """One that is new is, too."""
    others = {"num_workers", "num_threads", "num_connections", "num_sharing", "prefetch"}
    counts = {name for name, kind in Stats.__annotations__.items() if kind == "int"} - others
    assert set(COUNTS) == counts


def test_nothing_yet_is_readable_too():
    found = samples(prometheus(Stats()))
    assert found[("sds_samples_total",)] == 0
    assert {dict(name[1:])["stage"] for name in found if name[0] == "sds_bottleneck"} == set(STAGES)
