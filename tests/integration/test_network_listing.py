"""Folders that hold a name which obstore cannot say are listed all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fetching import RawServer, response
from sds.errors import FetchError
from sds.storage import StoreOptions, Stores
from sds.storage.cloud import CloudStore
from sds.storage.listing import list_below
from sds.storage.rawlist import RawList
from sds.testing import S3Server

KEYS = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}


def answer(keys: list[str], folders: list[str] | None = None, token: str = "") -> bytes:
    facts = "<LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>&quot;abc&quot;</ETag><Size>5</Size>"
    items = "".join(f"<Contents><Key>{key}</Key>{facts}</Contents>" for key in keys)
    items += "".join(f"<CommonPrefixes><Prefix>{each}</Prefix></CommonPrefixes>" for each in folders or [])
    items += f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    more = str(bool(token)).lower()
    head = f"<IsTruncated>{more}</IsTruncated><KeyCount>{len(keys)}</KeyCount><Name>b</Name>"
    text = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{head}{items}</ListBucketResult>'
    return response("200 OK", text.encode(), Content_Type="application/xml")


@pytest.mark.parametrize("name", ["p//b", "p/../b", "p/./b"])
def test_one_name_does_not_hide_the_others(name: str) -> None:
    def reply(target: str) -> bytes:
        if "continuation-token" in target:
            return answer(["p/z"])
        if "encoding-type" in target:
            return answer(["p/a", name], ["p/d/"] if "delimiter" in target else [], "next")
        return answer(["p/a", name, "p/z"])

    with RawServer(reply) as server:
        options = StoreOptions(settings={**KEYS, "endpoint": server.url}, num_retries=0)
        found = [info.url for info in list_below(Stores(), "s3://b/p", options)]
        assert found == sorted(["s3://b/p/a", f"s3://b/{name}", "s3://b/p/z"])
        with pytest.raises(FetchError, match="cannot be addressed") as caught:  # that one fails, by name
            Stores().call(f"s3://b/{name}", options, lambda store, key: store.open(key))
        assert name in str(caught.value) and caught.value.hint
        machine = StoreOptions(settings={"endpoint": server.url, "region": "r"}, num_retries=0)
        assert not RawList("b", machine.of("s3"), machine, None).is_possible


def test_it_lists_what_obstore_lists(s3: S3Server, tmp_path: Path, new_name: Callable[[], str]) -> None:
    """On a server that checks signatures: names with spaces, signs and letters of all kinds, more than a page."""
    names = [f"root/{i}" for i in range(1050)] + ["root/a b+c&d=e.txt", "root/é.txt", "root/deep/er/x", "root/d%20.txt"]
    for name in names:
        path = tmp_path / "up" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
    bucket = new_name()
    s3.upload_folder(tmp_path / "up", bucket)
    options = StoreOptions(settings=s3.storage_options)
    store, raw = CloudStore("s3", bucket, options), RawList(bucket, options.of("s3"), options, None)
    expected = {info for page in store.list_all("root/") for info in page}
    assert {info for page in raw.pages("root/") for info in page.objects} == expected and len(expected) == len(names)
    folders, objects = store.list_folder("root/")
    pages = list(raw.pages("root/", "/"))
    assert [each for page in pages for each in page.folders] == folders == ["root/deep/"]
    assert {info for page in pages for info in page.objects} == set(objects)
