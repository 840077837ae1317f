"""What code changes by working: attributes, globals and variables that it assigns itself.

Comes in: code, or a class. Goes out: names. Such a name is no setting: a model that is loaded when the first sample
comes, or a counter, says nothing about what is computed, and is another one before the first sample than after it.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["names_in", "own_attributes", "own_cells", "own_globals", "tree_of"]

_MAKING = frozenset(("__new__", "__init__", "__post_init__", "__setstate__"))
_CHANGING = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)


def own_globals(code: types.CodeType) -> set[str]:
    """The globals that code assigns, code within it included."""
    return {each.argval for each in _instructions(code) if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}


def own_cells(code: types.CodeType) -> set[str]:
    """The variables of an outer function that code assigns."""
    stored = {each.argval for each in _instructions(code) if each.opname in ("STORE_DEREF", "DELETE_DEREF")}
    return stored & set(code.co_freevars)


def own_attributes(kind: type, entry: str | None = None) -> set[str]:
    """The attributes that objects of a class change in themselves when they are called.

    Args:
        kind: the class.
        entry: the method that is called, if it is not the object itself.
    """
    methods = _methods(kind)
    making = _reached(methods, _MAKING & methods.keys())
    entries = [each for each in (entry, "__call__", "forward") if each in methods][:1]
    working = _reached(methods, entries or methods.keys() - making) - _MAKING
    own = {name for name in working for name in _assigned(methods[name])}
    return own | {name for name in dir(kind) if isinstance(_static(kind, name), functools.cached_property)}


def names_in(code: types.CodeType) -> list[str]:
    """The names that code looks up outside of itself, code within it included."""
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in names_in(each)]
    return sorted({*code.co_names, *inner})


def tree_of(thing: Any) -> ast.Module | None:
    """The source of a function, a class or code; None if there is none."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _methods(kind: type) -> dict[str, types.FunctionType]:
    """What the user's classes define: methods, and what makes the values of properties."""
    found: dict[str, types.FunctionType] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in ("builtins", "torch"):
            continue
        for name, value in vars(base).items():
            inner = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
            function = inspect.unwrap(inner) if callable(inner) else None  # torch.no_grad() wraps, for one
            if isinstance(function, types.FunctionType):
                found[name] = function
    return found


def _reached(methods: dict[str, types.FunctionType], entries: Iterable[str]) -> set[str]:
    """The methods that are called from some of them, these included."""
    found: set[str] = set()
    waiting = [*entries]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [each for each in names_in(methods[name].__code__) if each in methods]
    return found


def _assigned(method: types.FunctionType) -> set[str]:
    """The attributes of its object that a method assigns, or whose items it changes."""
    tree = tree_of(method.__code__)
    if tree is None:
        return {each.argval for each in _instructions(method.__code__) if each.opname in ("STORE_ATTR", "DELETE_ATTR")}
    object_name = next(iter(method.__code__.co_varnames), "")
    return {
        target.attr
        for target in map(_target, ast.walk(tree))
        if target is not None and isinstance(target.value, ast.Name) and target.value.id == object_name
    }


def _target(node: ast.AST) -> ast.Attribute | None:
    """What a piece of source changes, if that is an attribute or something in it."""
    value: ast.AST = node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        value = node.func.value
    elif not (isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)):
        return None
    while isinstance(value, ast.Subscript):
        value = value.value
    return value if isinstance(value, ast.Attribute) else None


def _static(kind: type, name: str) -> Any:
    return inspect.getattr_static(kind, name, None)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _instructions(each)
