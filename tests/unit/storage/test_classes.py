import obstore
import pytest
from obstore.store import MemoryStore

from sds.storage.cloud import _class_of


@pytest.mark.parametrize(("attributes", "name"), [({"Storage-Class": "STANDARD_IA"}, "standard_ia"), ({}, "standard")])
def test_the_class_is_what_obstore_says(attributes, name):
    store = MemoryStore()
    obstore.put(store, "a", b"x", attributes=attributes)
    assert _class_of(obstore.get(store, "a")) == name
