// `starling run`, `starling bench` and `starling data`, which main passes in.
#include "node/cli/verb_list.h"

namespace starling::node::verbs {

int run(const Arguments& arguments, const Surroundings& surroundings) {
  if (arguments.config.data.train.empty())
    return report("run",
                  {Errc::bad_argument, Doing::parsing_arguments,
                   "needs --data SPEC: fashion-mnist, idx:DIR, cifar10:DIR, a folder of class "
                   "folders, tar shards, packed:FILE or synthetic"},
                  surroundings.terminal);
  const auto mode = arguments.has("--dry-run") ? RunMode::dry_run : RunMode::train;
  return surroundings.hooks.run(arguments.config, mode, surroundings.terminal);
}

int data(const Arguments& arguments, const Surroundings& surroundings) {
  return surroundings.hooks.data(arguments, surroundings.terminal);
}

int bench(const Arguments& arguments, const Surroundings& surroundings) {
  return surroundings.hooks.bench(arguments, surroundings.terminal);
}

}  // namespace starling::node::verbs
