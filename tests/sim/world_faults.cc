// Faults: how they begin, what they do, how they end.
#include "node/base/check.h"
#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

namespace starling::sim {

using namespace std::chrono_literals;

void World::touch(Host host) { ++machines_[host].touches; }

void World::untouch(Host host) {
  Machine& machine = machines_[host];
  if (--machine.touches == 0) machine.untouched_since = schedule_.now();
}

void World::block_between(Active& active, bool both_ways) {
  const auto inside = [&](Host host) {
    return std::ranges::binary_search(active.fault.hosts, host);
  };
  for (Host a = 0; a < machines_.size(); ++a)
    for (Host b = 0; b < machines_.size(); ++b) {
      if (a == b || inside(a) == inside(b)) continue;
      if (!both_ways && !inside(a)) continue;
      wire_.block(a, b);
      active.blocked.emplace_back(a, b);
    }
}

void World::clog(const Fault& fault) {
  const auto until = [&] {
    const auto longest = static_cast<std::uint64_t>(fault.lasts.count());
    return schedule_.now() + Duration(static_cast<std::int64_t>(rng_.below(longest)));
  };
  for (const auto host : fault.hosts)
    for (Host other = 0; other < machines_.size(); ++other) {
      wire_.clog(host, other, until());
      wire_.clog(other, host, until());
    }
}

void World::cut_power(Host host) {
  ++machines_[host].darknesses;
  wire_.set_power(host, false);
  stop(host);
}

// Faults of the lines touch everybody, those of a machine only it.
void World::touch_all(const Fault& fault) {
  const bool everybody = fault.kind == FaultKind::partition || fault.kind == FaultKind::one_way ||
                         fault.kind == FaultKind::isolate || fault.kind == FaultKind::clog ||
                         fault.kind == FaultKind::bad_line;
  if (everybody)
    for (Host host = 0; host < machines_.size(); ++host) touch(host);
  else
    for (const auto host : fault.hosts) touch(host);
}

void World::begin_fault(std::size_t index) {
  Active& active = faults_[index];
  if (liveness_) return;
  active.over = false;
  const Fault& fault = active.fault;
  trace_.mix(std::uint64_t{index} | std::uint64_t{3} << 40);
  if (trace_.wanted()) trace_.line(schedule_.now(), "fault", describe(fault));
  touch_all(fault);
  const Host first = fault.hosts.front();
  switch (fault.kind) {
    case FaultKind::crash:
      for (const auto host : fault.hosts) stop(host);
      break;
    case FaultKind::power:
      for (const auto host : fault.hosts) cut_power(host);
      break;
    case FaultKind::pause:
      for (const auto host : fault.hosts) pause(host);
      break;
    case FaultKind::stutter:
      stutter(index, first);
      break;
    case FaultKind::isolate:
    case FaultKind::partition:
      block_between(active, true);
      break;
    case FaultKind::one_way:
      block_between(active, false);
      break;
    case FaultKind::clog:
      clog(fault);
      break;
    case FaultKind::cut:
      wire_.cut_connections(first);
      break;
    case FaultKind::bad_line: {
      LinkQuality bad = plan_.wire.quality;
      bad.loss = fault.size;
      bad.delay_max += 50ms;
      wire_.set_quality(bad);
      break;
    }
    case FaultKind::slow:
      machines_[first].burden.slowness = static_cast<std::int64_t>(fault.size);
      break;
    case FaultKind::no_room:
      machines_[first].burden.refuse_attachments = fault.size;
      break;
    case FaultKind::disk_full:
      machines_[first].disk.full = true;
      break;
    case FaultKind::jump:
      machines_[first].burden.clock_ahead +=
          std::chrono::duration_cast<Duration>(std::chrono::duration<double>(fault.size));
      if (machines_[first].process) machines_[first].process->wake();
      break;
    case FaultKind::leave:
      if (machines_[first].life == Life::running) machines_[first].process->leave();
      break;
    case FaultKind::merge:
      if (machines_[first].life == Life::running) machines_[first].process->merge();
      break;
    case FaultKind::finish:
      if (machines_[first].life == Life::running) machines_[first].process->finish();
      break;
  }
  schedule_.after(fault.lasts, [this, index] { end_fault(index); });
}

// Processor time in bursts: stopped for `size` seconds, running for a tenth of that.
void World::stutter(std::size_t index, Host host) {
  const auto part = [&](double share) {
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(faults_[index].fault.size * share));
  };
  if (faults_[index].over) return;
  pause(host);
  schedule_.after(part(1.0), [this, index, host, rest = part(0.1)] {
    resume(host);
    schedule_.after(rest, [this, index, host] { stutter(index, host); });
  });
}

void World::end_fault(std::size_t index) {
  Active& active = faults_[index];
  if (std::exchange(active.over, true)) return;
  const Fault& fault = active.fault;
  if (trace_.wanted())
    trace_.line(schedule_.now(), "fault", std::string(name_of(fault.kind)) + " is over");
  for (const auto& [from, to] : std::exchange(active.blocked, {})) wire_.unblock(from, to);
  const Host first = fault.hosts.front();
  switch (fault.kind) {
    case FaultKind::crash:
    case FaultKind::power:
      for (const auto host : fault.hosts) {
        if (fault.kind == FaultKind::power && --machines_[host].darknesses == 0)
          wire_.set_power(host, true);
        if (host >= kSeeds && rng_.chance(plan_.stay_dead)) machines_[host].wanted = false;
        start(host);
      }
      break;
    case FaultKind::pause:
      for (const auto host : fault.hosts) resume(host);
      break;
    case FaultKind::bad_line:
      wire_.set_quality(plan_.wire.quality);
      break;
    case FaultKind::slow:
      machines_[first].burden.slowness = 1;
      break;
    case FaultKind::no_room:
      machines_[first].burden.refuse_attachments = 0;
      break;
    case FaultKind::disk_full:
      machines_[first].disk.full = false;
      break;
    default:
      break;
  }
  const bool everybody = fault.kind == FaultKind::partition || fault.kind == FaultKind::one_way ||
                         fault.kind == FaultKind::isolate || fault.kind == FaultKind::clog ||
                         fault.kind == FaultKind::bad_line;
  if (everybody)
    for (Host host = 0; host < machines_.size(); ++host) untouch(host);
  else
    for (const auto host : fault.hosts) untouch(host);
}

void World::end_all_faults() {
  liveness_ = true;
  for (std::size_t i = 0; i < faults_.size(); ++i) end_fault(i);
  for (Host host = 0; host < machines_.size(); ++host) start(host);
}

}  // namespace starling::sim
