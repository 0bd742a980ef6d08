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


def answer(command, **environment):
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def compose_tool():
    for tool in (["podman-compose"], ["docker", "compose"]):
        if shutil.which(tool[0]) and answer([*tool, "version"]):
            return tool
    return None


class Kubernetes(unittest.TestCase):
    @unittest.skipUnless(shutil.which("kubectl"), "kubectl is not installed")
    def test_the_tree_renders_with_the_image_that_was_named(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "k8s"
            shutil.copytree(ROOT / "deploy" / "k8s", tree)
            (tree / "secret").write_text("c2VjcmV0\n", encoding="utf-8")
            chosen = (tree / "kustomization.yaml").read_text(encoding="utf-8")
            (tree / "kustomization.yaml").write_text(chosen.replace("newName: starling", "newName: reg.example/starling"), encoding="utf-8")
            rendered = answer(["kubectl", "kustomize", str(tree)])
        self.assertIsNotNone(rendered)
        self.assertEqual(re.findall(r"image: (\S+)", rendered), ["reg.example/starling:cpu"])
        kinds = re.findall(r"^kind: (\S+)", rendered, re.MULTILINE)
        expected = ["ConfigMap", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "Service", "ServiceAccount"]
        self.assertEqual(sorted(kinds), sorted([*expected, "StatefulSet"]))
        self.assertIn("unhealthyPodEvictionPolicy: AlwaysAllow", rendered)


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
