import pytest

from broker_store.protocol import fastjson, framing


@pytest.fixture(params=["orjson", "standard library"])
def json_library(request, monkeypatch):
    """Runs a test with orjson and without."""
    if request.param == "standard library":
        monkeypatch.setattr(framing, "_loads", framing.strict_loads)
        monkeypatch.setattr(fastjson, "orjson", None)
    elif fastjson.orjson is None:
        pytest.skip("orjson is not installed")
    return request.param
