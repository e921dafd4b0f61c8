from broker_store import throttle


def test_a_throttled_thread_pauses_four_times_as_long_as_a_piece_took():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(round(seconds, 6))
        now[0] += seconds

    one = throttle.Throttle(clock=lambda: now[0], sleep=sleep)
    for worked in (0.001, throttle.MIN_WORK_S / 2, throttle.MIN_WORK_S, 1.0):
        now[0] += worked
        one.pause()
    # The short piece counts with the next
    assert slept == [0.004, round(throttle.MIN_WORK_S * 1.5 * 4, 6), throttle.MAX_PAUSE_S]


def test_it_pauses_no_more_after_stop_throttling():
    now, slept = [0.0], []
    one = throttle.Throttle(clock=lambda: now[0], sleep=slept.append)
    for stops in (False, True):
        now[0] += 1.0
        if stops:
            one.stop_throttling()
        one.pause()
    assert len(slept) == 1


def test_only_a_throttled_call_pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(throttle.Throttle, "pause", lambda self: pauses.append(self))

    def scan(pieces, *, result):
        for _ in range(pieces):
            throttle.pause()
        return throttle.current() is not None, result

    assert scan(3, result=7) == (False, 7) and not pauses
    assert throttle.throttled_by(throttle.Throttle(), scan, 3, result=7) == (True, 7) and len(pauses) == 3
    assert scan(3, result=7) == (False, 7) and len(pauses) == 3


def test_a_table_in_pieces_pauses_after_each():
    now, slept = [0.0], []
    one = throttle.Throttle(clock=lambda: now[0], sleep=slept.append)

    def entries():
        for number in range(10):
            now[0] += 1.0
            yield number

    assert throttle.throttled_by(one, lambda: list(throttle.in_pieces(entries(), 4))) == list(range(10))
    assert len(slept) == 2
    assert list(throttle.in_pieces(range(5), 2)) == [0, 1, 2, 3, 4], "not throttled"
