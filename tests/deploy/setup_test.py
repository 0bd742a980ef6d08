"""Checks the scripts that prepare a machine, on a tree of their own: apt, pip and venv are stand-ins, nothing is installed."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What the machine has and does, as programs that come first in PATH. `apt-get update` finds the lock taken as often as `locked` says.
PROGRAMS = {
    "dpkg": "echo amd64",
    "dpkg-query": 'for last; do :; done\nif [ "$last" = "$(cat "$FAKE/missing" 2>/dev/null)" ]; then exit 1; fi\nprintf ii',
    "sudo": '"$@"',
    "sleep": 'echo "sleep $*" >>"$FAKE/log"',
    "apt-get": """echo "apt-get $*" >>"$FAKE/log"
case $* in *update) ;; *) exit 0 ;; esac
left=$(cat "$FAKE/locked" 2>/dev/null || echo 0)
if [ "$left" = broken ]; then echo 'E: The repository is not signed.' >&2; exit 100; fi
if [ "$left" = 0 ]; then exit 0; fi
echo $((left - 1)) >"$FAKE/locked"
echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)' >&2
exit 100""",
    "ldconfig": "echo libtcmalloc_minimal.so.4",
    # Only `-m venv [--clear] FOLDER` is asked of it; the environment's own python is a stand-in as well.
    "python3": """echo "python3 $*" >>"$FAKE/log"
for folder; do :; done
if [ "$3" = --clear ]; then rm -rf "$folder"; fi
mkdir -p "$folder/bin" && : >"$folder/pyvenv.cfg"
printf '#!/bin/sh\\nexit 0\\n' >"$folder/bin/python" && chmod +x "$folder/bin/python" """,
}

# Stands for pip: makes what a download leaves in --target, or fails half-way.
PIP = """
import os, pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
with open(os.environ["FAKE"] + "/log", "a") as log:
    print("pip", *sys.argv[1:], file=log)
(target / "torch" / "lib").mkdir(parents=True)
if "FAKE_PIP_FAILS" in os.environ:
    sys.exit("no space left on device")
(target / "torch" / "lib" / "libtorch_cpu.so").touch()
(target / "torch-2.11.0.dist-info").mkdir()
"""


def is_debian():
    try:
        return "VERSION_CODENAME=bookworm" in pathlib.Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return False


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.root = self.folder / "clone"
        for script in ("deploy/setup", "tests/peers/setup", "tests/run"):
            (self.root / script).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / script, self.root / script)
        programs = self.folder / "bin"
        programs.mkdir()
        for name, text in PROGRAMS.items():
            (programs / name).write_text("#!/bin/bash\n" + text + "\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        (self.folder / "python" / "pip").mkdir(parents=True)
        # A package, not a mere folder: Python would prefer the real pip to that.
        (self.folder / "python" / "pip" / "__init__.py").touch()
        (self.folder / "python" / "pip" / "__main__.py").write_text(PIP, encoding="utf-8")
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "python"),
            "FAKE": str(self.folder),
            "HOME": str(self.folder),
        }

    def run_it(self, *words, at=None, **environment):
        return subprocess.run(
            [self.root / words[0], *words[1:]],
            cwd=at or self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    def log(self):
        file = self.folder / "log"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def downloads(self):
        return [line for line in self.log() if line.startswith("pip ")]

    def succeeds(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


@unittest.skipUnless(is_debian(), "deploy/setup is for Debian 12")
class DeploySetup(Machine):
    def setup(self, *words, **environment):
        return self.run_it("deploy/setup", *words, **environment)

    def test_a_folder_beside_the_named_one_is_not_touched(self):
        mine = self.folder / "torch.new"
        mine.mkdir()
        (mine / "thesis").touch()
        self.succeeds(self.setup("--cpu", STARLING_LIBTORCH="torch"))
        self.assertTrue((mine / "thesis").exists())
        self.assertTrue((self.folder / "torch" / "torch" / "lib" / "libtorch_cpu.so").exists())

    def test_the_named_folder_itself_stays_as_a_mount_point_must(self):
        target = self.folder / "disk"
        (target / "lost+found").mkdir(parents=True)
        before = target.stat().st_ino
        self.succeeds(self.setup("--cpu", STARLING_LIBTORCH=str(target)))
        self.assertEqual(target.stat().st_ino, before)
        self.assertEqual(sorted(path.name for path in target.iterdir()), ["lost+found", "torch", "torch-2.11.0.dist-info"])

    def test_a_folder_with_something_else_in_it_is_refused_and_kept(self):
        target = self.folder / "photographs"
        target.mkdir()
        (target / "1.jpg").touch()
        done = self.setup("--cpu", STARLING_LIBTORCH=str(target))
        self.assertEqual(done.returncode, 3)
        self.assertIn("not empty", done.stderr)
        self.assertEqual([path.name for path in target.iterdir()], ["1.jpg"])

    def test_a_download_that_fails_leaves_what_was_there(self):
        own = self.root / ".deps" / "libtorch"
        own.mkdir(parents=True)
        (own / "older").touch()
        done = self.setup("--cpu", FAKE_PIP_FAILS="1")
        self.assertEqual(done.returncode, 3)
        self.assertEqual([path.name for path in own.iterdir()], ["older"])
        self.succeeds(self.setup("--cpu"))
        self.assertEqual(sorted(path.name for path in own.iterdir()), ["torch", "torch-2.11.0.dist-info"])

    def test_what_a_killed_run_left_in_the_named_folder_is_cleared(self):
        target = self.folder / "torch"
        (target / ".starling-setup.aB3xYz" / "torch").mkdir(parents=True)
        self.succeeds(self.setup("--cpu", STARLING_LIBTORCH=str(target)))
        self.assertEqual(sorted(path.name for path in target.iterdir()), ["torch", "torch-2.11.0.dist-info"])

    def test_the_next_run_takes_the_folder_that_was_named_before(self):
        self.succeeds(self.setup("--cpu", STARLING_LIBTORCH="torch"))
        chosen = (self.root / ".deps" / "setup.cmake").read_text(encoding="utf-8")
        self.assertIn(f'"{self.folder}/torch"', chosen)
        self.succeeds(self.setup())
        self.assertEqual(len(self.downloads()), 1)
        self.assertEqual((self.root / ".deps" / "setup.cmake").read_text(encoding="utf-8"), chosen)

        shutil.rmtree(self.folder / "torch")
        self.succeeds(self.setup())
        self.assertIn(f'"{self.root}/.deps/libtorch"', (self.root / ".deps" / "setup.cmake").read_text(encoding="utf-8"))

    def test_the_lock_of_the_package_lists_is_waited_for(self):
        (self.folder / "missing").write_text("mold", encoding="utf-8")
        (self.folder / "locked").write_text("3", encoding="utf-8")
        done = self.setup("--cpu")
        self.succeeds(done)
        self.assertEqual(done.stdout.count("holds the package lists"), 1)
        self.assertEqual(self.log().count("sleep 5"), 3)
        self.assertTrue(any(line.startswith("apt-get") and line.endswith("install --no-install-recommends mold") for line in self.log()))

    def test_a_lock_that_nobody_lets_go_ends_the_wait_after_five_minutes(self):
        (self.folder / "missing").write_text("mold", encoding="utf-8")
        (self.folder / "locked").write_text("1000", encoding="utf-8")
        done = self.setup("--cpu")
        self.assertEqual(done.returncode, 3)
        self.assertIn("held by process 1", done.stderr)
        self.assertEqual(self.log().count("sleep 5"), 60)

    def test_another_failure_of_apt_is_told_at_once(self):
        (self.folder / "missing").write_text("mold", encoding="utf-8")
        (self.folder / "locked").write_text("broken", encoding="utf-8")
        done = self.setup("--cpu")
        self.assertEqual(done.returncode, 3)
        self.assertIn("not signed", done.stderr)
        self.assertEqual(self.log().count("sleep 5"), 0)


class PeersSetup(Machine):
    def setup(self, **environment):
        return self.run_it("tests/peers/setup", **environment)

    def test_an_environment_without_pip_is_made_anew(self):
        venv = self.root / ".deps" / "peers"
        (venv / "bin").mkdir(parents=True)
        (venv / "pyvenv.cfg").touch()
        (venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        (venv / "bin" / "python").chmod(0o755)
        self.succeeds(self.setup())
        self.assertEqual(self.log(), ["python3 -m venv --clear .deps/peers"])
        self.succeeds(self.setup())
        self.assertEqual(len(self.log()), 1)

    def test_a_relative_folder_is_named_from_where_the_caller_stands(self):
        self.succeeds(self.setup(STARLING_PEERS_VENV="mine"))
        self.assertTrue((self.folder / "mine" / "pyvenv.cfg").exists())

    def test_a_folder_that_is_no_environment_is_refused_and_kept(self):
        (self.folder / "mine").mkdir()
        (self.folder / "mine" / "thesis").touch()
        self.assertEqual(self.setup(STARLING_PEERS_VENV="mine").returncode, 3)
        self.assertTrue((self.folder / "mine" / "thesis").exists())


class TestsRun(Machine):
    def test_more_than_one_tier_is_refused_before_anything_runs(self):
        done = self.run_it("tests/run", "fast", "e2e")
        self.assertEqual(done.returncode, 2)
        self.assertIn("tests/run [build | fast | sim", done.stderr)
        self.assertEqual(self.log(), [])


if __name__ == "__main__":
    unittest.main()
