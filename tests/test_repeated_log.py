"""server.repeated_log: at most one line a second and cause, and none is lost from the count."""

import logging

from broker_store.repeated_log import RepeatedLog


def test_a_line_a_second_and_cause_and_the_rest_is_counted(caplog):
    caplog.set_level("INFO")
    log = RepeatedLog(logging.getLogger("flood"))
    for number in range(100):
        log.write(logging.INFO, "TLS client", 10 + number / 1000, "closing %d", number)
    log.write(logging.INFO, "HTTP client", 10.05, "closing %s", "h")
    assert [record.getMessage() for record in caplog.records] == ["closing 0", "closing h"]
    log.write(logging.INFO, "TLS client", 11.5, "closing %d", 100)
    log.write(logging.INFO, "TLS client", 11.6, "closing %d", 101)
    log.flush(12.0)
    log.flush(12.6)
    log.flush(20.0)
    assert [record.getMessage() for record in caplog.records][2:] == [
        "closing 100 (and 99 more of TLS client since the last line)",
        "1 more of TLS client since the last line",
    ]
