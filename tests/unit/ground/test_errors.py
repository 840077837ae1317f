import builtins
import copy
import pickle
import re

import pytest

from sds import errors
from sds.errors import SdsError

CLASSES = [getattr(errors, name) for name in errors.__all__]
FACTS = {"hint": "do this", "url": "s3://bucket/x", "key": "sample 7", "stage": "fetch", "rank": 3}


def drawn_tree():
    """(name, parent, builtin or None) of each line of the tree in the module's docstring."""
    found, parents = [], {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ([│├└ ]*)(\w+)(?:\((\w+)\))?", line)
        if match:
            depth = len(match[1]) // 2
            parents[depth] = match[2]
            found.append((match[2], parents.get(depth - 1), match[3]))
    return found


def test_the_drawn_tree_is_the_tree_of_classes():
    drawn = drawn_tree()
    assert [name for name, _, _ in drawn] == errors.__all__
    for name, parent, builtin in drawn:
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        expected = [parent or "Exception"] + ([builtin] if builtin else [])
        assert bases == expected, name


def test_every_error_of_the_module_is_in_the_tree():
    defined = {n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, Exception)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES)
def test_it_is_also_the_builtin_that_people_catch(cls):
    builtin = {name: b for name, _, b in drawn_tree()}[cls.__name__]
    with pytest.raises(SdsError):
        raise cls("object is not there: x")
    if builtin:
        with pytest.raises(getattr(builtins, builtin)):
            raise cls("object is not there: x")


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("facts", [FACTS, {}, {"url": "s3://bucket/x"}])
def test_it_survives_pickling_with_its_fields(cls, facts):
    error = cls("fact: value", **facts)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is cls
        assert again.message == "fact: value"
        assert again.facts == error.facts == facts
        assert str(again) == str(error)
        for name in FACTS:
            assert getattr(again, name) == facts.get(name)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_hint_is_the_line_under_the_message(cls):
    assert str(cls("fact: value", hint="do this")) == "fact: value\nhint: do this"
    assert str(cls("fact: value")) == "fact: value"
    assert str(cls()) == ""


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_what_it_means(cls):
    assert cls.__doc__


def test_the_cause_stays_chained():
    with pytest.raises(errors.FetchError) as caught:
        try:
            raise OSError("foreign")
        except OSError as cause:
            raise errors.AccessDenied("refused: x") from cause
    assert str(caught.value.__cause__) == "foreign"


def test_no_secret_of_a_url_is_shown():
    error = errors.FetchError(
        "cannot read: https://me:hunter2@host/a.csv?token=hunter2&x=1: 'https://h/b?sig=hunter2' s3://k:hunter2@b/c",
        hint="try https://host/?key=hunter2",
        url="https://host/a.csv?token=hunter2",
    )
    assert "hunter2" not in f"{error} {error.url} {error.args} {error.facts}"
    assert error.message == "cannot read: https://host/a.csv?...: 'https://h/b?...' s3://b/c"
    assert error.url == "https://host/a.csv?..."


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a b.csv?sig=hunter2",
        'https://host/it\'s "b".csv?sig=hunter2 hunter2',
        "az://c/k?sig=hunter2",
        "https://host/a#hunter2",
        "https://me:hunt@hunter2@host/a",
        "https://me:hunter2/hunter2@host/a",
    ],
)
def test_an_error_hides_the_secrets_of_its_own_url_wherever_they_stand(url):
    error = errors.FetchError(f"cannot read: {url}: refused", hint=f"try '{url}'", url=url)
    assert "hunter2" not in f"{error} {error.url} {error.args} {error.facts}"
    assert ": refused" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "https://host/a b.csv?sig=hunter2: x",
        "'https://host/it's.csv?sig=hunter2': x",
        "az://c/k?sig=hunter2: x",
        "https://host/a#hunter2: x",
        "https://me:hunt@hunter2@host/a: x",
    ],
)
def test_messages_about_other_urls_hide_them_too(text):
    message = errors.FetchError(f"cannot read: {text}").message
    assert "hunter2" not in message and message.endswith(": x")
