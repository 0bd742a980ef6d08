// From the configuration of a person to the options of each part. Pure functions.
#pragma once

#include "bootstrap/join.h"
#include "gossip/gossip.h"
#include "node/base/result.h"
#include "node/cli/verbs.h"
#include "node/config/config.h"
#include "training/trainer.h"
#include "transport/transport.h"

#include <cstdint>
#include <string>
#include <vector>

namespace starling::node {

[[nodiscard]] transport::TransportOptions transport_options(const Config& config, std::string name,
                                                            Instance instance);
[[nodiscard]] gossip::GossipOptions gossip_options(const Config& config);
[[nodiscard]] bootstrap::JoinOptions join_options(const Config& config);
[[nodiscard]] training::DeviceOptions device_options(const Config& config);
// Threads that read and decode: data.threads, or half the cores, 1 to 4.
[[nodiscard]] std::uint32_t data_threads(const Config& config);
// When something that is done every so often is due next; never for an interval of 0.
[[nodiscard]] TimePoint next_due(TimePoint now, Duration every);

// Values that no part of this version can serve, although the configuration can say them.
//
// Errors:  unsupported or bad_config, naming key and value and what to choose instead.
[[nodiscard]] Result<void> check_supported(const Config& config);

// The address by which other machines, or this one, may dial what was bound: a wildcard becomes the
// first address of this machine that is no loopback, or loopback where there is none (papercut 6).
[[nodiscard]] std::string dialable_address(const transport::Endpoint& bound);

// What peers are told: net.advertise, or the bound address, or (bound to all) every address of this
// machine, at most four, loopback only where it is all there is.
//
// Errors:  bad_config for an address that is none.
[[nodiscard]] Result<std::vector<transport::Endpoint>> advertised_addresses(
    const Config& config, const transport::Endpoint& bound);

}  // namespace starling::node
