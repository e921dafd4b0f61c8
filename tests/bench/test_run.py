"""The table of `make bench`: ratios, bounds, and what is said about them."""

import pytest

from tests.bench import page_cache, run
from tests.bench.run import APACHE, OURS, ROOT, SECTIONS, Row, main, renewed, table


def row(ours: list[float], apache: list[float], **bounds) -> Row:
    made = Row("figure", "msg/s", **bounds)
    made.values[OURS], made.values[APACHE] = ours, apache
    return made


def test_the_ratio_is_that_of_the_medians():
    assert row([90, 300, 310], [100, 50, 150]).ratio == 3.0


def test_a_rate_must_reach_its_bound_and_a_time_must_stay_below():
    assert row([100], [100], bound=1.0).verdict == "met"
    assert row([99], [100], bound=1.0).verdict == "MISSED"
    assert row([50], [100], bound=0.5, lower_is_better=True).verdict == "met"
    assert row([51], [100], bound=0.5, lower_is_better=True).verdict == "MISSED"


def test_a_limit_is_held_by_ours_alone():
    assert row([299], [], limit=300).verdict == "met"
    assert row([301], [1000], limit=300).verdict == "MISSED"
    assert (row([299], [], least=300).verdict, row([300], [], least=300).verdict) == ("MISSED", "met")


def test_what_is_nothing_on_apaches_side_has_no_ratio():
    assert row([1.0], [0.0]).ratio is None


def test_a_figure_of_one_side_has_no_ratio_and_no_verdict():
    one_sided = row([5], [], bound=1.0)
    assert one_sided.ratio is None and one_sided.verdict == ""


def test_the_table_shows_median_and_range():
    text = table([row([1000, 3000, 2000], [500, 500, 500], bound=1.0)])
    assert text.splitlines()[2].split("|")[1:-1] == [
        " figure ",
        " msg/s ",
        " 2,000 (1,000–3,000)  ",
        " 500 (500–500)                ",
        " 4.00  ",
        " ≥ 1   ",
        " met ",
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_has_its_place_on_the_page_and_only_that_is_renewed(section):
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text()
    fresh = renewed(page, section, "new figures")
    assert fresh.count("new figures") == 1
    assert renewed(fresh, section, "newer").replace("newer", "new figures") == fresh
    assert all(renewed(page, other, "x") != page for other in SECTIONS)


def test_an_unknown_section_is_named_with_those_there_are(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run", "--only", "put,recovery"])
    with pytest.raises(SystemExit):
        main()
    assert "no section recovery; there are put, batch" in capsys.readouterr().err


def test_memory_is_filled_only_while_it_is_free_and_takes_no_disk(tmp_path, monkeypatch):
    free = iter([1 << 50, 1 << 50, 0])
    monkeypatch.setattr(page_cache, "free_bytes", lambda: next(free))
    cache = page_cache.PageCache(tmp_path / "holes")
    cache.fill()
    assert next(free, None) is None and (tmp_path / "holes").stat().st_blocks * 512 < page_cache.STEP
    cache.remove()
    assert not (tmp_path / "holes").exists()


def test_memory_that_stays_free_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(page_cache, "free_bytes", lambda: 1 << 50)
    monkeypatch.setattr(page_cache.os, "posix_fadvise", lambda *_: None)
    cache = page_cache.PageCache(tmp_path / "holes")
    with pytest.raises(RuntimeError, match="stay free"):
        cache.fill()


def test_the_pipelines_rows_are_held_to_limits_of_their_own(monkeypatch, tmp_path):
    told = {
        "scan": [
            {
                "what": what,
                "sec": 2.0,
                "records_s": 1_600_000.0,
                "made_pct": 18.0,
                "file_pct": 4.0,
                "handed_pct": 1.0,
                "jvm_pct": 12.0,
            }
            for what in ("numbers", "by topic and queue")
        ],
        "audit": [{"sec": 30.0}],
        "archive": [{"sec": 21.0, "MB_s": 50.0}],
    }
    monkeypatch.setattr(run, "WORK", tmp_path)
    monkeypatch.setattr(run, "store_lines", lambda *call, **options: [])
    monkeypatch.setattr(run, "command_seconds", lambda *words: 20.0)
    monkeypatch.setattr(run, "pipeline_lines", lambda run, store, mode, **options: told[mode])
    measured = run.Run(1, True, 1)
    run.bench_pipeline(measured)
    measured.close()
    assert [(name, row.verdict) for name, row in measured.rows.items() if row.verdict] == [
        ("pipeline: scan of numbers, 100 B, 1 GiB", "met"),
        ("pipeline: scan of numbers, 100 B, 4 GiB", "met"),
        ("pipeline: kernels and Arrow, CPU, of the tasks' time", "met"),
        ("pipeline: scan of numbers, 4 GiB beside 1 GiB", "met"),
        ("pipeline: audit, 4 GiB beside 1 GiB", "met"),
        ("pipeline: archive, 4 GiB beside 1 GiB", "met"),
    ]
    assert "≥ 1,500,000 records/s" in table(list(measured.rows.values()))
