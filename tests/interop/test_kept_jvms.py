"""JVMs that are kept for commands of Java's clients: what one command leaves is not seen by the next, and one
that fails or is killed ends its JVM."""

import pytest


def test_commands_of_a_kept_jvm_are_apart_and_one_that_fails_ends_it(java, broker):
    topic = f"kept-{java.version[0]}"
    assert java.admin(f"create_topic\t{topic}\t1\t1\t6")
    assert [line["key"] for line in java.run("send", topics=topic, n=3, run="first")] == [
        "firstkey0",
        "firstkey1",
        "firstkey2",
    ]
    (sent,) = java.run("send", topics=topic, n=1)
    assert sent["key"] == "rkey0"  # the option of the command before is gone
    with pytest.raises(AssertionError, match="ended with 1: .*IllegalArgumentException: no-command"):
        java.run("no-command", 60)
    reader, other = (java.start("consume", topics=topic, group=f"{topic}-{n}") for n in range(2))
    try:
        reader.until(lambda lines: len(lines) >= 5)  # that it is ready, and four messages
        reader.kill()
        with pytest.raises(AssertionError, match="ended with -9"):
            reader.finish()
        assert len(other.until(lambda lines: len(lines) >= 5)) == 5
        other.finish()
    finally:
        reader.kill()
        other.kill()  # which does nothing: it has ended, and its JVM is there for the next
    (row,) = java.run("offsets", topic=topic)
    assert row["max"] == 4
