"""`make` writes the bytecode of every module that a start imports, also where PYTHONDONTWRITEBYTECODE is
set."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

MODULES_OF_A_START = """
import json, sys, django
django.setup()
import broker_store.assembly, mqadmin.web.asgi, mqadmin.web.server, mqadmin.management.commands.runbroker
print(json.dumps({name: [module.__spec__.origin, module.__spec__.cached] for name, module in sys.modules.items() if getattr(module, "__spec__", None)}))
"""


def test_each_module_that_a_start_imports_has_bytecode(tmp_path):
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "mqadmin.settings",
        "BROKER_DATA_DIR": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", MODULES_OF_A_START]
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    modules = json.loads(finished.stdout)
    bytecode_files = {
        name: cached for name, (origin, cached) in modules.items() if origin and origin.endswith(".py")
    }
    packages = {name.partition(".")[0] for name in bytecode_files}
    assert {"numba", "django", "redis", "broker_store", "mqadmin"} <= packages
    missing = [name for name, cached in bytecode_files.items() if not Path(cached).exists()]
    assert not missing, (
        f"{len(missing)} modules have no bytecode, {missing[0]} is the first: make run or make test writes it"
    )
