"""broker.names: pages of many names, without a scan of all."""

import random

import pytest

from broker_store.broker import names as names_module
from broker_store.broker.names import Names, by_letters


def kind_of(name: str) -> str:
    return "retry" if name.startswith("%") else "normal"


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", [512, 5, 2])
def test_names_are_in_order_by_kind_whatever_comes_and_goes(block, monkeypatch):
    monkeypatch.setattr(names_module, "BLOCK", block)
    monkeypatch.setattr(names_module, "MAX_ONE_BY_ONE", 3)
    names, held = Names(kind_of), {}
    chance = random.Random(5)
    names.add_all(["b", "A", "%x", "b"])
    held = {"b": 2, "A": 1, "%x": 1}
    for _ in range(3_000):
        name = chance.choice(("%", "", "")) + chance.choice("aAbBcC") + str(chance.randrange(30))
        if chance.random() < 0.5:
            names.add(name)
            held[name] = held.get(name, 0) + 1
        else:
            names.discard(name)
            held[name] = held.get(name, 0) - 1
            if held[name] <= 0:
                held.pop(name, None) if held.get(name, 0) <= 0 else None
        if chance.random() < 0.02:
            more = ["%q" + str(chance.randrange(9)) for _ in range(chance.randrange(9))]
            names.add_all(more)
            for one in more:
                held[one] = held.get(one, 0) + 1
        expected = sorted(held, key=by_letters)
        assert list(names.all()) == expected and len(names.all()) == len(names) == names.count() == len(
            expected
        )
        assert [names.all()[at : at + 3] for at in range(0, len(expected), 3)] == [
            expected[at : at + 3] for at in range(0, len(expected), 3)
        ]
        for kind in ("normal", "retry"):
            assert list(names.all(kind)) == [name for name in expected if kind_of(name) == kind]
            assert names.count(kind) == len(names.all(kind))
    assert names.slice(2, 3) == expected[2:5]
    assert names.after(expected[3], 2) == expected[4:6] and names.after(None, 2) == expected[:2]
    assert names.after("c", 500) == [name for name in expected if by_letters(name) > by_letters("c")], (
        "also after a name that is not there"
    )
    assert names.after("zzz", 5) == [] and ("b" in names) == ("b" in held)


@pytest.mark.parametrize(
    "at",
    [slice(None, None, -1), slice(None, None, 3), slice(7, 2, -2), slice(-4, -1), slice(9, 3), slice(40, 50)],
)
def test_a_list_of_names_is_cut_as_a_list_is(at, monkeypatch):
    monkeypatch.setattr(names_module, "BLOCK", 2)
    names = Names(kind_of)
    names.add_all(f"t{number:02d}" for number in range(20))
    assert names.all()[at] == list(names.all())[at]
    assert (names.all()[0], names.all()[-1], names.all()[-20]) == ("t00", "t19", "t00")
    for outside in (20, -21):
        with pytest.raises(IndexError):
            names.all()[outside]
