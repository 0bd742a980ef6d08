"""Checks that what deploy/ gives to Kubernetes and compose can be read by their tools, and holds what its comments promise.

Each part needs a tool that not every machine has (kubectl, podman-compose or docker compose) and says so where it is missing.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
KEYS = ROOT / "node" / "config" / "keys.cc"
EXIT_CODES = ROOT / "node" / "cli" / "exit_code.h"
README = ROOT / "deploy" / "README.md"


def answer(command, **environment):
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def compose_tool():
    for tool in (["podman-compose"], ["docker", "compose"]):
        if shutil.which(tool[0]) and answer([*tool, "version"]):
            return tool
    return None


@unittest.skipUnless(shutil.which("kubectl"), "kubectl is not installed")
class Kubernetes(unittest.TestCase):
    def rendered(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "k8s"
            shutil.copytree(ROOT / "deploy" / "k8s", tree)
            (tree / "secret").write_text("c2VjcmV0\n", encoding="utf-8")
            chosen = (tree / "kustomization.yaml").read_text(encoding="utf-8")
            (tree / "kustomization.yaml").write_text(chosen.replace("newName: starling", "newName: reg.example/starling"), encoding="utf-8")
            text = answer(["kubectl", "kustomize", str(tree)])
        self.assertIsNotNone(text)
        return text

    def test_the_tree_renders_with_the_image_that_was_named(self):
        rendered = self.rendered()
        self.assertEqual(re.findall(r"image: (\S+)", rendered), ["reg.example/starling:cpu"])
        kinds = re.findall(r"^kind: (\S+)", rendered, re.MULTILINE)
        expected = ["ConfigMap", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "Service", "ServiceAccount"]
        self.assertEqual(sorted(kinds), sorted([*expected, "StatefulSet"]))
        self.assertIn("unhealthyPodEvictionPolicy: AlwaysAllow", rendered)

    def test_a_pod_computes_on_the_cores_that_it_requests_and_may_read_data_for_an_hour(self):
        rendered = self.rendered()
        named = re.search(r"- name: STARLING_(\w+)__(\w+)\n\s+valueFrom:\n\s+resourceFieldRef:\n\s+containerName: (\w+)\n\s+resource: (\S+)", rendered)
        self.assertIsNotNone(named)
        self.assertIn(f'"{named[1].lower()}.{named[2].lower()}"', KEYS.read_text(encoding="utf-8"))
        self.assertEqual(named.group(2, 3, 4), ("THREADS", "node", "requests.cpu"))
        self.assertRegex(rendered, r"requests:\n\s+cpu: \"?[1-9]")
        probe = re.search(r"startupProbe:\n((?: {10,}.*\n)+)", rendered)[1]
        seconds = int(re.search(r"failureThreshold: (\d+)", probe)[1]) * int(re.search(r"periodSeconds: (\d+)", probe)[1])
        self.assertEqual(seconds, 3600)


class ExitCodes(unittest.TestCase):
    def test_the_readme_and_its_unit_say_what_the_program_says(self):
        source = EXIT_CODES.read_text(encoding="utf-8")
        numbers = dict(re.findall(r"^  (\w+) = (\d+),", source, re.MULTILINE))
        restarts = {numbers[name]: restart for name, restart in re.findall(r"\{ExitCode::(\w+), Restart::(\w+),", source)}
        self.assertEqual(set(restarts), set(numbers.values()))
        readme = README.read_text(encoding="utf-8")
        rows = dict(re.findall(r"^\| (\d+) \| .* \| (\w+) \|$", readme, re.MULTILINE))
        self.assertEqual(rows, restarts)
        never = re.search(r"`RestartPreventExitStatus=([\d ]+)`", readme)[1].split()
        self.assertEqual(never, [number for number, restart in restarts.items() if restart == "no" and number != "0"])
        self.assertIn("RestartForceExitStatus=75", readme)
        self.assertEqual(restarts["75"], "yes")


class ComposeText(unittest.TestCase):
    def test_each_node_can_be_given_its_share_of_the_cores(self):
        self.assertIn("\n    - --threads=${STARLING_THREADS:-auto}\n", COMPOSE.read_text(encoding="utf-8"))


class Compose(unittest.TestCase):
    def setUp(self):
        self.tool = compose_tool()
        if self.tool is None:
            self.skipTest("neither podman-compose nor docker compose is installed")

    def services(self, **environment):
        text = answer([*self.tool, "-f", str(COMPOSE), "config"], **environment)
        self.assertIsNotNone(text)
        return re.search(r"^services:\n((?: .*\n)+)", text, re.MULTILINE)[1]

    def test_four_nodes_start_again_five_times_at_most(self):
        self.assertEqual(self.services().count("restart: on-failure:5"), 4)

    def test_a_folder_of_data_is_mounted_where_it_is_named(self):
        self.assertNotIn("/srv/photographs", self.services())
        named = self.services(STARLING_DATA_FOLDER="/srv/photographs", STARLING_DATA="/data")
        self.assertEqual(named.count("/srv/photographs"), 4)
        self.assertEqual(named.count("--data=/data"), 4)


if __name__ == "__main__":
    unittest.main()
