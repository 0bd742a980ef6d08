// starling_lab: a node that is real in everything but its training, which is a noisy quadratic.
#include "node/cli/verbs.h"
#include "node/config/load.h"
#include "node/config/values.h"
#include "tests/net/lab.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace {

// The configuration knows the models of users only: this one is put in behind its back.
int run_lab_node(const starling::node::Config& config, starling::node::RunMode mode,
                 const starling::node::Terminal& terminal) {
  starling::node::Config lab = config;
  lab.train.model = starling::lab::kModelName;
  lab.train.batch = static_cast<std::uint32_t>(starling::lab::kBatch);
  return starling::node::run_verb(lab, mode, terminal);
}

// A number from the environment; false where it is none.
bool read_number(const char* name, std::uint64_t& number) {
  const char* text = std::getenv(name);
  if (text == nullptr) return true;
  const auto parsed = starling::node::parse_count(text, 1, 1'000'000);
  if (parsed) number = *parsed;
  return parsed.has_value();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace starling::node;
  (void)::signal(SIGPIPE, SIG_IGN);
  auto& lab = starling::lab::lab_options();
  std::uint64_t step_ms = 100;
  if (!read_number("LAB_STEP_MS", step_ms) || !read_number("LAB_SEED", lab.seed)) {
    std::cerr << "starling_lab: LAB_STEP_MS and LAB_SEED are numbers from 1 to 1000000\n";
    return 2;
  }
  lab.step = std::chrono::milliseconds(step_ms);
  if (const char* file = std::getenv("LAB_STEPS")) lab.steps_file = file;
  if (const char* file = std::getenv("LAB_SAMPLES")) lab.samples_file = file;
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const Surroundings surroundings{
      process_environment(),
      Terminal{std::cout, std::cerr, false, false, STDOUT_FILENO, STDERR_FILENO},
      VerbHooks{.run = &run_lab_node}};
  const int code = run_command_line(words, surroundings);
  std::cout << std::flush;
  return code;
}
