// DIR/peers.json, as a start finds it.
#pragma once

#include "bootstrap/address_book.h"
#include "node/base/log.h"

#include <filesystem>

namespace starling::node {

// The peers that this node knew when it last ran; none at its first start.
//
// Rule:    what is there and cannot be used is told in one warning and set aside (set_aside.h),
//          since the node saves its next book under the same name: the old bytes outlive it.
[[nodiscard]] bootstrap::AddressBook read_address_book(const std::filesystem::path& file, Log& log);

}  // namespace starling::node
