"""Checks how `count` reads a dump of callgrind and what it takes for a change. Nothing is counted."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("count", str(pathlib.Path(__file__).with_name("count")))
count = importlib.util.module_from_spec(importlib.util.spec_from_loader("count", LOADER))
LOADER.exec_module(count)

DUMP = """version: 1
positions: line
events: Ir
summary: 1111

ob=/build/counted
fl=???
fn=seal
0 100
cob=/usr/lib/libsodium.so.23
cfn=encrypt
calls=3 0
0 1000
5 7

ob=/usr/lib/libsodium.so.23
fl=???
fn=encrypt
0 1000

ob=/usr/lib/libc.so.6
fl=memcpy.S
fn=memcpy
12 4
totals: 1111
"""


def wrong(found, committed):
    with contextlib.redirect_stdout(io.StringIO()):
        return count.compare(found, committed)


class Count(unittest.TestCase):
    def test_what_a_callee_costs_counts_once_and_the_cipher_not_at_all(self):
        self.assertEqual(count.self_cost(DUMP.splitlines(), "libsodium"), 100 + 7 + 4)
        self.assertEqual(count.self_cost(DUMP.splitlines(), "no such object"), 100 + 7 + 1000 + 4)

    def test_almost_two_per_cent_either_way_are_as_committed(self):
        self.assertEqual(wrong({"a": 1019, "b": 981}, {"a": 1000, "b": 1000}), [])

    def test_more_than_two_per_cent_are_named_with_both_counts(self):
        self.assertEqual(wrong({"a": 1021}, {"a": 1000}), ["a takes 1021 instructions, 1000 are committed: +2.1 %"])
        self.assertEqual(wrong({"a": 900}, {"a": 1000}), ["a takes 900 instructions, 1000 are committed: -10.0 %"])

    def test_a_piece_of_work_on_one_side_only_is_named(self):
        self.assertEqual(wrong({"a": 1}, {"b": 1}), ["a is only in what was counted", "b is only in counts.json"])
        self.assertEqual(wrong({"a": 0}, {"a": 5}), ["a is only in counts.json"])


if __name__ == "__main__":
    unittest.main()
