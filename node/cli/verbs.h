// The verbs of the command line. What `run` and `eval` do is the node's business: they are passed
// in, so that everything else works, and is tested, without a trainer.
#pragma once

#include "node/config/config.h"

#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// Where a verb writes: results to `out`, everything else to `err`. Outlives the verb.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool out_is_tty = false;
  bool err_is_tty = false;
  // What stands behind them, so that a verb that must not wait can ask for room; -1: memory.
  int out_descriptor = -1;
  int err_descriptor = -1;
};

enum class RunMode : std::uint8_t {
  train,
  dry_run,  // check configuration, folder, data and device, print the plan; changes nothing
};

struct Arguments;

struct EvalArguments {
  std::filesystem::path model;
  bool json = false;
};

// Implemented in node.cc; the return value is the exit code.

// The node, in the foreground, until it finished, left or failed.
int run_verb(const Config& config, RunMode mode, const Terminal& terminal);
// Evaluates a model file on data.val (or the validation part of data.train) and prints accuracy,
// loss and images; with `json` as {"schema":1,"accuracy_ratio":..,"loss":..,"images":..}.
int eval_verb(const Config& config, const EvalArguments& arguments, const Terminal& terminal);
// Measures one part of the program and prints its figures (node/bench/bench.h).
int bench_verb(const Arguments& arguments, const Terminal& terminal);

// `starling data scan|verify|pack`: counts, unreadable images, a packed file.
int data_verb(const Arguments& arguments, const Terminal& terminal);

// What main passes in.
struct VerbHooks {
  int (*run)(const Config&, RunMode, const Terminal&) = nullptr;
  int (*eval)(const Config&, const EvalArguments&, const Terminal&) = nullptr;
  int (*bench)(const Arguments&, const Terminal&) = nullptr;
  int (*data)(const Arguments&, const Terminal&) = nullptr;
  std::string_view torch_version = {};  // "2.11.0"; empty in a build without it
};

// A process's surroundings, passed in so that tests can make their own.
struct Surroundings {
  std::vector<std::pair<std::string, std::string>> environment;
  Terminal terminal;
  VerbHooks hooks;
};

// Finds the verb, reads flags and configuration, carries it out; the exit code. `words` is the
// command line without the program's name.
[[nodiscard]] int run_command_line(std::span<const std::string> words,
                                   const Surroundings& surroundings);

}  // namespace starling::node
