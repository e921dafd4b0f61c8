"""docs/SETTINGS.md, made from broker_store/config/: `python -m tests.support.settings_page >
docs/SETTINGS.md`."""

from __future__ import annotations

import textwrap

from broker_store.config.load import acting_settings
from broker_store.config.other_keys import REFUSED, WITHOUT_EFFECT_BY_REASON

WIDTH = 110
HEAD = """# Settings

Names are those of Apache RocketMQ. They come from a file in its properties format
(`runbroker -c broker.conf`), then from `--set key=value`, then from the options of the command line; the
later wins. An unknown key or a wrong value stops the start and is named.

A key with ⟳ may be changed while the process runs, by `mqadmin updateBrokerConfig` (`updateNamesrvConfig` for
the name server). The change acts on the next request, or on the next round of what is done again and again (a
registration, a check for expired files). It is kept in `config/changed.conf` of the store (of a name server
alone: in `namesrv/changed.conf`), which is read after the file. A change of any other key needs a restart.
`brokerPermission` is changed by super users alone, without access control from the broker's machine alone.

This page is made from `broker_store/config/` by `python -m tests.support.settings_page > docs/SETTINGS.md`; a
test holds the two together.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    groups: dict[str, list] = {}
    for group, field in acting_settings():
        groups.setdefault(group, []).append(field)
    for group, fields in groups.items():
        where = (
            " (of `runnamesrv`; all but `listenPort` also of the one that `runbroker` starts)"
            if group == "Name server"
            else ""
        )
        parts.append(
            f"\n## {group}{where}\n\n| Key | Default | Unit | What it does and why |\n|---|---|---|---|\n"
        )
        parts += [_row(field) for field in fields]
    parts.append(
        "\n## Refused\n\nThese stop the start unless they have the value given here.\n\n| Key | Only "
        "| Why |\n|---|---|---|\n"
    )
    parts += [
        f"| `{key}` | {', '.join(_shown(value) for value in allowed)} | {reason} |\n"
        for key, (allowed, reason) in REFUSED.items()
    ]
    parts.append(
        "\n## Known, without effect\n\nApache's keys that are accepted and change nothing; the start "
        "names those that are set.\n"
    )
    for reason, keys in WITHOUT_EFFECT_BY_REASON.items():
        listed = ", ".join(f"`{key}`" for key in keys.split())
        text = f"**{reason[0].upper()}{reason[1:]}.** {listed}"
        wrapped = textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
        parts.append(f"\n{wrapped}\n")
    return "".join(parts)


def _row(field) -> str:
    setting = field.metadata["setting"]
    reason = setting.reason + (" (ours, not Apache's)" if setting.ours else "")
    if setting.choices:
        reason += "; one of " + ", ".join(setting.choices)
    return f"| `{setting.key}`{' ⟳' if setting.live else ''} | {_default(field)} | {setting.unit or '–'} | {reason.replace('|', '&#124;')} |\n"


def _default(field) -> str:
    if field.default is None:
        return "`commitlog` in the root"
    return _shown(str(field.default).lower() if field.type == "bool" else str(field.default))


def _shown(value: str) -> str:
    return f"`{value}`" if value else "empty"


if __name__ == "__main__":
    print(page(), end="")
