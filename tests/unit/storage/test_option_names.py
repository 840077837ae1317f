"""What a user may write into storage_options is what some store understands."""

from sds.fetch.protocol import STORAGE_OPTIONS
from sds.storage.options import _NAMES, _OURS


def test_every_name_is_understood_by_a_store():
    assert {name for names in _NAMES.values() for name in names} | set(_OURS) == STORAGE_OPTIONS
