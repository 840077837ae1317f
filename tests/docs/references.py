"""Pages of the reference that are made of signatures and docstrings. `make reference` writes them, a test compares."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from sds import observe, plan, tensors, testing, transforms
from sds.transforms import presets

__all__ = ["PAGES"]

TRANSFORMS_PAGE = """\
# sds.transforms

All take a sample (a dict) and return one. An input field may hold a path or bytes. The long names are the same
classes, in `sds.transforms.presets`. This page is made of the docstrings (`make reference`);
`help(sds.transforms.ResizeImage)` and the like explain every argument.

| class | long name | what it does |
|---|---|---|
{transforms}

## Presets

| function | the chain that it returns |
|---|---|
{presets}

## Randomness

`sds.transforms.rng(sample, *purpose)` is the sample's own NumPy generator: the same numbers for the same seed, epoch
and sample, on any machine.
"""

ROOMS_PAGE = """\
# sds.tensors, plan, observe, testing

The public names of these rooms, and what their methods do. This page is made of the docstrings (`make reference`);
`help(sds.tensors.TensorCache)` and the like explain every argument.
"""
ROOMS = {
    tensors: "Samples remembered on disk. [Guide](../guide/tensors.md), [format](tensor-cache.md).",
    plan: "The order of an epoch, as pure functions. [Concept](../concepts/plan.md).",
    observe: "What the rooms report, made visible. [Guide](../guide/observe.md), [costs](../guide/cost.md).",
    testing: "What we ship for tests, ours and yours. [Concept](../concepts/testing.md).",
}
VALUES = {"PRICES": "The table of prices that is used where none is given; an approximation"}


def transforms_page() -> str:
    """Name with arguments, long name, first paragraph of the docstring."""
    classes = {name: thing for name in transforms.__all__ if inspect.isclass(thing := getattr(transforms, name))}
    others = [name for name in presets.__all__ if inspect.isclass(getattr(presets, name))]
    rows = []
    for name, thing in classes.items():
        if name != "SampleTransform":
            aliases = ", ".join(f"`{other}`" for other in others if getattr(presets, other) is thing)
            rows.append(f"| `{name}{arguments(thing)}` | {aliases} | {first_lines(thing)} |")
    makers = [getattr(presets, name) for name in presets.__all__ if name.startswith("create_")]
    chains = [f"| `presets.{maker.__name__}{arguments(maker)}` | {first_lines(maker)} |" for maker in makers]
    return TRANSFORMS_PAGE.format(transforms="\n".join(rows), presets="\n".join(chains))


def rooms_page() -> str:
    parts = [ROOMS_PAGE]
    for room, about in ROOMS.items():
        parts.append(f"## {room.__name__}\n\n{about}\n\n| name | |\n|---|---|\n" + "\n".join(room_rows(room)) + "\n")
    return "\n".join(parts)


def room_rows(room: ModuleType) -> Iterator[str]:
    for name in room.__all__:
        thing = getattr(room, name)
        if not callable(thing):
            yield f"| `{name}` | {VALUES[name]} |"
            continue
        yield f"| `{name}{arguments(thing)}` | {first_lines(thing)} |"
        if inspect.isclass(thing) and name != "StoreContract":  # whose methods are tests
            yield from method_rows(name, thing)


def method_rows(name: str, thing: type) -> Iterator[str]:
    """The documented methods and properties that a class has of its own or from a class of ours."""
    seen = set()
    for owner in thing.__mro__:
        if not owner.__module__.startswith("sds."):
            continue
        for method, value in vars(owner).items():
            if method.startswith("_") or method in seen or not inspect.getdoc(value):
                continue
            seen.add(method)
            if isinstance(value, property):
                yield f"| &nbsp;&nbsp;`{name}.{method}` | {first_lines(value)} |"
            elif inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)):
                yield f"| &nbsp;&nbsp;`{name}.{method}{arguments(getattr(thing, method))}` | {first_lines(value)} |"


def arguments(thing: Callable[..., object]) -> str:
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return ""
    found = [p for p in signature.parameters.values() if p.name != "self"]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    named = re.sub(r"<class '(?:\w+\.)*(\w+)'>|<function (\w+) at 0x[0-9a-f]+>", r"\1\2", text)
    return named.replace("|", "\\|")


def first_lines(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|").rstrip(".")


PAGES = {"transforms.md": transforms_page, "rooms.md": rooms_page}
