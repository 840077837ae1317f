"""Prices: what stores ask for requests and bytes. A table that the user can set, by scheme, storage class or bucket.

Comes in: a dict, or a JSON or YAML file. Goes out: a Price for a bucket and class. The built-in table is of public list
prices of US regions in dollars, written down in November 2026: approximations, without discounts, tiers and contracts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from sds.errors import OptionError
from sds.urls import SCHEMES

__all__ = ["PRICES", "Price", "Prices", "find_price", "read_prices"]


@dataclass(frozen=True)
class Price:
    """What a store asks, in dollars.

    Attributes:
        per_1000_requests: for a thousand reads.
        retrieval_per_gb: for reading 10^9 bytes out of a colder class.
        transfer_per_gb: for sending 10^9 bytes out of the cloud; nothing, where it is read in its own region.
    """

    per_1000_requests: float = 0.0
    retrieval_per_gb: float = 0.0
    transfer_per_gb: float = 0.0

    @property
    def per_gb(self) -> float:
        """For reading and sending 10^9 bytes."""
        return self.retrieval_per_gb + self.transfer_per_gb


Prices: TypeAlias = Mapping[str, Price]

# "scheme", "scheme:storage class", or "scheme://bucket"; the most exact one that is there counts
PRICES: Prices = {
    "s3": Price(0.0004, 0.0, 0.09),
    "s3:standard_ia": Price(0.001, 0.01, 0.09),
    "s3:onezone_ia": Price(0.001, 0.01, 0.09),
    "s3:intelligent_tiering": Price(0.0004, 0.0, 0.09),
    "s3:glacier_ir": Price(0.01, 0.03, 0.09),
    "s3:express_onezone": Price(0.00003, 0.0006, 0.09),
    "gs": Price(0.0004, 0.0, 0.12),
    "gs:nearline": Price(0.001, 0.01, 0.12),
    "gs:coldline": Price(0.01, 0.02, 0.12),
    "gs:archive": Price(0.05, 0.05, 0.12),
    "az": Price(0.0005, 0.0, 0.087),
    "az:cool": Price(0.001, 0.01, 0.087),
    "az:cold": Price(0.01, 0.03, 0.087),
    "http": Price(),
    "https": Price(),
}


def find_price(prices: Prices, store: str, storage_class: str = "standard") -> Price:
    """The price of a bucket (or host) and class."""
    scheme, _, bucket = store.partition("://")
    scheme = _spelled(scheme)
    for name in (f"{scheme}://{bucket.rstrip('/')}", f"{scheme}:{storage_class.lower()}", scheme):
        if name in prices:
            return prices[name]
    return Price()


def _spelled(scheme: str) -> str:
    """In one way: s3a is s3."""
    return SCHEMES.get(scheme.lower(), scheme.lower())


def read_prices(given: Mapping[str, Any] | str | os.PathLike[str] | None) -> Prices:
    """The built-in table with what the user says in it.

    Args:
        given: {"s3": {"transfer_per_gb": 0}, "s3:standard_ia": {...}, "s3://my-bucket": {...}}, a JSON or YAML file of
            that, or None. A bucket starts from its scheme's prices, and what is not said stays; sending costs the same
            for all classes of a scheme, unless a class says otherwise.

    Raises:
        OptionError: a name or a value makes no sense.
    """
    if given is None:
        return PRICES
    table = given if isinstance(given, Mapping) else _read(Path(given))
    if not isinstance(table, Mapping):
        raise OptionError("prices are no table", hint='such as {"s3": {"per_1000_requests": 0.0004}}')
    prices = dict(PRICES)
    # schemes first: buckets and classes start from them
    for name in sorted(table, key=lambda each: (":" in str(each), str(each))):
        scheme, storage_class, bucket = _parts(name)
        price = _changed(name, find_price(prices, f"{scheme}://{bucket}", storage_class), table[name])
        if bucket:
            prices[f"{scheme}://{bucket}"] = price
        elif storage_class:
            prices[f"{scheme}:{storage_class}"] = price
        else:
            classes = [each for each in prices if each.startswith(f"{scheme}:") and "://" not in each]
            prices |= {each: replace(prices[each], transfer_per_gb=price.transfer_per_gb) for each in classes}
            prices[scheme] = price
    return prices


def _parts(name: Any) -> tuple[str, str, str]:
    """The scheme, and the storage class or the bucket, if a name of the table has one."""
    scheme, colon, rest = str(name).partition(":")
    known = set(SCHEMES) - {"file"}
    if not isinstance(name, str) or scheme.lower() not in known or (colon and not rest.strip("/")):
        hint = "'s3', 's3:standard_ia' (a storage class) or 's3://my-bucket'; schemes: " + ", ".join(sorted(known))
        raise OptionError(f"price of something unknown: {name!r}", hint=hint)
    is_bucket = rest.startswith("//")
    return _spelled(scheme), "" if is_bucket else rest.lower(), rest.strip("/") if is_bucket else ""


def _changed(name: str, price: Price, said: Any) -> Price:
    if isinstance(said, Price):
        return said
    known = [field.name for field in fields(Price)]
    if not isinstance(said, Mapping) or not set(said) <= set(known):
        raise OptionError(f"price of {name!r} is none: {said!r}", hint=f"a table of {', '.join(known)}")
    for field, value in said.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise OptionError(f"price of {name!r} has a {field} that is none: {value!r}", hint="dollars, from 0 on")
    return replace(price, **{field: float(value) for field, value in said.items()})


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"prices cannot be read: {path}: {error}", hint="a JSON or YAML file") from error
    try:
        if path.suffix.lower() not in (".yaml", ".yml"):
            return json.loads(text)
        import yaml

        return yaml.safe_load(text)
    except Exception as error:
        raise OptionError(f"prices are broken: {path}: {error}", hint="a JSON or YAML table") from error
