"""A-6, C-5, C-6, C-7: machines that are short of processor or memory, whose clocks lie, or whose disk hangs."""

import contextlib
import pathlib
import shutil
import subprocess
import sysconfig
import time

from cases import case, watch
from cases_silence import CALM_S, false_deaths, quarter_harmed
from lab import Failure, longest_pause, throughput_percent
from network import NoLab

GROUPS = pathlib.Path("/sys/fs/cgroup")
LIBRARIES = (pathlib.Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "."), *map(pathlib.Path, ("/usr/lib", "/usr/lib64", "/usr/local/lib")))
CLOCK_STEPS = ("+365d", "-365d", "+10m", "-10m", "+0 x2.0")


@contextlib.contextmanager
def limited(controller, name, limits, nodes):
    """These nodes in a control group (version 1) with these limits."""
    with control_group(controller, name) as group:
        for key, value in limits.items():
            limit(group / key, value)
        for node in nodes:
            (group / "cgroup.procs").write_text(str(node.process.pid), encoding="ascii")
        yield group


def limit(file, value):
    try:
        with open(file, "r+", encoding="ascii") as key:  # which makes none: outside control groups it would be a file as any other
            key.write(str(value))
        taken = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise NoLab(f"{file} takes no limit: {error}") from error
    if taken != value:
        raise NoLab(f"{file} is {taken} and did not take {value}")


@contextlib.contextmanager
def control_group(controller, name):
    """A group of its own, whose processes go back to the parent in the end."""
    parent = GROUPS / controller / "cgroup.procs"
    group = GROUPS / controller / f"starling-net-{name}"
    try:
        if not parent.exists():
            raise FileNotFoundError(f"no {parent}")
        group.mkdir()
    except OSError as error:
        raise NoLab(f"no control group of {controller} in version 1 ({error}): mount -t cgroup -o {controller} cgroup {GROUPS / controller}, "
                    "where the kernel was started with systemd.unified_cgroup_hierarchy=0") from error
    try:
        yield group
    finally:
        for pid in (group / parent.name).read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):
                parent.write_text(pid, encoding="ascii")
        group.rmdir()


@case("A-6", "a quarter of the nodes gets 5 % of a processor", {"false_dead": "<= 0", "ended": "<= 0", "throughput_percent": ">= 97"})
def starved(bench):
    def harm(lab, victims):
        with contextlib.ExitStack() as stack:
            for victim in victims:
                limits = {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": 5_000}
                stack.enter_context(limited("cpu", f"{lab.network.space(victim.number)}", limits, [victim]))
            return watch(2 * bench.seconds)
    return quarter_harmed(bench, harm, lambda nodes, victims, since: {"victims_dead": false_deaths(nodes, victims, since)})


def deaths_and_ends(nodes):
    """How often these nodes called anybody dead, and a session ended that somebody had a use for, since they were started: their own clocks do not
    matter."""
    deaths = sum(event["event"] == "member" and event["state"] == "dead" for node in nodes for event in node.events())
    ends = sum(" session.down peer=" in line and "neither side needs it" not in line for node in nodes for line in node.log().splitlines())
    return deaths, ends


def faketime():
    for folder in LIBRARIES:
        if (found := folder / "faketime" / "libfaketimeMT.so.1").exists():
            return found
    raise NoLab("no libfaketime on this machine (apt-get install libfaketime)")


@case("C-5", "the clocks of a quarter of the nodes step by a year and by ten minutes, and run twice as fast",
      {"false_dead": "<= 0", "disconnects": "<= 0", "ended": "<= 0", "throughput_percent": ">= 98"})
def clocks(bench):
    library = faketime()
    with bench.lab(bench.nodes) as lab:
        victims = lab.random.sample(lab.nodes, len(lab.nodes) // 4)
        lies = {node: lab.folder / f"clock-{node.number}" for node in victims}
        for file in lies.values():
            file.write_text("+0\n", encoding="ascii")
        # The steady clock is the kernel's: it is what a year's step cannot touch on a real machine either.
        surroundings = {node: {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1",
                               "DONT_FAKE_MONOTONIC": "1"} for node, file in lies.items()}
        nodes = lab.start_all(more=["--set", "log.per_event=0"], surroundings=surroundings)
        watch(CALM_S)
        before = watch(CALM_S)
        deaths, ends = deaths_and_ends(nodes)
        begin = time.monotonic()
        years = 0.0
        for step in CLOCK_STEPS:
            for file in lies.values():
                file.write_text(step + "\n", encoding="ascii")
            watch(2 * bench.seconds / len(CLOCK_STEPS))
            years = max(years, *(abs(node.last_event()["at"] - time.time()) for node in victims))
        during = (begin, time.monotonic())
        later_deaths, later_ends = deaths_and_ends(nodes)
        if years < 86_400:
            raise Failure("no clock was wrong")
        return {"false_dead": later_deaths - deaths, "disconnects": later_ends - ends, "ended": sum(not node.running() for node in nodes),
                "throughput_percent": throughput_percent([node for node in nodes if node not in victims], before, during),
                "victims_percent": throughput_percent(victims, before, during), "clock_off_s": years}


# The limit stands at twice the bar, so that a node that grows beyond it is measured, and not only killed.
@case("C-6", "a node that 32 others join through, and that exchanges the largest deltas (L6) with its neighbours, six or seven, at a step each 0.4 s: its group "
      "of 512 MiB never holds more than half of them", {"ended": "<= 0", "most_mib": "<= 256"})
def little_memory(bench):
    with bench.lab(33, step_ms=400) as lab:
        contact = lab.nodes[0]
        lab.start_all(1, more=["--codec", "L6"])
        with limited("memory", lab.network.space(contact.number), {"memory.limit_in_bytes": 512 * 2**20}, [contact]) as group:
            for node in lab.nodes[1:]:
                lab.start(node, [contact], more=["--codec", "L6"])
            lab.wait_whole(lab.nodes, 120)
            held = contact.rss_bytes()
            watch(2 * bench.seconds)
            most = int((group / "memory.max_usage_in_bytes").read_text(encoding="ascii"))
            status = contact.status()
            return {"ended": sum(not node.running() for node in lab.nodes), "most_mib": most / 2**20,
                    "grown_mib": (contact.rss_bytes() - held) / 2**20, "neighbours": len(status["neighbours"]) if status else 0}


@contextlib.contextmanager
def disk_of_its_own(lab, node):
    """The node's folder on a file system of its own. What only the test writes there, its log and its steps, lies elsewhere."""
    for tool in ("mkfs.ext4", "fsfreeze"):
        if not shutil.which(tool):
            raise NoLab(f"no {tool} on this machine (apt-get install e2fsprogs util-linux)")
    image = lab.folder / f"disk-{node.number}"
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    node.folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    done = subprocess.run(["mount", "-o", "loop", image, node.folder], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NoLab(f"no loop device on this machine: {done.stderr.strip()}; it needs /dev/loop-control and the right to mount")
    try:
        node.folder.chmod(0o700)
        for name in ("log", "steps"):
            (node.folder / name).symlink_to(lab.folder / f"{name}-{node.number}")
        yield
    finally:
        if node.running():
            node.kill()
        subprocess.run(["umount", "--lazy", node.folder], check=False)


@contextlib.contextmanager
def frozen(folder):
    """Whoever writes to the file system of this folder waits."""
    subprocess.run(["fsfreeze", "--freeze", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", folder], check=True)


@case("C-7", "the disk of a node takes nothing for 30 s, in which checkpoints and events are due",
      {"victim_percent": ">= 98", "false_dead": "<= 0", "ended": "<= 0", "checkpoint_s": "<= 20", "throughput_percent": ">= 98"})
def hung_disk(bench):
    with bench.lab(bench.nodes) as lab:
        victim, passer_by = lab.nodes[-1], lab.nodes[-2]
        with disk_of_its_own(lab, victim):
            nodes = lab.start_all(bench.nodes - 2) + [victim]
            lab.start(victim, nodes[:1])
            lab.wait_whole(nodes, 60)
            watch(CALM_S)
            before = watch(CALM_S)
            since = time.time()
            with frozen(victim.folder):
                # Somebody comes and is killed, so that there is something to write down.
                begin = time.monotonic()
                lab.start(passer_by, nodes[:1])
                lab.until(passer_by.status, 20, "the passer-by does not answer")
                watch(bench.seconds / 2)
                passer_by.kill()
                watch(bench.seconds / 2)
                during = (begin, time.monotonic())
            thawed = time.time()
            written = lab.until(lambda: any(file.stat().st_mtime > thawed for file in (victim.folder / "checkpoints").iterdir()), 60,
                                "no checkpoint was written")
            others = [node for node in nodes if node is not victim]
            return {"victim_percent": throughput_percent([victim], before, during), "pause_s": longest_pause([victim], *during),
                    "false_dead": false_deaths(nodes, nodes, since), "ended": sum(not node.running() for node in nodes), "checkpoint_s": written,
                    "noticed": sum(event["event"] == "member" and event["id"] == passer_by.id for event in victim.events(since)),
                    "throughput_percent": throughput_percent(others, before, during)}
