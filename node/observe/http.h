// The node's HTTP port: the page, metrics, probes and read-only JSON.
#pragma once

#include "node/base/log.h"
#include "node/base/result.h"
#include "node/observe/events.h"
#include "node/observe/health.h"
#include "node/observe/metrics.h"
#include "node/observe/status.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace starling::node {

// What to do when the port is taken.
enum class PortPolicy : std::uint8_t {
  exactly,     // a person chose it: listen_failed
  or_another,  // it is only the default: let the kernel choose
};

struct HttpOptions {
  std::string listen = "127.0.0.1:7780";
  PortPolicy policy = PortPolicy::exactly;
  // Required (as `Authorization: Bearer ...`) for /api when not empty.
  std::string token = {};
};

// What the server shows; everything outlives it and may be read from its thread.
struct HttpSources {
  const SnapshotBox& snapshots;
  const Metrics& metrics;
  const Health& health;
  const Clock& clock;
  // Null where there is none: then its path is not there either.
  const RecentEvents* events = nullptr;
  const Config* config = nullptr;
};

struct HttpRequest {
  std::string_view method;
  std::string_view path;
  std::string_view query;          // value of "phase", for /readyz
  std::string_view host;           // the Host header
  std::string_view authorization;  // the Authorization header
  // Values of parameters that are numbers: the last event that is known, for /api/v1/events; how
  // many members at most, for /api/v1/status.
  std::string_view after = {};
  std::string_view members = {};
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::string policy = "default-src 'none'";  // Content-Security-Policy
};

// What a request gets: the whole behaviour of the server except its sockets.
//
// Rule:    GET and HEAD only. On a loopback address the Host header must name this machine
//          (localhost, 127.0.0.1, [::1]), so that no web page can read it through DNS tricks. On
//          any other address /api is served only with a token; metrics, probes and the page, which
//          holds no data, always.
// Thread:  any; pure but for reading the sources.
[[nodiscard]] HttpReply answer_http(const HttpRequest& request, const HttpSources& sources,
                                    const HttpOptions& options);

// Where a person begins to look, for the start banner, and what is to be seen there with these
// options: "http://127.0.0.1:7780/  (the page; metrics at /metrics)".
//
// Thread:  any; pure.
[[nodiscard]] std::string way_to_page(const HttpOptions& options, std::string_view address);

// libmicrohttpd with a thread of its own, so that probes are answered whatever the rest does: at
// most 8 connections, 4 of one address and 2 s of silence each, 1 MiB a reply.
//
// Owned by the node; the destructor joins the thread.
class HttpServer {
 public:
  // Errors:  listen_failed with the address and the reason; bad_config for an address that is none;
  //          no_memory without a thread for it.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> start(HttpOptions options,
                                                                 HttpSources sources, Log& log);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The address really bound: "127.0.0.1:7780".
  [[nodiscard]] const std::string& address() const { return address_; }
  // way_to_page() of this server.
  [[nodiscard]] std::string shown() const { return way_to_page(options_, address_); }

 private:
  struct Daemon;
  HttpServer(HttpOptions options, HttpSources sources);

  HttpOptions options_;
  HttpSources sources_;
  std::string address_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace starling::node
