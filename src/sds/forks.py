"""Locks across a fork: a child gets new ones, since the thread that held one of the parent's is not there.

Comes in: an object and the names of its locks. Goes out: nothing; whatever forks afterwards has them free.
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["renew_locks"]

_owners: weakref.WeakKeyDictionary[object, tuple[str, ...]] = weakref.WeakKeyDictionary()


def renew_locks(owner: object, *names: str) -> None:
    """In every forked child, these attributes of the owner are locks that nobody holds."""
    _owners[owner] = names


def _in_child() -> None:
    for owner, names in list(_owners.items()):
        for name in names:
            setattr(owner, name, threading.Lock())


os.register_at_fork(after_in_child=_in_child)
