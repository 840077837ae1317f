"""Hints on a command line speak of what can be typed there."""

from __future__ import annotations

import pytest

from sds.cli.hints import for_shell


@pytest.mark.parametrize(
    ("hint", "typed"),
    [
        ("for public data storage_options={'anonymous': True}", "for public data --storage anonymous=true"),
        ("is it right (storage_options={'endpoint': ...})?", "is it right (--storage endpoint=VALUE)?"),
        ("storage_options={'region': 'eu-west-1'}, or AWS_REGION", "--storage region=eu-west-1, or AWS_REGION"),
        (
            "storage_options={'endpoint': 'http://x:1', 'region': 'a'}",
            "--storage endpoint=http://x:1 --storage region=a",
        ),
        ("choose rows with sql_query", "choose rows with --sql"),
        ("name it in columns_to_download, or set index_col_name", "name it in --download, or set --id"),
        ("sql_query: SELECT ...", "sql_query: SELECT ..."),  # a key of a configuration
        ("look at the network", "look at the network"),
    ],
)
def test_keywords_become_options(hint: str, typed: str) -> None:
    assert for_shell(hint) == typed


def test_no_secret_is_asked_for_on_a_command_line() -> None:
    hint = for_shell("environment, or storage_options={'access_key_id': ..., 'secret_access_key': ...}")
    assert hint == "environment, or the variables that the store's own tools read"
