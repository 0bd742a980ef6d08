// A sequence of events for one mixer with two peers, one of which may send any message: nothing
// that a peer does may break a CHECK, leave more than one job of an edge under way, or leave a
// deadline that a tick does not move.
#include "gossip/exchange/mixer.h"
#include "node/base/check.h"
#include "node/base/hash.h"

#include <cstdint>
#include <deque>
#include <utility>

namespace {

using namespace starling;
using namespace starling::gossip;

NodeId node_named(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

// One mixer and the jobs that its codec has not done yet.
class Bench {
 public:
  explicit Bench(ByteView input) : input_(input), mixer_(node_named(5), options(), 4, Rng(1)) {
    take(mixer_.on_neighbours(now_, {node_named(1), node_named(9)}));
  }

  void run() {
    for (int events = 0; events < 400 && input_.left() > 0; ++events) event();
  }

 private:
  static MixerOptions options() {
    MixerOptions made;
    made.lease = 3;
    made.levels.start_tau = 1;
    return made;
  }
  std::uint8_t byte() { return input_.read<std::uint8_t>().value_or(0); }
  NodeId peer() { return node_named((byte() & 1) == 0 ? 1 : 9); }

  void take(ExchangeEffects effects) {
    for (auto& job : effects.jobs) jobs_.push_back(std::move(job));
    STARLING_CHECK(jobs_.size() <= 2);  // one an edge
    for (auto& outgoing : effects.send) last_sent_ = std::move(outgoing.message);
  }

  void event() {
    switch (byte() % 12) {
      case 0:
        return take(mixer_.on_session_up(now_, peer(), {byte() % 2U}));
      case 1:
        return take(mixer_.on_session_down(now_, peer()));
      case 2:
        training_.steps += byte() % 8U;
        training_.samples = training_.steps * 32;
        training_.step_time = std::chrono::milliseconds(100);
        return take(mixer_.on_steps(now_, training_));
      case 3:
        now_ += std::chrono::milliseconds(10) * (1 << (byte() % 16));
        take(mixer_.on_tick(now_));
        STARLING_CHECK(mixer_.next_deadline() > now_);
        return;
      case 4:
        return take(mixer_.on_refused(now_, peer(), last_sent_));
      case 5:
        return phase();
      case 6:
      case 7:
        return finish_job();
      default:
        return take(mixer_.on_message(now_, peer(), message()));
    }
  }

  void phase() {
    switch (byte() % 4) {
      case 0:
        return take(mixer_.begin_drain(now_, now_ + std::chrono::seconds(1)));
      case 1:
        return take(mixer_.begin_leave(now_, now_ + std::chrono::seconds(8)));
      case 2:
        return take(mixer_.adopt_replica(now_, byte()));
      default:
        return take(mixer_.on_neighbours(now_, {node_named(byte() & 9)}));
    }
  }

  // Numbers near those of the edge, so that they are often right.
  ExchangeMessage message() {
    const Edge* edge = mixer_.find_edge(node_named(1));
    const std::uint64_t generation = (edge ? edge->generation().value : 0) + byte() % 3U;
    const std::uint64_t seq = (edge ? edge->seq().value : 0) + byte() % 3U;
    const std::uint64_t chain8 = edge && byte() % 4 != 0 ? first_u64(edge->chain()) : byte();
    const Payload payload{Level::l2, statistics_of({seq}), share(Bytes(1 + byte() % 3U))};
    switch (byte() % 8) {
      case 0: {
        EdgeOpen open;
        open.generation = {generation};
        open.reference = reference();
        if (byte() % 2 == 0) {
          open.mode = OpenMode::snapshot;
          open.snapshot = payload.bytes;
        }
        return open;
      }
      case 1:
        return EdgeOpenAck{{generation}, reference(), static_cast<double>(byte())};
      case 2: {
        Offer offer;
        offer.generation = {generation};
        offer.seq = {seq};
        offer.chain8 = chain8;
        offer.spot.block = byte() % 5U;
        offer.purpose = byte() % 4 == 0 ? Purpose::leave : Purpose::regular;
        offer.payload = payload;
        return offer;
      }
      case 3:
        return Answer{{generation}, {seq}, chain8, {32}, {}, payload};
      case 4:
        if (const auto* offer = std::get_if<Offer>(&last_sent_))
          return Busy{offer->generation, offer->seq, name_of_offer(*offer), {}};
        return Busy{{generation}, {seq}, {}, {}};
      case 5:
        return Resume{{generation}, {seq}, chain8, byte() % 2 ? Pending::offer : Pending::none};
      case 6:
        return EdgeReset{{generation}, ResetReason::bad_payload};
      default:
        return EdgeClose{{generation}, static_cast<CloseReason>(byte() % 13)};
    }
  }

  static Hash reference() { return hash_of(as_bytes("r")); }

  void finish_job() {
    if (jobs_.empty()) return;
    const CodecJob job = std::move(jobs_.front());
    jobs_.pop_front();
    const bool fails = byte() % 8 == 0;
    const auto ends = std::visit(
        [](const auto& one) {
          if constexpr (requires { one.terms; }) {
            return one.terms.edge;
          } else {
            return one.edge;
          }
        },
        job);
    Result<CodecDone> done = done_by_codec(job);
    if (fails && !std::holds_alternative<DropJob>(job))
      done = fail(byte() % 2 ? Errc::corrupt : Errc::bad_message, Doing::exchanging, "made up");
    take(mixer_.on_job_done(now_, {ends, std::move(done)}));
  }

  static CodecDone done_by_codec(const CodecJob& job) {
    if (const auto* offer = std::get_if<OfferJob>(&job))
      return OfferDone{{offer->level, offer->statistics, share(Bytes(1))}, {}, {}};
    if (const auto* answer = std::get_if<AnswerJob>(&job))
      return ExchangeDone{{answer->own_level, answer->theirs.statistics, share(Bytes(1))},
                          hash_of(answer->terms.chain.view()),
                          1,
                          1,
                          {}};
    if (const auto* apply = std::get_if<ApplyJob>(&job))
      return ExchangeDone{{}, hash_of(apply->terms.chain.view()), 1, 1, {}};
    if (std::holds_alternative<DropJob>(job)) return ReferenceDropped{};
    return ReferenceSet{reference(), share(Bytes(1))};
  }

  ByteReader input_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  TrainingState training_;
  Mixer mixer_;
  std::deque<CodecJob> jobs_;
  ExchangeMessage last_sent_ = EdgeClose{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bench(std::as_bytes(std::span(data, size))).run();
  return 0;
}
