import subprocess
import sys


def test_the_client_pulls_in_neither_numba_nor_numpy_nor_django():
    program = (
        "import sys; sys.modules['orjson'] = None\n"
        "import broker_store.client\n"
        "heavy = {'numba', 'numpy', 'django', 'uvloop', 'pyspark'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))\n"
        "print(sorted(name for name in sys.modules if name.startswith('broker_store.') and "
        "name.count('.') == 1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    heavy, rooms = done.stdout.splitlines()
    assert heavy == "[]"
    allowed = {"access", "client", "errors", "excerpts", "formats", "messages", "protocol"}
    assert {name.split(".")[1] for name in eval(rooms)} <= allowed


def test_the_client_works_without_orjson():
    program = (
        "import sys; sys.modules['orjson'] = None\n"
        "from broker_store.protocol.command import Command\n"
        "from broker_store.protocol.framing import decode_frame, encode_frame\n"
        "command = Command.request(310, {'a': 'b\\x01'}, b'x')\n"
        "assert decode_frame(encode_frame(command)[4:]) == command\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
