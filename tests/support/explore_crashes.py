"""The crash explorer as a command: very many states, or one state that failed once more.

python -m tests.support.explore_crashes --states 1000000                     both flush modes, all rules, random lives
python -m tests.support.explore_crashes --seed 7 ... --point 12 --choice '...'   what a violation printed
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time

from tests.support.crash_states import POOL, Choice, Exploration
from tests.support.name_rules import RULES

STATES_PER_LIFE = 1000
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH", POOL)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="explore_crashes", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--states", type=int, default=1_000_000, help="how many states are opened (default 10^6)")
    add("--seed", type=int, help="of the first life; by default another each time")
    add("--flush", choices=FLUSHES)
    add("--rules", choices=sorted(RULES))
    add("--steps", type=int, default=60)
    add("--wide", action="store_true")
    add("--rebuilds", action="store_true")
    add("--rolls", action="store_true")
    add("--failing-sync", type=int)
    add("--point", type=int)
    add("--choice", help="of the state, as it was printed")
    add("--thorough", action="store_true")
    add("--keep-going", action="store_true", help="print violations and go on")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    if given.choice is not None:
        one = Exploration(
            seed,
            given.flush,
            given.steps,
            0,
            given.rules,
            given.wide,
            given.rebuilds,
            given.rolls,
            given.failing_sync,
        )
        one.open_one(given.point, Choice.from_json(given.choice), given.thorough)
        print("this state holds")
        return 0
    opened, violations, began = 0, 0, time.monotonic()
    flushes = FLUSHES if given.flush is None else (given.flush,)
    rules = sorted(RULES) if given.rules is None else [given.rules]
    for number, (flush, rule) in enumerate(itertools.cycle(itertools.product(flushes, rules))):
        if opened >= given.states:
            break
        life = Exploration(
            seed + number,
            flush,
            given.steps,
            STATES_PER_LIFE,
            rule,
            number % 2 == 1,
            number % 5 == 4,
            number % 3 != 0 or given.rolls,
        )
        try:
            opened += life.run()
        except Exception as error:
            if not given.keep_going:
                raise
            violations += 1
            print(
                f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()), sep="\n  ", flush=True
            )
        if number % 20 == 0:
            print(
                f"{opened:,} states of {number + 1} lives in {time.monotonic() - began:,.0f} s, "
                f"{violations} violations",
                flush=True,
            )
    print(f"{opened:,} states, {violations} violations, seeds {seed} to {seed + number}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
