// What went wrong, while doing what, with which values.
//
// An Error is a value: code (what a program can react to), doing (what we were at) and detail (the
// sentence for the person at 3 a.m.). fault_of() decides the reaction; nothing else switches on
// codes to find out whose fault something was.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace starling {

enum class Errc : std::uint8_t {
  bad_argument,        // a caller inside this process passed a value that cannot be served
  bad_config,          // a flag, environment variable or configuration key is wrong
  bad_message,         // bytes from a peer do not have the shape their type demands
  bad_signature,       // a signature does not match the bytes and the key it came with
  wrong_identity,      // a peer proved another identity than the one that was dialled
  wrong_swarm,         // a peer belongs to another swarm, or does not know our secret
  duplicate_identity,  // this identity already runs in another process
  version_mismatch,    // a peer speaks another major version of the wire
  settings_mismatch,   // a peer trains something else and one side will not adopt
  refused,             // a peer declined, with a reason in the detail
  not_enough_peers,    // fewer peers than --require-peers within --join-timeout
  timed_out,           // nothing happened within a deadline
  closed,              // the other side ended the connection
  cancelled,           // our own side is stopping this operation; never logged above debug
  connect_failed,      // the operating system could not open a connection
  connect_refused,     // the machine at an address answered that nobody listens there
  resolve_failed,      // a name has no address
  listen_failed,       // an address cannot be bound
  too_large,           // a length is above the maximum of its type
  too_many,            // a bound on a number of things is reached
  no_memory,           // a budget or the machine has no memory left
  io_failed,           // a file or socket operation failed
  disk_full,           // no space left where we write
  corrupt,             // stored bytes do not match their own hash or format
  not_found,           // a file, key or peer that must exist does not
  already_exists,      // a file or lock that must not exist does
  permission,          // the operating system, or a rule of ours about file modes, says no
  unsupported,         // this build or machine cannot do it
  data_failed,         // training data is unreadable beyond data.max_bad
  diverged,            // training produced non-finite values
  device_failed,       // the accelerator, or LibTorch on it, failed
  replicas_differ,     // the final consensus did not end in identical replicas
  internal,            // a bug of ours that could be contained
};

enum class Doing : std::uint8_t {
  starting,
  parsing_arguments,
  reading_config,
  resolving,
  listening,
  connecting,
  accepting,
  handshaking,
  reading_record,
  writing_record,
  reading_message,
  reading_delta,
  encoding_delta,
  opening_edge,
  exchanging,
  probing,
  joining,
  transferring_state,
  agreeing,
  reducing,
  certifying,
  merging,
  loading_data,
  building_model,
  training,
  evaluating,
  saving_checkpoint,
  loading_checkpoint,
  reading_file,
  writing_file,
  signing,
  controlling,
  serving_http,
  stopping,
};

// Who has to act on an error.
enum class Fault : std::uint8_t {
  peer,      // close the session, count it
  self,      // retry with backoff, count it
  config,    // exit with the code of its kind and the name of the key
  stopping,  // silence
};

struct Error {
  Errc code = Errc::internal;
  Doing doing = Doing::starting;
  std::string detail;
};

[[nodiscard]] Fault fault_of(Errc code);

// The enumerator's name, for logs, metrics and JSON; stable once released.
[[nodiscard]] std::string_view name_of(Errc code);
[[nodiscard]] std::string_view name_of(Doing doing);

// One line: "while <doing>: <detail> (<code>)".
[[nodiscard]] std::string to_string(const Error& error);

// The Error for the exception that is being handled: no_memory, or `otherwise` with the first line
// of what it says (LibTorch's texts go on with a backtrace). Call it in a catch block only.
[[nodiscard]] Error current_error(Doing doing, Errc otherwise);

}  // namespace starling
