// What each verb does; the table in verb_table.cc names them.
#pragma once

#include "node/cli/arguments.h"
#include "node/secret_files.h"

#include <cstdint>

namespace starling::node::verbs {

int run(const Arguments& arguments, const Surroundings& surroundings);
int demo(const Arguments& arguments, const Surroundings& surroundings);
int chaos(const Arguments& arguments, const Surroundings& surroundings);
int status(const Arguments& arguments, const Surroundings& surroundings);
int top(const Arguments& arguments, const Surroundings& surroundings);
int members(const Arguments& arguments, const Surroundings& surroundings);
int neighbours(const Arguments& arguments, const Surroundings& surroundings);
int join(const Arguments& arguments, const Surroundings& surroundings);
int leave(const Arguments& arguments, const Surroundings& surroundings);
int finish(const Arguments& arguments, const Surroundings& surroundings);
int merge(const Arguments& arguments, const Surroundings& surroundings);
int eval(const Arguments& arguments, const Surroundings& surroundings);
int data(const Arguments& arguments, const Surroundings& surroundings);
int bench(const Arguments& arguments, const Surroundings& surroundings);
int id(const Arguments& arguments, const Surroundings& surroundings);
int invite(const Arguments& arguments, const Surroundings& surroundings);
int key(const Arguments& arguments, const Surroundings& surroundings);
// The parts of `starling key` that need an admin key; what went wrong is reported.
Result<void> make_admin(const Arguments& arguments, const Terminal& terminal);
Result<void> certify(const Arguments& arguments, const Terminal& terminal);
Result<void> revoke(const Arguments& arguments, const Terminal& terminal);
Result<void> order_end(const Arguments& arguments, const Terminal& terminal);
// The number of the list that the order names.
Result<std::uint64_t> order_rotation(const Arguments& arguments, const SecretFiles& files);
int log_level(const Arguments& arguments, const Surroundings& surroundings);
int config(const Arguments& arguments, const Surroundings& surroundings);
int completion(const Arguments& arguments, const Surroundings& surroundings);
int version(const Arguments& arguments, const Surroundings& surroundings);
int help(const Arguments& arguments, const Surroundings& surroundings);

}  // namespace starling::node::verbs
