"""E-10: the secret of a closed swarm is rotated while it trains, and one of its nodes is revoked."""

import datetime
import json
import shutil
import subprocess
import time

from cases import case, watch
from cases_silence import CALM_S
from lab import Failure, longest_pause, throughput_percent

LOG = ["--log-format", "json", "--set", "log.per_event=10000"]


class Admin:
    """The admin's key of a lab's swarm, on the desk of whoever carries out the test."""

    def __init__(self, lab):
        self.lab = lab
        self.key = lab.folder / "admin.key"
        self.first = lab.nodes[0]
        self.say("key", "new", "--dir", self.first.folder)
        self.say("key", "admin", self.key, "--dir", self.first.folder)

    def say(self, *words):
        done = subprocess.run([self.first.program, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"starling {words[0]} {words[1]}: {done.stderr}")
        return done.stdout

    def certify(self, node):
        """Gives a node that never ran its identity, its certificate and its own copy of the secret."""
        node.folder.mkdir(exist_ok=True)
        node.id = self.say("id", "--dir", node.folder).split()[0]
        (node.folder / "member.cert").write_text(self.say("key", "certify", node.id, "--admin-key", self.key), encoding="ascii")
        if node is not self.first:
            shutil.copy(self.first.folder / "secret", node.folder / "secret")

    def revoke(self, victim):
        self.say("key", "revoke", victim.id, "--admin-key", self.key, "--no-list")  # the first of this swarm

    def rotate(self):
        self.say("key", "rotate", "--admin-key", self.key, "--dir", self.first.folder)

    def hand_out_list(self):
        """The list goes to the first node alone, as any file that somebody replaces."""
        fresh = self.first.folder / "revoked.new"
        shutil.copy(f"{self.key}.revoked", fresh)
        fresh.rename(self.first.folder / "revoked")


def log_events(node, since):
    """(time, line) of what a node logged from this moment on."""
    found = []
    for text in node.log().splitlines():
        try:
            line = json.loads(text)
            at = datetime.datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp()
        except (ValueError, KeyError, TypeError):
            continue
        if at >= since:
            found.append((at, line))
    return found


def listed_at(node, since):
    """The moment at which a node had the list; None before."""
    return min((at for at, line in log_events(node, since)
                if line.get("revocations") == 1 or (line["event"] == "revocations.taken" and line.get("number") == 1)), default=None)


def out_after(node, victim, since):
    """Seconds from the moment at which a node had the list to the end of its last session with the victim; so far, where it has one still; None where it
    never had one."""
    listed = listed_at(node, since)
    seen = [(at, line["event"]) for at, line in log_events(node, 0) if line["event"] in ("session.up", "session.down") and line.get("peer") == victim.id[:8]]
    if not seen:
        return None
    at, last = seen[-1]
    return max(0.0, (time.time() if last == "session.up" else at) - listed)


def lost_sessions(nodes, victim, since):
    """Sessions among the others that ended and were not renewed, though somebody had a use for them."""
    return sum(line["event"] == "session.down" and line.get("peer") != victim.id[:8] and "neither side needs it" not in line.get("reason", "")
               for node in nodes for _, line in log_events(node, since))


def failed_exchanges(nodes, victim=None):
    """Edges that had to be set again, and payloads that were refused; those with the victim do not count."""
    failed = 0
    for node in nodes:
        status = node.status()
        if not status:
            raise Failure(f"node {node.number} does not say which of its exchanges failed")
        for edge in status["neighbours"]:
            if victim is None or edge["id"] != victim.id:
                failed += edge["resets"] + edge["refused"]
    return failed


def access_of(node):
    return (node.status() or {}).get("access") or {}


def alive_others(node):
    status = node.status()
    return [member["id"] for member in status["members"] if member["state"] == "alive" and not member["self"]] if status else []


@case("E-10", "the secret is rotated under load and one node revoked, by files in one folder",
      {"failed": "<= 0", "lost_sessions": "<= 0", "revoked_s": "<= 2", "back": "<= 0", "old_secret": "<= 0", "new_member_missing": "<= 0",
       "rotated_s": "<= 60", "throughput_percent": ">= 98"})
def rotate_and_revoke(bench):
    with bench.lab(bench.nodes) as lab:
        admin = Admin(lab)
        for node in lab.nodes:
            admin.certify(node)
        newcomer = lab.nodes[-1]
        nodes = lab.start_all(len(lab.nodes) - 1, LOG)
        victim = lab.random.choice(nodes[1:])
        others = [node for node in nodes if node is not victim]
        before = watch(CALM_S)
        since, begin = time.time(), time.monotonic()
        admin.revoke(victim)
        admin.rotate()
        handed_out = time.time()
        admin.hand_out_list()
        lab.until(lambda: all(listed_at(node, since) for node in others), 30, "the list is not everywhere")
        lab.until(lambda: all(access_of(node).get("secret_epoch") == 1 and access_of(node).get("rotation") == "steady" for node in others), 90,
                  f"the rotation goes on: {[access_of(node) for node in others]}")
        rotated_s = time.monotonic() - begin
        # Time for each session to be renewed under the new secret, and for the victim to come back.
        during = (begin, watch(CALM_S)[1])
        out = [after for node in others if (after := out_after(node, victim, since)) is not None]
        if not out:
            raise Failure("nobody had a session with the revoked node")
        figures = {"failed": failed_exchanges(others, victim), "lost_sessions": lost_sessions(others, victim, since),
                   "revoked_s": max(out), "listed_s": max(listed_at(node, since) for node in others) - handed_out,
                   "rotated_s": rotated_s, "throughput_percent": throughput_percent(others, before, during),
                   "pause_s": longest_pause(others, *during)}

        # The victim, with the new secret that it should not even have; then somebody with the old one.
        victim.kill()
        shutil.copy(admin.first.folder / "secret", victim.folder / "secret")
        contacts = others[:2]
        lab.start(victim, contacts, LOG)
        lab.start(newcomer, contacts, LOG)
        watch(2 * CALM_S)
        figures["back"] = len(alive_others(victim))
        figures["old_secret"] = len(alive_others(newcomer))
        if not victim.status() or not newcomer.status():
            raise Failure("a node that should knock in vain does not answer")

        # What kept the second one out was the secret alone.
        newcomer.kill()
        shutil.copy(admin.first.folder / "secret", newcomer.folder / "secret")
        lab.start(newcomer, contacts, LOG)
        lab.wait_whole([*others, newcomer], 30)
        figures["new_member_missing"] = len(set(node.id for node in others) - set(alive_others(newcomer)))
        return figures
