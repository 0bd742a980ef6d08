#include "gossip/exchange/effects.h"

#include <sstream>

namespace starling::gossip {
namespace {

std::string_view name_of(Role role) {
  switch (role) {
    case Role::initiator:
      return "initiator";
    case Role::responder:
      return "responder";
    case Role::crossing:
      return "crossing";
  }
  return "?";
}

std::string_view name_of(By by) { return by == By::us ? "us" : "them"; }

struct EventLine {
  std::ostringstream out;

  void operator()(const EdgeOpened& e) {
    out << "edge opened     " << short_form(e.peer) << " generation=" << e.generation
        << " mode=" << gossip::name_of(e.mode);
  }
  void operator()(const EdgeWasReset& e) {
    out << "edge reset      " << short_form(e.peer) << " generation=" << e.generation
        << " reason=" << gossip::name_of(e.reason) << " by=" << name_of(e.by);
  }
  void operator()(const EdgeWasClosed& e) {
    out << "edge closed     " << short_form(e.peer) << " generation=" << e.generation
        << " reason=" << gossip::name_of(e.reason) << " by=" << name_of(e.by);
  }
  void operator()(const EdgeResumed& e) {
    out << "edge resumed    " << short_form(e.peer) << " generation=" << e.generation;
  }
  void operator()(const Exchanged& e) {
    out << "exchange        " << short_form(e.peer) << " seq=" << e.seq
        << " role=" << name_of(e.role) << " level=" << gossip::name_of(e.own_level)
        << " weight=" << e.weight.value() << " norm=" << e.norm << " scale=" << e.scale
        << " seconds=" << seconds(e.took);
    if (e.channels_clipped > 0) out << " channels_clipped=" << e.channels_clipped;
  }
  void operator()(const ExchangeTorn& e) {
    out << "exchange torn   " << short_form(e.peer) << " seq=" << e.seq;
  }
  void operator()(const OfferParked& e) {
    out << "offer parked    " << short_form(e.peer) << " seq=" << e.seq;
  }
  void operator()(const OfferVoided& e) {
    out << "offer voided    " << short_form(e.peer) << " seq=" << e.seq << " by=" << name_of(e.by)
        << " retry_s=" << seconds(e.retry_after);
  }
  void operator()(const PayloadRefused& e) {
    out << "payload refused " << short_form(e.peer) << " offences=" << e.offences << ' '
        << to_string(e.error);
  }
  void operator()(const LevelChanged& e) {
    out << "level           " << short_form(e.peer) << ' ' << gossip::name_of(e.decision.level)
        << " wanted=" << gossip::name_of(e.decision.wanted)
        << " reason=" << gossip::name_of(e.decision.reason);
  }
  void operator()(const PeriodChanged& e) {
    out << "period          tau=" << e.decision.tau
        << " reason=" << gossip::name_of(e.decision.reason);
  }
};

}  // namespace

std::string to_string(const ExchangeEvent& event) {
  EventLine line;
  std::visit(line, event);
  return std::move(line.out).str();
}

}  // namespace starling::gossip
