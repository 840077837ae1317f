"""Who asks: options, then the environment, then AWS profiles, then what the machine itself is told by its cloud.

Comes in: the settings of one scheme and the asking process's variables. Goes out: a provider of keys where a profile
has them, and whether the machine's metadata service is the last resort. Where there is none, that is found out once, in
a second or two, and not by every request in turn.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sds.storage.failures import no_credentials
from sds.storage.profiles import Provider, find_profile

__all__ = ["MetadataProbe", "provider_of", "relies_on_machine"]

_METADATA = "http://169.254.169.254"
_PROBE_S = 2.0
_REMEMBER_S = 30.0
# settings and variables that say who asks, or how to find out
_SAYING = {
    "s3": (
        {"access_key_id", "skip_signature", "web_identity_token_file", "container_credentials_relative_uri"}
        | {"container_credentials_full_uri"},
        {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE"}
        | {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
    ),
    "gs": (
        {"service_account", "service_account_key", "application_credentials", "bearer_token", "skip_signature"},
        {"GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"}
        | {"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN", "GOOGLE_SKIP_SIGNATURE"},
    ),
}
_GCLOUD = "~/.config/gcloud/application_default_credentials.json"


def _says_who(scheme: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    names, variables = _SAYING[scheme]
    return bool(names & settings.keys() or variables & environment.keys())


def provider_of(scheme: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> Provider | None:
    """The keys of a profile, if nothing that comes before it says who asks."""
    if scheme != "s3" or _SAYING["s3"][0] & settings.keys() or "AWS_ACCESS_KEY_ID" in environment:
        return None
    profile = find_profile(environment)
    return Provider(environment) if profile is not None and profile.has_credentials else None


def relies_on_machine(scheme: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether only the metadata service of a cloud's machine can tell who asks."""
    if scheme not in _SAYING or _says_who(scheme, settings, environment):
        return False
    return scheme != "gs" or not os.path.exists(os.path.expanduser(_GCLOUD))


class MetadataProbe:
    """Finds out whether this machine has a metadata service, before a request waits for it."""

    def __init__(self, endpoint: str | None = None) -> None:
        parts = urlsplit(endpoint or _METADATA)
        self._place = (parts.hostname or "169.254.169.254", parts.port or 80)
        self._lock = threading.Lock()
        self._is_there = False
        self._looked_at: float | None = None

    def check(self, url: str) -> None:
        """AccessDenied if there is none, so that nobody can know who asks."""
        if self._is_there:
            return
        with self._lock:  # one looks, the others learn from it
            if not self._is_there and (self._looked_at is None or time.monotonic() - self._looked_at > _REMEMBER_S):
                self._looked_at = time.monotonic()
                self._is_there = _answers(self._place)
        if not self._is_there:
            raise no_credentials(url)


def _answers(place: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(place, timeout=_PROBE_S):
            return True
    except OSError:
        return False
