from broker_store import pace


def test_who_looks_gently_rests_four_times_as_long_as_a_piece_took():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(round(seconds, 6))
        now[0] += seconds

    one = pace.Pace(clock=lambda: now[0], sleep=sleep)
    for worked in (0.001, pace.LEAST_S / 2, pace.LEAST_S, 1.0):
        now[0] += worked
        one.rest()
    # The short piece counts with the next
    assert slept == [0.004, round(pace.LEAST_S * 1.5 * 4, 6), pace.MOST_REST_S]


def test_who_is_told_to_hurry_rests_no_more():
    now, slept = [0.0], []
    one = pace.Pace(clock=lambda: now[0], sleep=slept.append)
    for hurries in (False, True):
        now[0] += 1.0
        if hurries:
            one.hurry()
        one.rest()
    assert len(slept) == 1


def test_only_what_was_begun_gently_rests(monkeypatch):
    rests = []
    monkeypatch.setattr(pace.Pace, "rest", lambda self: rests.append(self))

    def look(pieces, *, result):
        for _ in range(pieces):
            pace.rest()
        return pace.current() is not None, result

    assert look(3, result=7) == (False, 7) and not rests
    assert pace.gently(look, 3, result=7) == (True, 7) and len(rests) == 3
    assert look(3, result=7) == (False, 7) and len(rests) == 3


def test_a_table_in_pieces_rests_after_each():
    now, slept = [0.0], []
    one = pace.Pace(clock=lambda: now[0], sleep=slept.append)

    def entries():
        for number in range(10):
            now[0] += 1.0
            yield number

    assert pace.at_pace(one, lambda: list(pace.in_pieces(entries(), 4))) == list(range(10))
    assert len(slept) == 2
    assert list(pace.in_pieces(range(5), 2)) == [0, 1, 2, 3, 4], "without a pace nothing rests"
