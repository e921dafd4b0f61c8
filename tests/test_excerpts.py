from hypothesis import example, given
from hypothesis import strategies as st

from broker_store.errors import FieldError
from broker_store.excerpts import excerpt, text_excerpt

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("ab\n\u00e4", max_size=9)
    | st.binary(max_size=9)
    | st.tuples(st.integers()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("ab'", max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=9,
)


@example([{"a'": None}], 3)
@example(["ab'\""], 4)
@example([b"a'"], 3)
@given(values, st.integers(1, 80))
def test_an_excerpt_is_the_first_part_of_the_repr(value, characters):
    assert excerpt(value, characters) == repr(value)[:characters]


class Counted:
    shown = 0

    def __repr__(self) -> str:
        Counted.shown += 1
        return "x"


def test_an_error_about_a_value_shows_only_the_items_that_it_has_room_for():
    Counted.shown = 0
    shared = [Counted()] * 10
    for _ in range(5):
        shared = [shared] * 10
    text = str(FieldError("clientID", {"a": shared}, "text"))
    assert text.startswith("field clientID is {'a': [[[[[[x, x, x")
    assert Counted.shown <= 60  # the whole repr shows 1,000,000


def test_a_value_that_contains_itself_and_a_long_text_have_excerpts():
    circle: list = []
    circle.append(circle)
    assert excerpt(circle, 10) == "[" * 10
    assert text_excerpt("x" * 100, 5) == "xxxxx"
    assert text_excerpt(["x" * 100], 5) == "['xxx"
