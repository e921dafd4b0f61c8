"""Apache's own DefaultMessageStore (5.5.0) on store directories, by the program
java/src-store/OpenStore.java."""

from pathlib import Path

from tests.interop import clients

OPENS = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
]


def said_by_apache(stores: list[Path], home: Path, options: dict, lookups: str) -> list[dict]:
    """What the program prints of the stores, which it opens one after the other; `lookups` is its input."""
    program = clients.Running(
        [
            "java",
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            f"-Drmq.logback.configurationFile={clients.LOG_CONFIGURATION}",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *clients.archive_of(clients.JAVA_5),
            *OPENS,
            "-cp",
            clients.classpath_of(clients.JAVA_5),
            "OpenStore",
            *map(str, stores),
            *(f"{key}={value}" for key, value in options.items()),
        ]
    )
    try:
        program.say(lookups)
        return program.finish(clients.RUN_LIMIT_S)
    finally:
        program.kill()
