import pytest

from broker_store.client import FilePlaces
from broker_store.errors import FormatError


def test_places_are_kept_in_a_file(tmp_path):
    path = tmp_path / "places.json"
    places = FilePlaces(path)
    assert places.load() == {}
    places.save({"T@broker-a@0": 5})
    places.save({"T@broker-a@0": 7, "T@broker-a@1": 1})
    assert FilePlaces(path).load() == {"T@broker-a@0": 7, "T@broker-a@1": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["places.json"]


def test_places_that_did_not_change_are_not_written(tmp_path):
    path = tmp_path / "places.json"
    places = FilePlaces(path)
    places.save({"T@broker-a@0": 5})
    path.unlink()
    places.save({"T@broker-a@0": 5})
    assert not path.exists()
    places.save({"T@broker-a@0": 6})
    assert path.exists()


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "1"}', '{"a": true}', "{"])
def test_a_file_that_holds_something_else_is_said(tmp_path, text):
    path = tmp_path / "places.json"
    path.write_text(text)
    with pytest.raises(FormatError, match="places.json holds no places"):
        FilePlaces(path).load()
