"""The memory that the host has left: of the machine, of containers and of systemd units."""

import pytest

from da3_ros.inference.host_memory import host_free

MIB = 2**20


@pytest.fixture
def machine(tmp_path):
    """Makes files as the kernel has them."""

    class Machine:
        proc, cgroups = tmp_path / "proc", tmp_path / "cgroups"

        def own_groups(self, text):
            self._write(self.proc / "self" / "cgroup", text)

        def group(self, path, **mib):
            for name, value in mib.items():
                text = str(value * MIB) if isinstance(value, int) else value
                self._write(self.cgroups / path / f"memory.{name}", text + "\n")

        def free(self):
            return host_free(str(self.proc), str(self.cgroups)) / MIB

        def _write(self, path, text):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    it = Machine()
    it._write(it.proc / "meminfo", "MemTotal: 8 kB\nMemAvailable: 4194304 kB\nother\n")
    it.own_groups("0::/\n")
    it.cgroups.mkdir()
    return it


def stat(**mib):
    return "anon 5\n\n" + "".join(f"{name} {value * MIB}\n" for name, value in mib.items())


def test_without_limits_all_that_the_machine_has_is_free(machine):
    assert machine.free() == 4096
    machine.group("", max="max", high="max", current=100)
    assert machine.free() == 4096


def test_a_containers_limit_counts(machine):
    machine.group("", max=1024, current=256)
    assert machine.free() == 768


def test_files_that_were_not_used_lately_are_free(machine):
    machine.group("", max=1024, current=900, stat=stat(active_file=300, inactive_file=500))
    assert machine.free() == 624


def test_the_limit_of_a_systemd_unit_counts(machine):
    machine.own_groups("0::/system.slice/da3.service\n")
    machine.group("", current=9000)
    machine.group("system.slice", max="max", current=3000)
    machine.group("system.slice/da3.service", max=2048, high=1500, current=500)
    assert machine.free() == 1000
    machine.group("system.slice", max=3500)
    assert machine.free() == 500


def test_version_one_counts_the_same(machine):
    machine.own_groups("9:name=systemd:/a\nodd line\n4:cpu,memory:/docker/abc\n0::/\n")
    unlimited = str(2**63 - 4096)
    machine.group("memory", limit_in_bytes=unlimited, usage_in_bytes=5000)
    machine.group("memory/docker", limit_in_bytes=unlimited, usage_in_bytes=700)
    assert machine.free() == 4096
    machine.group(
        "memory/docker/abc", limit_in_bytes=512, usage_in_bytes=500,
        stat=stat(inactive_file=999, total_inactive_file=100),
    )  # fmt: skip
    assert machine.free() == 112


def test_a_container_that_does_not_see_its_groups_path_reads_the_root(machine):
    machine.own_groups("4:memory:/kubepods/pod1/c2\n")
    machine.group("memory", limit_in_bytes=300, usage_in_bytes=100)
    assert machine.free() == 200


def test_a_group_beyond_its_limit_leaves_nothing(machine):
    machine.group("", max=100, current=300)
    assert machine.free() == 0


def test_without_the_kernels_files_half_of_the_machine_is_free(machine):
    (machine.proc / "meminfo").unlink()
    assert machine.free() > 0
    assert host_free() > 0
