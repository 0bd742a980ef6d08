#include "gossip/exchange/message_codec.h"

// clang-format off: the first of the two adds what headers of Cap'n Proto need to compile.
#include "transport/capnp_message.h"
#include "gossip/exchange/messages.capnp.h"
// clang-format on

#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace starling::gossip {
namespace {

std::unexpected<Error> bad(std::string detail) {
  return fail(Errc::bad_message, Doing::reading_message, std::move(detail));
}

// One of the enumerators 0 to `last`.
template <class Enum>
Result<Enum> enum_of(std::uint8_t value, Enum last, const char* what) {
  if (value > static_cast<std::uint8_t>(last))
    return bad(std::string(what) + " " + std::to_string(value) + " is unknown");
  return static_cast<Enum>(value);
}

// A generation or a sequence number.
template <class Count>
Result<Count> count_from(std::uint64_t value) {
  if (value > exchange_limits::kMaxCount) return bad("a counter out of range");
  return Count{value};
}

Result<Hash> hash_from(::capnp::Data::Reader data) {
  const auto hash = Hash::from(transport::view_of(data));
  if (!hash) return bad("a hash of " + std::to_string(data.size()) + " bytes");
  return *hash;
}

Result<double> age_from(double age) {
  if (!(age >= 0 && age <= exchange_limits::kMaxAge)) return bad("an age out of range");
  return age;
}

Result<ReplicaFigures> figures_from(exchange_wire::Figures::Reader in) {
  TRY(const double age, age_from(in.getAge()));
  return ReplicaFigures{.samples = in.getSamples(), .steps = in.getSteps(), .age = age};
}

void write_figures(exchange_wire::Figures::Builder out, const ReplicaFigures& figures) {
  out.setSamples(figures.samples);
  out.setSteps(figures.steps);
  out.setAge(figures.age);
}

// What the attachment of an exchange must look like before its delta is decoded.
Result<Payload> payload_from(std::uint8_t level, std::uint8_t statistics, Seq seq,
                             const SharedBytes& attachment) {
  Payload payload;
  TRY(payload.level, enum_of(level, Level::l6, "level"));
  TRY(payload.statistics, enum_of(statistics, Statistics::with, "statistics flag"));
  if (payload.statistics != statistics_of(seq))
    return bad("statistics flag against sequence number " + std::to_string(seq.value));
  if (!attachment || attachment->empty()) return bad("an exchange without a payload");
  payload.bytes = attachment;
  return payload;
}

Result<EdgeOpen> read(exchange_wire::EdgeOpen::Reader in, const SharedBytes& attachment) {
  EdgeOpen open;
  TRY(open.generation, count_from<Generation>(in.getGeneration()));
  TRY(open.mode, enum_of(in.getMode(), OpenMode::snapshot, "open mode"));
  TRY(open.reference, hash_from(in.getReference()));
  TRY(open.age, age_from(in.getAge()));
  const auto record = transport::view_of(in.getRecord());
  if (record.size() > exchange_limits::kMaxRecord)
    return fail(Errc::too_large, Doing::reading_message,
                "a record of " + std::to_string(record.size()) + " bytes");
  open.record = to_bytes(record);
  const bool attached = attachment && !attachment->empty();
  if (attached != (open.mode == OpenMode::snapshot))
    return bad("an opening whose attachment does not match its mode");
  if (attached) open.snapshot = attachment;
  return open;
}

Result<EdgeOpenAck> read(exchange_wire::EdgeOpenAck::Reader in, const SharedBytes&) {
  EdgeOpenAck ack;
  TRY(ack.generation, count_from<Generation>(in.getGeneration()));
  TRY(ack.reference, hash_from(in.getReference()));
  TRY(ack.age, age_from(in.getAge()));
  return ack;
}

Result<Offer> read(exchange_wire::Offer::Reader in, const SharedBytes& attachment) {
  Offer offer;
  TRY(offer.generation, count_from<Generation>(in.getGeneration()));
  TRY(offer.seq, count_from<Seq>(in.getSeq()));
  offer.chain8 = in.getChain8();
  offer.attempt = in.getAttempt();
  TRY(offer.purpose, enum_of(in.getPurpose(), Purpose::leave, "purpose"));
  TRY(offer.figures, figures_from(in.getFigures()));
  const float wait = in.getExpectedWait();
  if (!(wait >= 0 && wait <= exchange_limits::kMaxWait)) return bad("a wait out of range");
  offer.expected_wait = wait;
  offer.spot.block = in.getSpotBlock();
  TRY(offer.spot.hash, hash_from(in.getSpotHash()));
  TRY(offer.payload, payload_from(in.getLevel(), in.getStatistics(), offer.seq, attachment));
  return offer;
}

Result<Answer> read(exchange_wire::Answer::Reader in, const SharedBytes& attachment) {
  Answer answer;
  TRY(answer.generation, count_from<Generation>(in.getGeneration()));
  TRY(answer.seq, count_from<Seq>(in.getSeq()));
  answer.chain8 = in.getChain8();
  answer.weight = {in.getWeight()};
  if (answer.weight.of_128 < 1 || answer.weight.of_128 > 64)
    return bad("weight " + std::to_string(answer.weight.of_128) + "/128 is not 1 to 64");
  TRY(answer.figures, figures_from(in.getFigures()));
  TRY(answer.payload, payload_from(in.getLevel(), in.getStatistics(), answer.seq, attachment));
  return answer;
}

Result<Busy> read(exchange_wire::Busy::Reader in, const SharedBytes&) {
  Busy busy;
  TRY(busy.generation, count_from<Generation>(in.getGeneration()));
  TRY(busy.seq, count_from<Seq>(in.getSeq()));
  TRY(busy.offer, hash_from(in.getOffer()));
  const std::chrono::milliseconds retry(in.getRetryMs());
  if (retry > exchange_limits::kMaxRetry) return bad("a retry beyond a minute");
  busy.retry_after = retry;
  return busy;
}

Result<Resume> read(exchange_wire::Resume::Reader in, const SharedBytes&) {
  Resume resume;
  TRY(resume.generation, count_from<Generation>(in.getGeneration()));
  TRY(resume.seq, count_from<Seq>(in.getSeq()));
  resume.chain8 = in.getChain8();
  TRY(resume.pending, enum_of(in.getPending(), Pending::offer, "pending"));
  return resume;
}

Result<EdgeReset> read(exchange_wire::EdgeReset::Reader in, const SharedBytes&) {
  TRY(const ResetReason reason, enum_of(in.getReason(), ResetReason::bad_header, "reset reason"));
  TRY(const Generation generation, count_from<Generation>(in.getGeneration()));
  return EdgeReset{generation, reason};
}

Result<EdgeClose> read(exchange_wire::EdgeClose::Reader in, const SharedBytes&) {
  TRY(const CloseReason reason,
      enum_of(in.getReason(), CloseReason::too_many_openings, "close reason"));
  TRY(const Generation generation, count_from<Generation>(in.getGeneration()));
  return EdgeClose{generation, reason};
}

enum class Bulk : std::uint8_t { none, allowed };

template <class Schema, class Value>
Result<ExchangeMessage> read_as(const transport::Message& message, Bulk bulk) {
  if (bulk == Bulk::none && message.attachment && !message.attachment->empty())
    return bad("an attachment where none belongs");
  if (message.attached().size() > exchange_limits::kMaxAttachment)
    return fail(Errc::too_large, Doing::reading_message, "an attachment above the maximum");
  auto copied = transport::read_capnp<Schema, Value>(
      message.body, exchange_limits::kMaxBody,
      [&](typename Schema::Reader in) { return read(in, message.attachment); });
  if (!copied) return fail(std::move(copied).error());
  return ExchangeMessage(std::move(*copied));
}

transport::Message make(ExchangeType type, Bytes body, SharedBytes attachment = nullptr) {
  return {static_cast<std::uint16_t>(type), std::move(body), std::move(attachment)};
}

transport::Message write(const EdgeOpen& open) {
  auto body =
      transport::write_capnp<exchange_wire::EdgeOpen>([&](exchange_wire::EdgeOpen::Builder out) {
        out.setGeneration(open.generation.value);
        out.setMode(static_cast<std::uint8_t>(open.mode));
        out.setReference(transport::data_of(open.reference.view()));
        out.setAge(open.age);
        out.setRecord(transport::data_of(open.record));
      });
  return make(ExchangeType::edge_open, std::move(body), open.snapshot);
}

transport::Message write(const EdgeOpenAck& ack) {
  return make(ExchangeType::edge_open_ack,
              transport::write_capnp<exchange_wire::EdgeOpenAck>(
                  [&](exchange_wire::EdgeOpenAck::Builder out) {
                    out.setGeneration(ack.generation.value);
                    out.setReference(transport::data_of(ack.reference.view()));
                    out.setAge(ack.age);
                  }));
}

transport::Message write(const Offer& offer) {
  auto body = transport::write_capnp<exchange_wire::Offer>([&](exchange_wire::Offer::Builder out) {
    out.setGeneration(offer.generation.value);
    out.setSeq(offer.seq.value);
    out.setChain8(offer.chain8);
    out.setAttempt(offer.attempt);
    out.setLevel(static_cast<std::uint8_t>(offer.payload.level));
    out.setStatistics(static_cast<std::uint8_t>(offer.payload.statistics));
    out.setPurpose(static_cast<std::uint8_t>(offer.purpose));
    write_figures(out.initFigures(), offer.figures);
    out.setExpectedWait(offer.expected_wait);
    out.setSpotBlock(offer.spot.block);
    out.setSpotHash(transport::data_of(offer.spot.hash.view()));
  });
  return make(ExchangeType::offer, std::move(body), offer.payload.bytes);
}

transport::Message write(const Answer& answer) {
  auto body =
      transport::write_capnp<exchange_wire::Answer>([&](exchange_wire::Answer::Builder out) {
        out.setGeneration(answer.generation.value);
        out.setSeq(answer.seq.value);
        out.setChain8(answer.chain8);
        out.setLevel(static_cast<std::uint8_t>(answer.payload.level));
        out.setStatistics(static_cast<std::uint8_t>(answer.payload.statistics));
        out.setWeight(answer.weight.of_128);
        write_figures(out.initFigures(), answer.figures);
      });
  return make(ExchangeType::answer, std::move(body), answer.payload.bytes);
}

transport::Message write(const Busy& busy) {
  const auto retry = std::chrono::duration_cast<std::chrono::milliseconds>(busy.retry_after);
  return make(ExchangeType::busy,
              transport::write_capnp<exchange_wire::Busy>([&](exchange_wire::Busy::Builder out) {
                out.setGeneration(busy.generation.value);
                out.setSeq(busy.seq.value);
                out.setOffer(transport::data_of(busy.offer.view()));
                out.setRetryMs(static_cast<std::uint32_t>(retry.count()));
              }));
}

transport::Message write(const Resume& resume) {
  return make(ExchangeType::resume, transport::write_capnp<exchange_wire::Resume>(
                                        [&](exchange_wire::Resume::Builder out) {
                                          out.setGeneration(resume.generation.value);
                                          out.setSeq(resume.seq.value);
                                          out.setChain8(resume.chain8);
                                          out.setPending(static_cast<std::uint8_t>(resume.pending));
                                        }));
}

transport::Message write(const EdgeReset& reset) {
  return make(
      ExchangeType::edge_reset,
      transport::write_capnp<exchange_wire::EdgeReset>([&](exchange_wire::EdgeReset::Builder out) {
        out.setGeneration(reset.generation.value);
        out.setReason(static_cast<std::uint8_t>(reset.reason));
      }));
}

transport::Message write(const EdgeClose& close) {
  return make(
      ExchangeType::edge_close,
      transport::write_capnp<exchange_wire::EdgeClose>([&](exchange_wire::EdgeClose::Builder out) {
        out.setGeneration(close.generation.value);
        out.setReason(static_cast<std::uint8_t>(close.reason));
      }));
}

}  // namespace

transport::Message encode_exchange(const ExchangeMessage& message) {
  transport::Message wire = std::visit([](const auto& value) { return write(value); }, message);
  // Behind an answer that is on its way, or the other end drops it and its half of the exchange.
  wire.in_order =
      std::holds_alternative<EdgeClose>(message) || std::holds_alternative<EdgeReset>(message);
  return wire;
}

Result<ExchangeMessage> decode_exchange(const transport::Message& message) {
  switch (static_cast<ExchangeType>(message.type)) {
    case ExchangeType::edge_open:
      return read_as<exchange_wire::EdgeOpen, EdgeOpen>(message, Bulk::allowed);
    case ExchangeType::edge_open_ack:
      return read_as<exchange_wire::EdgeOpenAck, EdgeOpenAck>(message, Bulk::none);
    case ExchangeType::offer:
      return read_as<exchange_wire::Offer, Offer>(message, Bulk::allowed);
    case ExchangeType::answer:
      return read_as<exchange_wire::Answer, Answer>(message, Bulk::allowed);
    case ExchangeType::busy:
      return read_as<exchange_wire::Busy, Busy>(message, Bulk::none);
    case ExchangeType::resume:
      return read_as<exchange_wire::Resume, Resume>(message, Bulk::none);
    case ExchangeType::edge_reset:
      return read_as<exchange_wire::EdgeReset, EdgeReset>(message, Bulk::none);
    case ExchangeType::edge_close:
      return read_as<exchange_wire::EdgeClose, EdgeClose>(message, Bulk::none);
  }
  return bad("message type " + std::to_string(message.type) + " is unknown");
}

Result<ExchangeMessage> decode_refused(std::uint16_t type, ByteView body) {
  // Only a message with an attachment can be refused for it.
  return decode_exchange({type, to_bytes(body), share(Bytes(1))});
}

}  // namespace starling::gossip
