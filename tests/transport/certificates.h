// An admin, an inviter and members, with keys and times that never change.
#pragma once

#include "transport/identity.h"
#include "transport/member_certificate.h"
#include "transport/revocation.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace starling::transport {

[[nodiscard]] inline Identity identity_of(unsigned char number) {
  return Identity::from_seed(std::array<std::byte, 32>{std::byte{number}});
}

struct Admin {
  Identity key = identity_of(200);
  SwarmId swarm{std::array<std::byte, 32>{std::byte{7}}};
  std::uint32_t from_s = 1'799'990'000;
  std::uint32_t until_s = 1'800'010'000;

  [[nodiscard]] MemberCertificate unsigned_for(const NodeId& node, std::uint64_t serial) const {
    return {.role = MemberRole::member,
            .node = node,
            .serial = serial,
            .from_s = from_s,
            .until_s = until_s,
            .issues = {},
            .signature = {}};
  }
  [[nodiscard]] CertificateChain member(const NodeId& node, std::uint64_t serial) const {
    CertificateChain chain{unsigned_for(node, serial), {}};
    sign(chain.own, swarm, key);
    return chain;
  }
  // May give the hundred serials after its own.
  [[nodiscard]] CertificateChain inviter(const NodeId& node, std::uint64_t serial) const {
    CertificateChain chain{unsigned_for(node, serial), {}};
    chain.own.role = MemberRole::inviter;
    chain.own.issues = {serial + 1, 100};
    sign(chain.own, swarm, key);
    return chain;
  }
  // What an inviter signs for a newcomer.
  [[nodiscard]] CertificateChain invited(const CertificateChain& inviter, const Identity& signer,
                                         const NodeId& node, std::uint64_t serial) const {
    CertificateChain chain{unsigned_for(node, serial), inviter.own};
    sign(chain.own, swarm, signer);
    return chain;
  }
  [[nodiscard]] Revocations revoke(std::uint64_t number, std::set<NodeId> nodes,
                                   std::set<std::uint64_t> serials = {}) const {
    Revocations list{number, std::move(serials), std::move(nodes), {}};
    sign(list, swarm, key);
    return list;
  }
  [[nodiscard]] std::optional<std::string> fault(const CertificateChain& chain,
                                                 std::uint64_t now_s = 1'800'000'000) const {
    return fault_in(chain, key.id(), swarm, now_s);
  }
};

}  // namespace starling::transport
