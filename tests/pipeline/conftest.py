"""One Spark session for all tests that need one, with one core and a small heap: starting it is the dear
part."""

from __future__ import annotations

import pytest

from tests.support.directories import tmp_path  # noqa: F401  (a fixture)

# Queries over a few thousand rows: compiling them, to Java or to machine code, would be most of the time.
LIGHT = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    pytest.importorskip("pyspark", reason="Spark is in requirements.txt and not installed here")
    from broker_store.pipeline.session import open_session

    session = open_session(tmp_path_factory.mktemp("spark"), cores=1, heap="512m", **LIGHT)
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
