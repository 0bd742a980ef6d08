#include "transport/admission.h"

#include "node/base/check.h"

#include <algorithm>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::size_t kMaxRates = 4'096;

}  // namespace

asio::ip::address unmapped(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

AddressGroup group_of(const asio::ip::address& address) {
  const auto own = unmapped(address);
  if (own.is_v4()) return AddressGroup{(std::uint64_t{0xff} << 56) | own.to_v4().to_uint()};
  const auto bytes = own.to_v6().to_bytes();
  std::uint64_t prefix = 0;
  for (std::size_t i = 0; i < 7; ++i) prefix = (prefix << 8) | bytes[i];
  return AddressGroup{prefix};
}

bool Admission::try_rate(TimePoint now, AddressGroup group, bool was_peer) {
  if (rates_.size() >= kMaxRates)
    std::erase_if(rates_, [now](auto& entry) { return entry.second.full(now); });
  auto found = rates_.find(group);
  if (found == rates_.end()) {
    if (rates_.size() >= kMaxRates + (was_peer ? limits::kMaxSessions : 0)) return false;
    const auto burst = rate_ * limits::kHandshakeBurstPerAddress / limits::kHandshakesPerAddress;
    found = rates_.emplace(group, TokenBucket(rate_, std::max(1.0, burst))).first;
  }
  return found->second.try_take(now) && (was_peer || connections_.try_take(now));
}

std::optional<std::uint64_t> Admission::expendable() const {
  const auto crowded =
      std::ranges::max_element(counts_, {}, [](const auto& entry) { return entry.second; });
  const bool one_crowds = crowded != counts_.end() && crowded->second > 1;
  const auto in_crowd = [&](const Ticket& ticket) {
    return one_crowds && ticket.group == crowded->first;
  };
  std::optional<std::uint64_t> silent;
  std::optional<std::uint64_t> of_crowd;
  for (const auto& [number, ticket] : tickets_) {
    if (in_crowd(ticket) && !ticket.answered) return number;
    if (!ticket.answered && !silent) silent = number;
    if (in_crowd(ticket) && !of_crowd) of_crowd = number;
  }
  return silent ? silent : of_crowd;
}

AdmissionVerdict Admission::admit(TimePoint now, const asio::ip::address& address, bool was_peer) {
  const auto group = group_of(address);
  AdmissionVerdict verdict;
  const auto refuse = [&verdict](AdmissionRefusal why) {
    verdict.refusal = why;
    return verdict;
  };
  const auto count = counts_.find(group);
  if (count != counts_.end() && count->second >= limits::kMaxUnauthenticatedPerAddress)
    return refuse(AdmissionRefusal::address_crowded);
  const bool near = unmapped(address).is_loopback();
  if (!near && !try_rate(now, group, was_peer)) return refuse(AdmissionRefusal::too_fast);
  const auto places =
      limits::kMaxUnauthenticated - (was_peer ? 0 : limits::kUnauthenticatedReserve);
  if (tickets_.size() >= places) {
    verdict.evict = expendable();
    if (!verdict.evict) return refuse(AdmissionRefusal::full);
    end(*verdict.evict);
  }
  verdict.ticket = ++last_ticket_;
  tickets_.emplace(verdict.ticket, Ticket{.group = group, .exempt = near || was_peer});
  ++counts_[group];
  return verdict;
}

bool Admission::may_answer(TimePoint now, std::uint64_t ticket) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return false;  // its place is another's
  found->second.answered = true;
  return found->second.exempt || answers_.try_take(now);
}

void Admission::end(std::uint64_t ticket) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;  // evicted before
  const auto count = counts_.find(found->second.group);
  STARLING_CHECK(count != counts_.end());
  if (--count->second == 0) counts_.erase(count);
  tickets_.erase(found);
}

}  // namespace starling::transport
