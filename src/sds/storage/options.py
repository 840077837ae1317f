"""StoreOptions: what the asking process wants of a store: credentials, endpoint, patience.

Comes in: `storage_options` as the user gave them, and the cloud variables of the user's environment. Goes out: the
settings of one scheme. They live in memory only; `repr` shows no value.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from obstore.exceptions import UnknownConfigurationKeyError

from sds.errors import OptionError
from sds.urls import SCHEMES, host_of

__all__ = ["StoreOptions"]

T = TypeVar("T")

# our names -> the names that obstore gives them, per scheme
_NAMES: dict[str, dict[str, str]] = {
    "s3": {
        "endpoint": "endpoint",
        "region": "region",
        "access_key_id": "access_key_id",
        "secret_access_key": "secret_access_key",
        "session_token": "session_token",
        "anonymous": "skip_signature",
        "requester_pays": "request_payer",
    },
    "gs": {"endpoint": "base_url", "anonymous": "skip_signature"},
    "az": {
        "endpoint": "endpoint",
        "anonymous": "skip_signature",
        "account_name": "account_name",
        "account_key": "account_key",
    },
    "http": {},  # a header is for one host: see `headers`
}
# anonymous on GCS: before a put, obstore would still ask the machine's metadata service for a token; with this, not
_NOBODY = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
_ENDPOINT_VARIABLES = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "az": ("AZURE_ENDPOINT",)}

# obstore knows most names in several spellings, in any case: here, each has one
_PREFIXES = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_storage_", "azure_")}
_SPELLINGS = {
    "s3": {"endpoint_url": "endpoint", "token": "session_token"},
    "gs": {"service_account_path": "service_account"},
    "az": {"access_key": "account_key", "master_key": "account_key"},
}
# what else may stand under a scheme, as obstore calls it: only to guess what a misspelt one was meant to be
_OTHERS = {
    "s3": (
        "checksum_algorithm conditional_put container_credentials_relative_uri container_credentials_full_uri "
        "metadata_endpoint role_arn role_session_name server_side_encryption sts_endpoint unsigned_payload "
        "virtual_hosted_style_request web_identity_token_file"
    ),
    "gs": "service_account service_account_key application_credentials bearer_token",
    "az": "client_id client_secret tenant_id authority_host sas_key token use_emulator msi_endpoint use_azure_cli",
}
_OURS = ("checksums",)  # not for the store's client

_PER_HOST = "headers go to the one host that they are given for: {'https://host': {'headers': {...}}}"


class StoreOptions(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """How one client wants its stores opened.

    Attributes:
        settings: the user's `storage_options`: flat, or one dict per scheme, or per host (https://host) of the web.
        environment: the asking process's AWS_*, GOOGLE_* and AZURE_* variables.
        timeout_s: how long a connection may be silent.
        num_retries: how often a request that may yet succeed is tried again.
    """

    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}
    timeout_s: float = 30.0
    num_retries: int = 3

    def __repr__(self) -> str:
        return f"StoreOptions(settings={sorted(self.settings)}, timeout_s={self.timeout_s})"  # never a value

    def of(self, scheme: str) -> dict[str, Any]:
        """The settings of one scheme, under obstore's names; those of other schemes are left out."""
        scheme = "http" if scheme == "https" else scheme
        own: dict[str, Any] = {}
        flat: dict[str, Any] = {}
        for name, value in self.settings.items():
            meant = SCHEMES.get(name)  # s3a is s3
            if meant == "file" or name == "headers" or (meant in ("http", "https") and value):
                raise OptionError(f"storage_options has no place for {name!r}", hint=_PER_HOST)
            if meant == scheme:
                if not isinstance(value, dict):
                    kind = type(value).__name__  # the value may be a key
                    raise OptionError(f"storage_options[{name!r}] is no dict: {kind}", hint="{'s3': {'endpoint': ...}}")
                own |= value
            elif not isinstance(value, dict):
                flat[name] = value
        for name in _OURS:
            own.pop(name, None)
        names = _NAMES[scheme]
        plain = {str(name): _plain(scheme, str(name)) for name in own}
        if len(set(plain.values())) < len(plain):
            twice = sorted(name for name, meant in plain.items() if list(plain.values()).count(meant) > 1)
            raise OptionError(
                f"storage_options[{scheme!r}] says one thing twice: {twice}", hint="leave one of them out"
            )
        # flat options speak to whichever store understands them; options under a scheme must be understood by it
        chosen = {names[k]: v for k, v in flat.items() if k in names}
        chosen |= {plain[str(k)]: v for k, v in own.items()}
        if chosen.get("skip_signature") is False:
            del chosen["skip_signature"]
        if scheme == "gs" and chosen.get("skip_signature"):
            chosen.setdefault("service_account_key", _NOBODY)
        return chosen

    @property
    def checksums(self) -> bool:
        """Whether the user wants bodies hashed where the store says what they should be."""
        places = [self.settings, *(value for value in self.settings.values() if isinstance(value, dict))]
        return any(place.get("checksums") for place in places)

    def is_anonymous(self, url: str) -> bool:
        """Whether requests for a URL carry no signature, because the user wants that. Never an error: it is for one."""
        scheme = SCHEMES.get(url.partition("://")[0].lower())
        said = dict(self.settings)
        for name, value in self.settings.items():
            if SCHEMES.get(name) == scheme and isinstance(value, dict):
                said |= value
        return bool(said.get("anonymous") or said.get("skip_signature"))

    def understood(self, scheme: str, make: Callable[[], T]) -> T:
        """What `make` makes of the settings; an OptionError with a guess where a name in them is unknown."""
        try:
            return make()
        except UnknownConfigurationKeyError as error:
            names = [*_NAMES[scheme], *_OTHERS.get(scheme, "").split()]
            for given in (str(k) for v in self.settings.values() if isinstance(v, dict) for k in v):
                plain = _plain(scheme, given)
                close = difflib.get_close_matches(plain, names, n=1)
                if close and close[0] != plain and plain in str(error):
                    hint = f"did you mean {close[0]!r}?"
                    raise OptionError(f"storage_options are not understood: {given!r}", hint=hint) from error
            raise

    def headers(self, url: str) -> dict[str, str]:
        """The headers that the user set for the host of a web URL, and for no other."""
        wanted = host_of(url)
        found: dict[str, str] = {}
        for name, value in self.settings.items():
            if wanted is None or host_of(name) != wanted:
                continue
            if not isinstance(value, dict) or set(value) != {"headers"} or not isinstance(value["headers"], dict):
                raise OptionError(f"storage_options[{host_of(name)!r}] is not understood", hint=_PER_HOST)
            found |= value["headers"]
        return found

    def endpoint(self, scheme: str) -> str | None:
        """The endpoint that the user set for a scheme, by option or variable."""
        chosen = self.of(scheme)
        given = chosen.get("endpoint") or chosen.get("base_url")
        for variable in _ENDPOINT_VARIABLES.get(scheme, ()):
            given = given or self.environment.get(variable)
        return None if given is None else str(given)

    def identity(self) -> str:
        """A hash that tells whether two clients want the same stores; it reveals nothing."""
        return hashlib.blake2b(msgspec.msgpack.encode(self, order="sorted"), digest_size=16).hexdigest()


def _plain(scheme: str, name: str) -> str:
    """The one name for what a user said: AWS_ACCESS_KEY_ID is access_key_id."""
    name = name.lower()
    for prefix in _PREFIXES.get(scheme, ()):
        name = name.removeprefix(prefix)
    name = _SPELLINGS.get(scheme, {}).get(name, name)
    return _NAMES[scheme].get(name, name)
