// Requests to the HTTP port, seven fields with a line each, from loopback and from elsewhere:
// nothing but GET and HEAD does anything, no reply is larger than it may be, and without the token
// nobody reads more than metrics and probes.
#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/config/config.h"
#include "node/observe/events.h"
#include "node/observe/http.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace {

using namespace starling;
using namespace starling::node;

constexpr std::string_view kToken = "the-token-of-this-node-0123456789";

HttpRequest request_of(std::string_view text) {
  std::array<std::string_view, 7> fields;
  for (auto& field : fields) {
    const auto end = text.find('\n');
    field = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return {fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6]};
}

void check(const HttpRequest& request, const HttpSources& sources, const HttpOptions& options) {
  const auto reply = answer_http(request, sources, options);
  STARLING_CHECK(reply.status >= 200 && reply.status < 600);
  STARLING_CHECK(reply.body.size() <= std::size_t{1} << 20);
  STARLING_CHECK(reply.body.find(kToken) == std::string::npos ||
                 request.authorization.find(kToken) != std::string_view::npos);
  if (reply.status != 200) return;
  STARLING_CHECK(request.method == "GET" || request.method == "HEAD");
  if (!request.path.starts_with("/api")) return;
  if (options.token.empty())
    STARLING_CHECK(options.listen.starts_with("127."));
  else
    STARLING_CHECK(request.authorization.ends_with(kToken));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Metrics are made once: a registry for each input would be most of the time.
  static const SnapshotBox snapshots;
  static const Metrics metrics;
  static const Health health;
  static const SteadyClock clock;
  static RecentEvents events;
  static const Config config;
  if (events.after(0).empty()) events.add(LogLevel::warn, "session.refused", "peer=a why=b");
  const HttpSources sources{snapshots, metrics, health, clock, &events, &config};
  const auto request = request_of(as_text(std::as_bytes(std::span(data, size))));
  for (const std::string_view listen : {"127.0.0.1:7780", "[::]:7780"})
    for (const std::string_view token : {std::string_view{}, kToken})
      check(request, sources, {.listen = std::string(listen), .token = std::string(token)});
  return 0;
}
