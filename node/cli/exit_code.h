// Exit codes: an API for systemd, Kubernetes and scripts. Numbers never change their meaning.
#pragma once

#include "node/base/error.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace starling::node {

enum class ExitCode : std::uint8_t {
  good = 0,              // target reached and consensus verified, or a graceful leave
  internal = 1,          // unexpected; from `status`: degraded or not running
  usage = 2,             // a flag, key or value is wrong; do not restart
  environment = 3,       // the machine cannot do it: port, key file, folder, device; do not restart
  not_enough_peers = 4,  // --require-peers not met within --join-timeout
  refused = 5,           // by the swarm, with --require-peers; do not restart
  replicas_differ = 6,   // the final consensus failed
  data = 7,              // unreadable data, or too much of it
  diverged = 9,          // non-finite values after every rollback
  temporary = 75,        // accelerator lost, disk full, no memory: restart me
  second_interrupt = 130,  // the second SIGINT: gone without finishing
  second_terminate = 143,  // the second SIGTERM
};

[[nodiscard]] constexpr int number_of(ExitCode code) { return static_cast<int>(code); }

// Whether the same command may succeed when it is started again.
enum class Restart : std::uint8_t { no, yes };

struct ExitMeaning {
  ExitCode code;
  Restart restart;
  std::string_view meaning;
};

// What `starling help run` and deploy/README.md say of them.
inline constexpr std::array<ExitMeaning, 12> kExitCodes{{
    {ExitCode::good, Restart::no, "target reached and consensus verified, or a graceful leave"},
    {ExitCode::internal, Restart::yes, "unexpected; from status: degraded or not running"},
    {ExitCode::usage, Restart::no, "a flag, key or value is wrong"},
    {ExitCode::environment, Restart::no,
     "the machine cannot do it: port, key file, folder, device"},
    {ExitCode::not_enough_peers, Restart::yes, "--require-peers not met within --join-timeout"},
    {ExitCode::refused, Restart::no, "refused by the swarm, with --require-peers"},
    {ExitCode::replicas_differ, Restart::no, "the final consensus failed"},
    {ExitCode::data, Restart::no, "unreadable data, or too much of it"},
    {ExitCode::diverged, Restart::no, "non-finite values after every rollback"},
    {ExitCode::temporary, Restart::yes, "accelerator lost, disk full, no memory"},
    {ExitCode::second_interrupt, Restart::yes, "the second SIGINT: gone without finishing"},
    {ExitCode::second_terminate, Restart::yes, "the second SIGTERM: gone without finishing"},
}};

// The exit code of an error that ends the process.
[[nodiscard]] constexpr ExitCode exit_code_of(Errc code) {
  switch (code) {
    case Errc::bad_argument:
    case Errc::bad_config:
      return ExitCode::usage;
    case Errc::listen_failed:
    case Errc::permission:
    case Errc::unsupported:
    case Errc::already_exists:
    case Errc::not_found:
    case Errc::duplicate_identity:
    case Errc::resolve_failed:
    case Errc::corrupt:
    case Errc::too_large:  // of a file: what a peer sends too large ends no process
      return ExitCode::environment;
    case Errc::not_enough_peers:
      return ExitCode::not_enough_peers;
    case Errc::wrong_swarm:
    case Errc::wrong_identity:
    case Errc::version_mismatch:
    case Errc::settings_mismatch:
    case Errc::refused:
      return ExitCode::refused;
    case Errc::replicas_differ:
      return ExitCode::replicas_differ;
    case Errc::data_failed:
      return ExitCode::data;
    case Errc::diverged:
      return ExitCode::diverged;
    case Errc::disk_full:
    case Errc::device_failed:
    case Errc::no_memory:
      return ExitCode::temporary;
    default:
      return ExitCode::internal;
  }
}

// The same, where it counts what was read: too many of something in a file or a list that a person
// wrote is a wrong configuration, elsewhere it is a bound that was reached.
[[nodiscard]] constexpr ExitCode exit_code_of(const Error& error) {
  if (error.code == Errc::too_many && error.doing == Doing::reading_config) return ExitCode::usage;
  return exit_code_of(error.code);
}

}  // namespace starling::node
