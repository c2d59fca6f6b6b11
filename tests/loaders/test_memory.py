"""Free memory in control groups below others, as SLURM and systemd make them."""

import pytest

from orlog.loaders.memory import available_memory

LINES = {
    1: "9:name=systemd:/\n5:cpu,memory:/jobs/one/step\n0::/else\n",
    2: "0::/jobs/one/step\n",
    3: "1:name=systemd:/odd:path\n0::/jobs/one/step\n",
}
FILES = {
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: (".", "memory.max", "memory.current", ""),
    3: (".", "memory.max", "memory.current", ""),
}


def put(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def put_limit(root, group, layout, limit, used, files):
    """Write what the kernel shows of a group."""
    top, limit_name, used_name, all_below = FILES[layout]
    folder = f"sys/fs/cgroup/{top}/{group}"
    put(root, f"{folder}/{limit_name}", f"{limit}\n")
    put(root, f"{folder}/{used_name}", f"{used}\n")
    put(root, f"{folder}/memory.stat", f"{all_below}active_file {files}\n{all_below}inactive_file 0\n")


@pytest.mark.parametrize("layout", LINES)
@pytest.mark.parametrize("tightest", ["", "jobs", "jobs/one", "jobs/one/step"])
def test_the_tightest_of_the_own_groups_counts(tmp_path, layout, tightest):
    put(tmp_path, "proc/meminfo", "MemAvailable:    5000 kB\n")
    put(tmp_path, "proc/self/cgroup", LINES[layout])
    for group in ("", "jobs", "jobs/one", "jobs/one/step", "jobs/two"):
        put_limit(tmp_path, group, layout, "max", 10_000, 0)
    put_limit(tmp_path, "jobs/two", layout, "100", 0, 0)  # of others
    assert available_memory(tmp_path) == 5000 * 1024
    put_limit(tmp_path, tightest, layout, "2000000", 1_500_000, 300_000)
    assert available_memory(tmp_path) == 800_000


@pytest.mark.parametrize("line", ["0::/docker/abc", "0::/../..", "0::", "nonsense", "", None])
def test_a_path_that_is_not_there_means_the_topmost_group(tmp_path, line):
    put(tmp_path, "proc/meminfo", "MemAvailable:    5000 kB\n")
    put_limit(tmp_path, "", 2, "2000000", 1_500_000, 0)
    if line is not None:
        put(tmp_path, "proc/self/cgroup", line)
    assert available_memory(tmp_path) == 500_000


@pytest.mark.parametrize("layout", FILES)
def test_more_than_the_limit_is_nothing_and_no_file_half_of_the_machine(tmp_path, layout):
    put(tmp_path, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    put_limit(tmp_path, "", layout, "3000000", 9_500_000, 0)
    assert available_memory(tmp_path) == 0
    assert available_memory(tmp_path / "nothing") > 10**7
