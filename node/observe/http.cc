#include "node/observe/http.h"

#include "node/config/values.h"
#include "node/observe/page.h"
#include "node/printable.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

constexpr unsigned kMaxPageConnections = 8;
// Half of them, so that nobody alone keeps probes out: the library's limit of time is one of
// silence, and who sends a byte a second keeps a connection for as long as it likes.
constexpr unsigned kMaxFromOneAddress = 4;
constexpr unsigned kSilenceSeconds = 2;
constexpr std::size_t kConnectionMemory = 16 * 1024;
constexpr std::size_t kMaxReply = std::size_t{1} << 20;

std::string_view host_of(std::string_view address) { return address.substr(0, address.rfind(':')); }

// "127.0.0.1.example.org" is a name that somebody can point anywhere.
bool is_loopback(std::string_view host) {
  in_addr address{};
  return host == "localhost" || host == "[::1]" ||
         (host.starts_with("127.") &&
          ::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1);
}

// The Host header without its port.
std::string_view header_host(std::string_view header) {
  if (header.starts_with('[')) return header.substr(0, header.find(']') + 1);
  return header.substr(0, header.find(':'));
}

// Takes the same time wherever the texts differ.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |=
        static_cast<unsigned char>(a[i]) ^
        static_cast<unsigned>(static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

HttpReply problem(int status, std::string_view text) {
  return {status, "application/json", json_text({{"schema", 1}, {"error", text}}) + "\n"};
}

HttpReply plain(int status, std::string_view text) {
  return {status, "text/plain; charset=utf-8", std::string(text) + "\n"};
}

HttpReply probe_live(const HttpSources& sources) {
  return sources.health.live(sources.clock.now()) ? plain(200, "live")
                                                  : plain(503, "a thread stands still");
}

HttpReply probe_ready(const HttpSources& sources, std::string_view phase) {
  const auto status = sources.snapshots.get();
  if (!phase.empty() && phase != "started") return problem(400, "phase can only be: started");
  const bool started = status->phase != Phase::starting;
  const bool ready = status->phase == Phase::training || status->phase == Phase::finishing ||
                     status->phase == Phase::finished;
  return (phase.empty() ? ready : started) ? plain(200, name_of(status->phase))
                                           : plain(503, name_of(status->phase));
}

HttpReply json_reply(const nlohmann::json& body) {
  auto text = json_text(body) + "\n";
  if (text.size() > kMaxReply)
    return problem(
        507,
        "larger than 1 MiB; `starling members --json` shows it, /api/v1/status?members=200 "
        "a part of it");
  return {200, "application/json", std::move(text)};
}

// The value of a parameter; `absent` without it, nothing for what is no number.
std::optional<std::uint64_t> count_in(std::string_view text, std::uint64_t absent) {
  if (text.empty()) return absent;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

HttpReply api_body(const HttpRequest& request, const HttpSources& sources) {
  const auto status = sources.snapshots.get();
  if (request.path == "/api/v1/status") {
    const auto most = count_in(request.members, SIZE_MAX);
    if (!most) return problem(400, "members needs a number: how many of them at most");
    return json_reply(to_json(*status, *most));
  }
  if (request.path == "/api/v1/members") return json_reply(members_json(*status));
  if (request.path == "/api/v1/neighbours") return json_reply(neighbours_json(*status));
  if (request.path == "/api/v1/events" && sources.events != nullptr) {
    const auto after = count_in(request.after, 0);
    if (!after)
      return problem(400, "after needs a number: the seq of the last event that is known");
    return json_reply(to_json(sources.events->after(*after)));
  }
  if (request.path == "/api/v1/config" && sources.config != nullptr)
    return json_reply(config_json(*status, *sources.config));
  return problem(404,
                 "no such path; there are /api/v1/status, members, neighbours, events and config");
}

HttpReply api(const HttpRequest& request, const HttpSources& sources, const HttpOptions& options) {
  if (!options.token.empty()) {
    constexpr std::string_view kBearer = "Bearer ";
    if (!request.authorization.starts_with(kBearer) ||
        !same_secret(options.token, request.authorization.substr(kBearer.size())))
      return problem(401, "needs the header Authorization: Bearer TOKEN (http.token_file)");
  } else if (!is_loopback(host_of(options.listen))) {
    return problem(403, "needs http.token_file on an address that is not loopback");
  }
  return api_body(request, sources);
}

// "Cannot listen" with the reason and the remedy, for whoever chose the address.
std::unexpected<Error> cannot_listen(std::string_view address, std::string_view reason) {
  return fail(Errc::listen_failed, Doing::serving_http,
              fmt::format("http.listen {}: {}; choose another with --http (port 0: any free one, "
                          "off: none)",
                          address, reason));
}

struct Listening {
  int descriptor = -1;
  std::string address;
};

std::string show_address(const sockaddr_storage& bound, std::string_view host) {
  const auto port = bound.ss_family == AF_INET6
                        ? ntohs(reinterpret_cast<const sockaddr_in6&>(bound).sin6_port)
                        : ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return fmt::format("{}:{}", host.empty() ? "[::]" : host, port);
}

Result<Listening> listen_at(const std::string& address) {
  const auto host = host_of(address);
  std::string name(host == "localhost" ? "127.0.0.1" : host.empty() ? "::" : host);
  if (name.starts_with('[')) name = name.substr(1, name.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = address.substr(host.size() + 1);
  if (::getaddrinfo(name.c_str(), port.c_str(), &hints, &found) != 0)
    return fail(Errc::bad_config, Doing::serving_http,
                fmt::format("http.listen {}: needs an IP address, localhost or off", address));
  const int descriptor = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  constexpr int kOn = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn));
  const bool bound = descriptor >= 0 &&
                     ::bind(descriptor, found->ai_addr, found->ai_addrlen) == 0 &&
                     ::listen(descriptor, static_cast<int>(kMaxPageConnections)) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  if (!bound) {
    if (descriptor >= 0) ::close(descriptor);
    return cannot_listen(address, std::generic_category().message(error));
  }
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length);
  return Listening{descriptor, show_address(own, host)};
}

std::string_view text_or_empty(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

HttpReply answer_http(const HttpRequest& request, const HttpSources& sources,
                      const HttpOptions& options) {
  if (request.method != "GET" && request.method != "HEAD")
    return problem(405, "only GET: nothing can be changed here");
  if (is_loopback(host_of(options.listen)) && !is_loopback(header_host(request.host)))
    return problem(403, "the Host header must name this machine: localhost");
  if (request.path == "/metrics")
    return {200, "text/plain; version=0.0.4; charset=utf-8", sources.metrics.render()};
  if (request.path == "/livez") return probe_live(sources);
  if (request.path == "/readyz") return probe_ready(sources, request.query);
  if (request.path.starts_with("/api/")) return api(request, sources, options);
  if (const auto* const file = find_page_file(request.path))
    return {200, std::string(file->type), std::string(file->text), std::string(kPagePolicy)};
  return problem(404, "no such path; there are /, /metrics, /livez, /readyz and /api/v1/status");
}

std::string way_to_page(const HttpOptions& options, std::string_view address) {
  if (!options.token.empty())
    return fmt::format(
        "http://{}/  (the page, with the token in http.token_file; metrics at /metrics)", address);
  if (!is_loopback(host_of(options.listen)))
    return fmt::format("http://{}/metrics  (and probes; the page needs http.token_file)", address);
  return fmt::format("http://{}/  (the page; metrics at /metrics)", address);
}

struct HttpServer::Daemon {
  MHD_Daemon* daemon = nullptr;

  ~Daemon() {
    if (daemon != nullptr) MHD_stop_daemon(daemon);  // joins its thread, closes its socket
  }

  // NOLINTNEXTLINE(readability-function-size): the parameters are libmicrohttpd's.
  static MHD_Result on_request(void* context, MHD_Connection* connection, const char* url,
                               const char* method, const char*, const char*, std::size_t* upload,
                               void** state) {
    // The first call comes before the body of the request is read: say "go on" once.
    if (*state == nullptr) {
      *state = connection;
      return MHD_YES;
    }
    if (*upload != 0) {  // bodies are thrown away, piece by piece
      *upload = 0;
      return MHD_YES;
    }
    const auto& server = *static_cast<const HttpServer*>(context);
    const auto header = [&](const char* name) {
      return text_or_empty(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name));
    };
    const auto parameter = [&](const char* name) {
      return text_or_empty(MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name));
    };
    const HttpRequest request{.method = method,
                              .path = url,
                              .query = parameter("phase"),
                              .host = header(MHD_HTTP_HEADER_HOST),
                              .authorization = header(MHD_HTTP_HEADER_AUTHORIZATION),
                              .after = parameter("after"),
                              .members = parameter("members")};
    auto reply = answer_http(request, server.sources_, server.options_);
    MHD_Response* const response = MHD_create_response_from_buffer(
        reply.body.size(), reply.body.data(), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    constexpr std::array<std::pair<const char*, const char*>, 4> kHeaders{
        {{"Cache-Control", "no-store"},
         {"Referrer-Policy", "no-referrer"},
         {"X-Content-Type-Options", "nosniff"},
         {"Connection", "close"}}};
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply.type.c_str());
    MHD_add_response_header(response, "Content-Security-Policy", reply.policy.c_str());
    for (const auto& [name, value] : kHeaders) MHD_add_response_header(response, name, value);
    if (reply.status == 405) MHD_add_response_header(response, "Allow", "GET, HEAD");
    if (reply.status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    const auto queued =
        MHD_queue_response(connection, static_cast<unsigned>(reply.status), response);
    MHD_destroy_response(response);
    return queued;
  }
};

HttpServer::HttpServer(HttpOptions options, HttpSources sources)
    : options_(std::move(options)), sources_(sources), daemon_(std::make_unique<Daemon>()) {}

HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, HttpSources sources,
                                                      Log& log) {
  if (!parse_address(options.listen))
    return fail(Errc::bad_config, Doing::serving_http,
                fmt::format("http.listen {}: needs HOST:PORT or off", options.listen));
  auto listening = listen_at(options.listen);
  if (!listening && listening.error().code == Errc::listen_failed &&
      options.policy == PortPolicy::or_another) {
    log.info("http.port_taken", {{"address", options.listen}});
    listening = listen_at(fmt::format("{}:0", host_of(options.listen)));
  }
  if (!listening) return fail(listening.error());

  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options), sources));
  server->address_ = listening->address;
  server->daemon_->daemon = MHD_start_daemon(
      MHD_USE_POLL_INTERNAL_THREAD, 0, nullptr, nullptr, &Daemon::on_request, server.get(),
      MHD_OPTION_LISTEN_SOCKET, listening->descriptor, MHD_OPTION_CONNECTION_LIMIT,
      kMaxPageConnections, MHD_OPTION_PER_IP_CONNECTION_LIMIT, kMaxFromOneAddress,
      MHD_OPTION_CONNECTION_TIMEOUT, kSilenceSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kConnectionMemory, MHD_OPTION_END);
  if (server->daemon_->daemon == nullptr) {
    ::close(listening->descriptor);
    // The socket listens already.
    return fail(Errc::no_memory, Doing::serving_http,
                "no thread, memory or descriptor is left to serve HTTP with: raise the limits "
                "(ulimit -u, -n; pids in a container), or do without (--http off)");
  }
  log.info("http.listening", {{"address", server->address_}});
  return server;
}

}  // namespace starling::node
