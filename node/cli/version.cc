// `starling version`.
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/printable.h"

#include <CLI/Version.hpp>
#include <asio/version.hpp>
#include <fmt/format.h>
#include <microhttpd.h>
#include <nlohmann/json.hpp>
#include <spdlog/version.h>

#include <ostream>
#include <toml++/impl/version.h>

namespace starling::node::verbs {

int version(const Arguments& arguments, const Surroundings& surroundings) {
  nlohmann::ordered_json libraries;
  libraries["libtorch"] = surroundings.hooks.torch_version;
  libraries["libsodium"] = STARLING_SODIUM_VERSION;
  libraries["libcrypto"] = STARLING_CRYPTO_VERSION;
  libraries["capnp"] = STARLING_CAPNP_VERSION;
  libraries["asio"] = fmt::format("{}.{}.{}", ASIO_VERSION / 100'000, ASIO_VERSION / 100 % 1'000,
                                  ASIO_VERSION % 100);
  libraries["toml++"] = fmt::format("{}.{}.{}", TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH);
  libraries["cli11"] = CLI11_VERSION;
  libraries["spdlog"] =
      fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH);
  libraries["fmt"] =
      fmt::format("{}.{}.{}", FMT_VERSION / 10'000, FMT_VERSION / 100 % 100, FMT_VERSION % 100);
  libraries["nlohmann-json"] =
      fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                  NLOHMANN_JSON_VERSION_PATCH);
  libraries["prometheus-cpp"] = STARLING_PROMETHEUS_VERSION;
  libraries["libmicrohttpd"] = MHD_get_version();
  if (surroundings.hooks.torch_version.empty()) libraries.erase("libtorch");
  if (arguments.has("--json")) {
    const nlohmann::ordered_json json{{"schema", 1},
                                      {"version", STARLING_VERSION},
                                      {"compiler", STARLING_COMPILER},
                                      {"libraries", libraries}};
    surroundings.terminal.out << json_text(json) << '\n';
    return number_of(ExitCode::good);
  }
  surroundings.terminal.out << "starling " << STARLING_VERSION << "  (" << STARLING_COMPILER
                            << ")\n";
  for (const auto& [name, number] : libraries.items())
    surroundings.terminal.out << fmt::format("  {:<16}{}\n", name,
                                             number.get_ref<const std::string&>());
  return number_of(ExitCode::good);
}

}  // namespace starling::node::verbs
