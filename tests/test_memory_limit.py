"""The memory that the process may use, of control groups of both versions, else of the machine."""

import pytest

from broker_store.memory_limit import memory_limit

V1 = "30 20 0:26 {root} {point} rw,relatime - cgroup cgroup rw,memory"
V2 = "30 20 0:26 {root} {point} rw,relatime - cgroup2 cgroup2 rw"
MACHINE = 8 << 30


@pytest.fixture
def machine(tmp_path):
    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    write("proc/meminfo", f"MemTotal: {MACHINE >> 10} kB")
    write("proc/self/cgroup", "0::/")
    write("proc/self/mountinfo", "")
    machine = type("Machine", (), {"write": staticmethod(write), "root": tmp_path})
    return machine


def test_without_a_group_it_is_the_memory_of_the_machine(machine):
    found = memory_limit(machine.root)
    assert (found.bytes, found.is_of_group) == (MACHINE, False)


def test_the_least_of_all_levels_holds_in_version_2(machine):
    machine.write("proc/self/cgroup", "0::/system.slice/headpond.service")
    machine.write("proc/self/mountinfo", V2.format(root="/", point="/sys/fs/cgroup"))
    machine.write("sys/fs/cgroup/system.slice/memory.max", str(512 << 20))
    machine.write("sys/fs/cgroup/system.slice/headpond.service/memory.max", "max")
    found = memory_limit(machine.root)
    assert (found.bytes, found.source) == (512 << 20, "/sys/fs/cgroup/system.slice/memory.max")
    machine.write("sys/fs/cgroup/system.slice/headpond.service/memory.max", str(256 << 20))
    assert memory_limit(machine.root).bytes == 256 << 20


def test_version_1_has_its_controller_of_memory(machine):
    machine.write("proc/self/cgroup", "4:memory:/docker/abc\n3:cpuset:/docker/abc\n0::/")
    lines = [
        V1.format(root="/", point="/sys/fs/cgroup/cpuset").replace("rw,memory", "rw,cpuset"),
        V1.format(root="/", point="/sys/fs/cgroup/memory"),
        V2.format(root="/", point="/sys/fs/cgroup/unified"),
    ]
    machine.write("proc/self/mountinfo", "\n".join(lines))
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(0x7FFFFFFFFFFFF000))
    machine.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", str(1 << 30))
    found = memory_limit(machine.root)
    assert (found.bytes, found.is_of_group) == (1 << 30, True)


def test_a_container_sees_its_own_group_as_the_root(machine):
    machine.write("proc/self/cgroup", "4:memory:/docker/abc\n0::/")
    machine.write("proc/self/mountinfo", V1.format(root="/docker/abc", point="/sys/fs/cgroup/memory"))
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(300 << 20))
    assert memory_limit(machine.root).bytes == 300 << 20


def test_an_unlimited_group_is_not_named(machine):
    machine.write("proc/self/mountinfo", V2.format(root="/", point="/sys/fs/cgroup"))
    machine.write("sys/fs/cgroup/memory.max", "max")
    assert not memory_limit(machine.root).is_of_group
