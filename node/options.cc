#include "node/options.h"

#include "node/base/cores.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <utility>

namespace starling::node {

namespace {

bool is_wildcard(const std::string& host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "0:0:0:0:0:0:0:0";
}

// Addresses of this machine's interfaces that are up: IPv4 first, no loopback, no link-local.
std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
      std::array<char, INET6_ADDRSTRLEN> text{};
      const void* raw = nullptr;
      if (family == AF_INET) {
        raw = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
      } else {
        const auto& address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
        raw = &address;
      }
      if (::inet_ntop(family, raw, text.data(), text.size()) != nullptr)
        found.emplace_back(text.data());
    }
  }
  ::freeifaddrs(list);
  return found;
}

std::optional<gossip::Level> level_of(Codec codec) {
  switch (codec) {
    case Codec::automatic:
    case Codec::none:
      return std::nullopt;
    case Codec::l0:
      return gossip::Level::l0;
    case Codec::l1:
      return gossip::Level::l1;
    case Codec::l2:
      return gossip::Level::l2;
    case Codec::l3:
      return gossip::Level::l3;
    case Codec::l4:
      return gossip::Level::l4;
    case Codec::l5:
      return gossip::Level::l5;
    case Codec::l6:
      return gossip::Level::l6;
  }
  return std::nullopt;
}

gossip::Aggregator aggregator_of(ExchangeRule rule) {
  switch (rule) {
    case ExchangeRule::mean:
      return gossip::Aggregator::mean;
    case ExchangeRule::clip:
      return gossip::Aggregator::clip;
    case ExchangeRule::median:
      return gossip::Aggregator::median;
    case ExchangeRule::trimmed:
      return gossip::Aggregator::trimmed;
  }
  return gossip::Aggregator::mean;
}

// Whoever takes every number of every member as it comes takes their counters so, too: a GPU
// beside processors is some hundred times as fast as they are.
std::uint64_t max_rate_ratio_of(const Config& config) {
  constexpr std::uint64_t kWhereTrusted = 10'000;
  if (config.gossip.max_rate_ratio) return *config.gossip.max_rate_ratio;
  const bool trusts =
      config.swarm.mode == SwarmMode::secret && config.gossip.aggregator == ExchangeRule::mean;
  return trusts ? kWhereTrusted : gossip::ProgressOptions{}.max_rate_ratio;
}

}  // namespace

transport::TransportOptions transport_options(const Config& config, std::string name,
                                              Instance instance) {
  transport::TransportOptions options;
  options.name = std::move(name);
  options.instance = instance;
  options.handshakes_per_address = config.net.handshake_rate;
  options.prefer_bbr = config.net.bbr;
  return options;
}

gossip::GossipOptions gossip_options(const Config& config) {
  gossip::GossipOptions options;
  options.linger = config.finish.linger;
  options.membership.strangers = config.swarm.mode == SwarmMode::open;
  options.membership.progress.max_rate_ratio = max_rate_ratio_of(config);
  options.exchange.levels.fixed_level = level_of(config.gossip.codec);
  options.exchange.levels.fixed_tau = config.gossip.tau;
  options.exchange.edge.aggregator = aggregator_of(config.gossip.aggregator);
  // A sparse delta says nothing about most coordinates, and the middle of nothing is nothing.
  if (gossip::holds_back(options.exchange.edge.aggregator) && !options.exchange.levels.fixed_level)
    options.exchange.levels.fixed_level = gossip::Level::l3;
  return options;
}

bootstrap::JoinOptions join_options(const Config& config) {
  bootstrap::JoinOptions options;
  options.grace = config.net.join_grace;
  // Most of a short run is for training, whether somebody answers or not.
  if (config.train.until.kind == Until::Kind::time && !config.forced("net.join_grace"))
    options.grace = std::min(options.grace, config.train.until.time / 4);
  options.require_peers = config.net.require_peers;
  options.join_timeout = config.net.join_timeout;
  return options;
}

training::DeviceOptions device_options(const Config& config) {
  training::DeviceOptions device;
  device.device = config.train.device;
  device.threads = config.node.threads ? static_cast<int>(*config.node.threads) : usable_cores();
  switch (config.train.precision) {
    case Precision::automatic:
      device.precision = training::Precision::automatic;
      break;
    case Precision::fp32:
      device.precision = training::Precision::fp32;
      break;
    case Precision::bf16:
      device.precision = training::Precision::bf16;
      break;
  }
  return device;
}

std::uint32_t data_threads(const Config& config) {
  const auto cores = static_cast<std::uint32_t>(usable_cores());
  return config.data.threads.value_or(std::clamp(cores / 2, 1U, 4U));
}

TimePoint next_due(TimePoint now, Duration every) {
  return every > Duration::zero() ? now + every : kNever;
}

Result<void> check_supported(const Config& config) {
  const auto no = [](std::string detail) {
    return fail(Errc::bad_config, Doing::reading_config, std::move(detail));
  };
  if (config.gossip.codec == Codec::none)
    return no("gossip.codec = none is not in this version; L6 is the densest level there is");
  const auto rule = aggregator_of(config.gossip.aggregator);
  const auto level = level_of(config.gossip.codec);
  if (gossip::holds_back(rule) && level && *level < gossip::Level::l3)
    return no("gossip.aggregator = " + std::string(name_of(rule)) +
              " needs a level that sends every coordinate: set gossip.codec to auto or L3 to L6");
  if (config.data.train.empty())
    return no(
        "data.train is not set: name the training data with --data (a folder of class folders, "
        "tar shards, cifar10:DIR, idx:DIR, fashion-mnist or synthetic)");
  return {};
}

std::string dialable_address(const transport::Endpoint& bound) {
  if (!is_wildcard(bound.host)) return transport::to_string(bound);
  const auto own = own_addresses();
  return transport::to_string({own.empty() ? "127.0.0.1" : own.front(), bound.port});
}

Result<std::vector<transport::Endpoint>> advertised_addresses(const Config& config,
                                                              const transport::Endpoint& bound) {
  std::vector<transport::Endpoint> advertised;
  for (const auto& text : config.net.advertise) {
    auto endpoint = transport::parse_endpoint(text, bound.port);
    if (!endpoint)
      return fail(Errc::bad_config, Doing::reading_config,
                  "net.advertise = " + text + ": " + endpoint.error().detail);
    if (endpoint->port == 0)
      return fail(Errc::bad_config, Doing::reading_config,
                  "net.advertise = " + text +
                      ": nobody can dial port 0; leave it out for the one that this node listens "
                      "on");
    advertised.push_back(std::move(*endpoint));
  }
  if (!advertised.empty()) return advertised;
  if (!is_wildcard(bound.host)) return std::vector{bound};
  for (auto& address : own_addresses()) advertised.push_back({std::move(address), bound.port});
  if (advertised.empty()) advertised.push_back({"127.0.0.1", bound.port});
  if (advertised.size() > transport::limits::kMaxAdvertised)
    advertised.resize(transport::limits::kMaxAdvertised);
  return advertised;
}

}  // namespace starling::node
