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


def put_limit(folder, layout, limit, used, files):
    """Write what the kernel shows of a group."""
    _, limit_name, used_name, all_below = FILES[layout]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / used_name).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"{all_below}active_file {files}\n{all_below}inactive_file 0\n")


@pytest.mark.parametrize("layout", LINES)
@pytest.mark.parametrize("tightest", ["", "jobs", "jobs/one", "jobs/one/step"])
def test_the_tightest_of_the_own_groups_counts(tmp_path, layout, tightest):
    meminfo, own = tmp_path / "meminfo", tmp_path / "own"
    meminfo.write_text("MemAvailable:    5000 kB\n")
    own.write_text(LINES[layout])
    root = tmp_path / "groups"
    top = root / FILES[layout][0]
    for path in ("", "jobs", "jobs/one", "jobs/one/step", "jobs/two"):
        put_limit(top / path, layout, "max", 10_000, 0)
    put_limit(top / "jobs/two", layout, "100", 0, 0)  # of others
    found = {"meminfo": meminfo, "cgroup": root, "own_groups": own}
    assert available_memory(**found) == 5000 * 1024
    put_limit(top / tightest, layout, "2000000", 1_500_000, 300_000)
    assert available_memory(**found) == 800_000


def test_a_path_that_is_not_there_means_the_topmost_group(tmp_path):
    meminfo, own = tmp_path / "meminfo", tmp_path / "own"
    meminfo.write_text("MemAvailable:    5000 kB\n")
    put_limit(tmp_path / "groups", 2, "2000000", 1_500_000, 0)
    for line in ("0::/docker/abc", "0::/../..", "0::", "nonsense", ""):
        own.write_text(line)
        found = available_memory(meminfo=meminfo, cgroup=tmp_path / "groups", own_groups=own)
        assert found == 500_000
    own.unlink()
    assert available_memory(meminfo=meminfo, cgroup=tmp_path / "groups", own_groups=own) == 500_000
