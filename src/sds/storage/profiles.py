"""AWS profiles: the files of the user's `aws` program -> region, endpoint and credentials that renew themselves.

Comes in: the asking process's AWS_ variables, which say which profile of which files. Goes out: a Profile, or None if
there is none. Read where they are needed; what is secret stays in memory.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from sds.errors import AccessDenied

__all__ = ["Profile", "Provider", "fill", "find_profile"]

_PROCESS_TIMEOUT_S = 60.0
_MARGIN_S = 300.0  # credentials are renewed so long before they expire, or after half their life if that is later
_REREAD_S = 600.0  # temporary keys in a file may be replaced by others: it is read again
_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}
_ENDPOINTS = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"}


@dataclass(frozen=True)
class Profile:
    """One profile; `values` has what its files say, under their names."""

    name: str
    values: Mapping[str, str] = field(repr=False)  # keys are among them

    @property
    def has_credentials(self) -> bool:
        """Whether it says how to get keys, in a way that is understood here."""
        return "aws_access_key_id" in self.values or "credential_process" in self.values


def _sections(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(interpolation=None, strict=False)
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            parser.read_file(file)
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    return {name: dict(parser.items(name)) for name in parser.sections()}


def find_profile(environment: Mapping[str, str]) -> Profile | None:
    """The profile that the environment names, or the default one; None if no file has it."""
    named = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    name = named or "default"
    config = _sections(environment.get("AWS_CONFIG_FILE") or "~/.aws/config")
    keys = _sections(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    found = {**config.get(f"profile {name}", {}), **(config.get(name, {}) if name == "default" else {})}
    if name not in keys and not found and named is None:
        return None
    profile = Profile(name, {**found, **keys.get(name, {})})
    if named and not profile.values and "AWS_ACCESS_KEY_ID" not in environment:
        hint = "`aws configure list-profiles` shows those that there are"
        raise AccessDenied(f"access denied: no such AWS profile: {name}", hint=hint)
    return profile


def fill(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with region and endpoint of the profile where it says nothing of them itself."""
    full = dict(environment)
    try:
        profile = find_profile(environment)
    except AccessDenied:  # told when a store is opened with it
        return full
    values = {} if profile is None else profile.values
    if "region" in values and not _REGIONS & environment.keys():
        full["AWS_REGION"] = values["region"]
    if "endpoint_url" in values and not _ENDPOINTS & environment.keys():
        full["AWS_ENDPOINT_URL"] = values["endpoint_url"]
    return full


class Provider:
    """Gives obstore the keys of a profile, and new ones before they expire. Safe from many threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._renew_at = 0.0

    @property
    def is_fresh(self) -> bool:
        """Whether the keys are here, and need not be renewed: nobody has to wait for them."""
        found = self._found
        return found is not None and (found["expires_at"] is None or time.time() < self._renew_at)

    def __call__(self) -> dict[str, Any]:
        """The keys, in obstore's form."""
        with self._lock:
            if self._found is None or time.time() >= self._renew_at:
                self._found = self._find()
                expires = self._found["expires_at"]
                left_s = _REREAD_S if expires is None else expires.timestamp() - time.time()
                self._renew_at = time.time() + max(left_s - _MARGIN_S, left_s / 2, 1.0)
            return self._found

    def _find(self) -> dict[str, Any]:
        profile = find_profile(self._environment)
        values = {} if profile is None else profile.values
        if "aws_access_key_id" in values:
            token = values.get("aws_session_token")
            soon = datetime.now(timezone.utc) + timedelta(seconds=_REREAD_S)
            return _keys(values["aws_access_key_id"], values.get("aws_secret_access_key", ""), token, token and soon)
        if "credential_process" in values:
            return self._run(values["credential_process"])
        raise AccessDenied("access denied: the AWS profile has no keys any more", hint="see `aws configure list`")

    def _run(self, command: str) -> dict[str, Any]:
        hint = "run the credential_process of the profile by hand and see what it says"
        try:
            done = subprocess.run(
                shlex.split(command),
                capture_output=True,
                timeout=_PROCESS_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._environment},
                check=True,
            )
            said = json.loads(done.stdout)
            expiration = said.get("Expiration")
            expires = None if expiration is None else datetime.fromisoformat(str(expiration).replace("Z", "+00:00"))
            return _keys(said["AccessKeyId"], said["SecretAccessKey"], said.get("SessionToken"), expires)
        except (OSError, ValueError, KeyError, AttributeError, subprocess.SubprocessError) as error:
            # neither what it printed nor its arguments: either may hold a secret
            kind = type(error).__name__
            raise AccessDenied(f"access denied: credential_process failed: {kind}", hint=hint) from None


def _keys(id: str, secret: str, token: str | None, expires: datetime | str | None) -> dict[str, Any]:
    if isinstance(expires, datetime) and expires.tzinfo is None:
        expires = expires.replace(tzinfo=timezone.utc)
    return {"access_key_id": id, "secret_access_key": secret, "token": token, "expires_at": expires or None}
