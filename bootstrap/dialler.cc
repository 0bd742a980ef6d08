#include "bootstrap/dialler.h"

#include "node/base/fault.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace starling::bootstrap {
namespace {

constexpr Duration kPatienceWithOurselves = std::chrono::minutes(5);

// "10.0.0.1" or "2001:db8::1" (endpoints have no brackets): nothing to resolve.
bool is_literal(std::string_view host) {
  return host.find(':') != std::string_view::npos ||
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace

DialEnd dial_end_of(const Error& error) {
  switch (error.code) {
    case Errc::connect_failed:
    case Errc::connect_refused:
      return DialEnd::refused;
    case Errc::timed_out:
      return DialEnd::timed_out;
    case Errc::resolve_failed:
      return DialEnd::unresolved;
    case Errc::closed:
      return error.doing == Doing::handshaking ? DialEnd::closed_silently : DialEnd::other;
    case Errc::wrong_swarm:
      return DialEnd::closed_silently;
    case Errc::wrong_identity:
      return DialEnd::wrong_identity;
    case Errc::refused:
      return DialEnd::refused_by_name;
    case Errc::already_exists:
      return DialEnd::ourselves;
    default:
      return DialEnd::other;
  }
}

std::string_view name_of(DialEnd end) {
  switch (end) {
    case DialEnd::refused:
      return "no connection";
    case DialEnd::timed_out:
      return "no answer";
    case DialEnd::unresolved:
      return "the name has no address";
    case DialEnd::closed_silently:
      return "closed without a reply: wrong secret, another swarm or version, or busy";
    case DialEnd::wrong_identity:
      return "another identity answers there";
    case DialEnd::refused_by_name:
      return "refused";
    case DialEnd::ourselves:
      return "this node itself";
    case DialEnd::other:
      return "failed";
  }
  return "failed";
}

Result<void> Dialler::add(TimePoint now, const Seed& seed) {
  if (addresses_.size() + names_.size() >= kMaxSeeds)
    return fail(Errc::too_many, Doing::joining,
                "more than " + std::to_string(kMaxSeeds) + " addresses to try");
  if (seed.kind == SeedKind::all_of_name || !is_literal(seed.endpoint.host)) {
    Name name;
    name.kind = seed.kind;
    name.pin = seed.pin;
    name.origin = seed.origin;
    name.not_before = now;
    names_.try_emplace(seed.endpoint, std::move(name));
    return {};
  }
  Address& address = addresses_[seed.endpoint];
  address.report.endpoint = seed.endpoint;
  make_seed(address, seed.origin, seed.pin);
  address.not_before = now;
  address.failures = 0;
  return {};
}

void Dialler::make_seed(Address& address, const std::string& origin,
                        const std::optional<NodeId>& pin) {
  address.report.origin = origin;
  address.source = Source::seed;
  address.pin = pin;
  // Who was only said to be there has not answered.
  if (std::exchange(address.known, std::nullopt)) address.report.peer.reset();
}

bool Dialler::is_single(const std::optional<transport::Endpoint>& name) const {
  if (!name) return false;
  const auto at = names_.find(*name);
  return at != names_.end() && at->second.kind == SeedKind::address;
}

template <class AddressTest>
std::set<transport::Endpoint> Dialler::settled_names(AddressTest test) const {
  std::set<transport::Endpoint> names;
  for (const auto& [endpoint, address] : addresses_)
    if (is_single(address.name) && test(address)) names.insert(*address.name);
  return names;
}

void Dialler::add(TimePoint now, const AddressBook& book) {
  for (const auto& peer : book.peers()) {
    if (addresses_.size() >= kMaxSeeds || addresses_.contains(peer.endpoint)) continue;
    Address address;
    address.report.endpoint = peer.endpoint;
    address.report.origin = "address book";
    // Only an explicit id@host:port pins: whoever answers there now may be as good.
    address.source = Source::book;
    address.known = peer.id;
    address.not_before = now;
    addresses_.emplace(peer.endpoint, std::move(address));
  }
}

void Dialler::on_resolved(TimePoint now, const transport::Endpoint& name,
                          const std::vector<transport::Endpoint>& found) {
  const auto at = names_.find(name);
  if (at == names_.end()) return;
  at->second.failures = 0;
  at->second.detail.clear();
  at->second.not_before = now + options_.resolve_interval;
  at->second.found = found.size();
  // What the name does not mean any more is forgotten, unless somebody answers there still.
  std::erase_if(addresses_, [&](const auto& item) {
    return item.second.name == name && (!item.second.report.peer || item.second.failures > 0) &&
           std::ranges::find(found, item.first) == found.end();
  });
  std::size_t kept = 0;
  for (const auto& endpoint : found) {
    if (++kept > options_.max_per_name || addresses_.size() >= 2 * kMaxSeeds) return;
    const auto [place, fresh] = addresses_.try_emplace(endpoint);
    Address& address = place->second;
    if (!fresh && address.source == Source::seed) continue;
    address.report.endpoint = endpoint;
    make_seed(address, at->second.origin, at->second.pin);
    address.name = name;
    if (fresh) address.not_before = now;
  }
}

void Dialler::on_resolve_failed(TimePoint now, const transport::Endpoint& name, const Error& why) {
  const auto at = names_.find(name);
  if (at == names_.end()) return;
  at->second.detail = why.detail;
  at->second.not_before = now + backoff(++at->second.failures);
}

void Dialler::on_up(TimePoint, const transport::Endpoint& endpoint, const NodeId& peer) {
  const auto at = addresses_.find(endpoint);
  if (at == addresses_.end()) return;
  Address& address = at->second;
  address.report.peer = peer;
  address.report.last_end.reset();
  address.report.detail.clear();
  address.failures = 0;
  address.out_until = TimePoint{};
}

void Dialler::learn(const transport::Endpoint& endpoint, const NodeId& peer) {
  const auto at = addresses_.find(endpoint);
  if (at != addresses_.end() && !at->second.report.peer && at->second.known == peer)
    on_up(TimePoint{}, endpoint, peer);
}

void Dialler::on_failed(TimePoint now, const transport::Endpoint& endpoint, const Error& why) {
  const auto at = addresses_.find(endpoint);
  if (at == addresses_.end()) return;
  Address& address = at->second;
  const DialEnd end = dial_end_of(why);
  address.report.last_end = end;
  address.report.detail = why.detail;
  address.report.turned_away += is_turned_away(end) ? 1 : 0;
  address.out_until = TimePoint{};
  address.not_before =
      fault::planted("dialler.one_try") ? kNever : now + backoff(++address.failures);
  // Our own address may become another node's one day, when machines are moved.
  if (end == DialEnd::ourselves) address.not_before += kPatienceWithOurselves;
}

void Dialler::on_down(TimePoint now, const NodeId& peer, Duration lived, Greeted greeted) {
  const bool helped = greeted == Greeted::yes || lived >= options_.settled;
  for (auto& [endpoint, address] : addresses_) {
    if (address.report.peer != peer) continue;
    address.brief = helped ? 0 : address.brief + 1;
    const TimePoint next =
        helped ? now - lived + with_jitter(options_.apart) : now + backoff(address.brief);
    if (next <= now) continue;
    // Whoever takes sessions only to close them would be dialled without a pause.
    address.report.peer.reset();
    address.report.last_end = DialEnd::other;
    address.report.detail = "the last session with it was short";
    address.not_before = next;
  }
}

void Dialler::retry_now(TimePoint now) {
  for (auto& [endpoint, address] : addresses_) {
    address.not_before = std::min(address.not_before, now);
    address.failures = 0;
  }
  for (auto& [endpoint, name] : names_) name.not_before = std::min(name.not_before, now);
}

Duration Dialler::backoff(std::uint32_t failures) {
  const auto doublings = std::min<std::uint32_t>(failures > 0 ? failures - 1 : 0, 20);
  const Duration base =
      std::min(options_.last_backoff, options_.first_backoff * (std::int64_t{1} << doublings));
  return with_jitter(base);
}

Duration Dialler::with_jitter(Duration base) {
  return base + Duration(static_cast<std::int64_t>(
                    rng_.below(static_cast<std::uint64_t>(base.count()) / 2 + 1)));
}

DiallerEffects Dialler::on_tick(TimePoint now, const Test& is_member, const Test& is_refused) {
  DiallerEffects effects;
  std::size_t out = 0;
  std::size_t seeds_out = 0;
  for (const auto& [endpoint, address] : addresses_) {
    if (address.out_until <= now) continue;
    ++out;
    seeds_out += address.source == Source::seed ? 1 : 0;
  }
  const auto settled = settled_names([&](const Address& address) {
    const auto& peer = address.report.peer;
    return peer && is_member(*peer) && !is_refused(*peer);
  });
  std::vector<Address*> due;
  for (auto& [endpoint, address] : addresses_) {
    // First of all, whatever the address is needed for: a deadline that has passed must go.
    const bool lost = address.out_until != TimePoint{} && address.out_until <= now;
    if (lost) address.out_until = TimePoint{};
    if (address.report.peer && is_member(*address.report.peer)) {
      // When the member is gone the first try comes at once.
      address.not_before = std::min(address.not_before, now);
      continue;
    }
    if (lost) {
      address.report.last_end = DialEnd::other;
      address.report.detail = "no outcome";
      address.not_before = now + backoff(++address.failures);
    }
    // The other addresses of a node that was reached by one of them.
    if (address.name && settled.contains(*address.name) && !address.report.peer) {
      address.not_before = std::max(address.not_before, now + options_.first_backoff);
      continue;
    }
    if (address.out_until <= now && now >= address.not_before) due.push_back(&address);
  }
  // What a person named comes before the address book, which keeps a quarter of the dials where
  // both have something to try, and of either who has waited longest. In any other order a few
  // dozen addresses that say nothing would keep the others from their turn.
  std::ranges::sort(due, {}, [](const Address* address) {
    const auto& [host, port] = address->report.endpoint;
    return std::tuple(address->source, address->not_before, std::string_view(host), port);
  });
  const bool both = !due.empty() && due.front()->source != due.back()->source;
  const std::size_t most_seeds =
      options_.max_outstanding - (both ? options_.max_outstanding / 4 : 0);
  for (Address* address : due) {
    if (out >= options_.max_outstanding) break;
    if (address->source == Source::seed && seeds_out >= most_seeds) continue;
    ++out;
    seeds_out += address->source == Source::seed ? 1 : 0;
    ++address->report.attempts;
    address->out_until = now + options_.outcome;
    effects.dial.push_back({address->report.endpoint, address->pin});
  }
  // A headless service grows and shrinks: its name is asked for ever.
  for (auto& [endpoint, name] : names_) {
    if (now < name.not_before) continue;
    name.not_before = now + std::max(options_.resolve_interval, options_.outcome);
    effects.resolve.push_back(endpoint);
  }
  return effects;
}

TimePoint Dialler::next_deadline() const {
  TimePoint next = kNever;
  // With as many dials out as may be, an outcome comes first.
  const auto out = std::ranges::count_if(
      addresses_, [](const auto& item) { return item.second.out_until != TimePoint{}; });
  const bool full = static_cast<std::size_t>(out) >= options_.max_outstanding;
  for (const auto& [endpoint, address] : addresses_) {
    if (address.report.peer || (full && address.out_until == TimePoint{})) continue;
    next =
        std::min(next, address.out_until != TimePoint{} ? address.out_until : address.not_before);
  }
  for (const auto& [endpoint, name] : names_) next = std::min(next, name.not_before);
  return next;
}

bool Dialler::all_turned_away(std::uint32_t times) const {
  bool any = false;
  const auto closed = settled_names([&](const Address& address) {
    return address.report.turned_away >= times && !address.report.peer;
  });
  for (const auto& [endpoint, address] : addresses_) {
    if (address.source != Source::seed || address.report.last_end == DialEnd::ourselves) continue;
    // Of a name with several addresses one that turns us away is enough.
    if (!address.report.peer && address.name && closed.contains(*address.name)) {
      any = true;
      continue;
    }
    if (address.report.peer || address.report.turned_away < times) return false;
    any = true;
  }
  return any;
}

bool Dialler::all_answered_by(const Test& test) const {
  const auto answers = [&](const Address& address) {
    return address.report.peer && test(*address.report.peer);
  };
  const auto settled = settled_names(answers);
  for (const auto& [endpoint, name] : names_)
    if (name.found == 0) return false;
  for (const auto& [endpoint, address] : addresses_) {
    const AddressReport& report = address.report;
    if (!report.peer && !report.last_end) return false;  // not tried yet
    if (address.source == Source::book || report.last_end == DialEnd::ourselves) continue;
    const bool elsewhere = !report.peer && address.name && settled.contains(*address.name);
    if (!elsewhere && !answers(address)) return false;
  }
  return true;
}

std::vector<AddressReport> Dialler::report() const {
  std::vector<AddressReport> reports;
  for (const auto& [endpoint, address] : addresses_) reports.push_back(address.report);
  for (const auto& [endpoint, name] : names_) {
    if (name.detail.empty()) continue;
    AddressReport report;
    report.endpoint = endpoint;
    report.origin = name.origin;
    report.attempts = name.failures;
    report.last_end = DialEnd::unresolved;
    report.detail = name.detail;
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace starling::bootstrap
