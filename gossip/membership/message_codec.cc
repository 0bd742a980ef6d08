#include "gossip/membership/message_codec.h"

// clang-format off: the first of the two adds what headers of Cap'n Proto need to compile.
#include "transport/capnp_message.h"
#include "gossip/membership/messages.capnp.h"
// clang-format on

#include "node/base/check.h"

#include <string>
#include <utility>

namespace starling::gossip {
namespace {

namespace wire = membership_wire;
using transport::data_of;
using transport::read_capnp;
using transport::view_of;
using transport::write_capnp;

// More than fit into a body of 16 KiB, so the byte bound is what bites first.
constexpr unsigned kMaxStatements = 256;
// What split() puts into one message. The question for all that is announced fits into one, too.
constexpr unsigned kMaxNames = kMaxFactsBytes / kFactNameBytes;

std::unexpected<Error> bad_message(std::string detail) {
  return fail(Errc::bad_message, Doing::reading_message, std::move(detail));
}

Result<NodeId> read_id(::capnp::Data::Reader data) {
  const auto id = NodeId::from(view_of(data));
  if (!id) return bad_message("an id of " + std::to_string(data.size()) + " bytes");
  return *id;
}

transport::Message pack(MembershipType type, Bytes body) {
  STARLING_CHECK_OP(body.size(), <=, kMaxMembershipBody);
  return {static_cast<std::uint16_t>(type), std::move(body), nullptr};
}

// ---- writing

transport::Message write(const Heartbeat& m) {
  return pack(MembershipType::heartbeat, write_capnp<wire::Heartbeat>([&](auto out) {
                out.setSeq(m.seq);
                out.setUnneeded(m.unneeded);
                out.setView(m.view);
              }));
}

transport::Message write(const HeartbeatAck& m) {
  return pack(MembershipType::heartbeat_ack, write_capnp<wire::HeartbeatAck>([&](auto out) {
                out.setSeq(m.seq);
                out.setUnneeded(m.unneeded);
              }));
}

transport::Message write(const ProbeRequest& m) {
  return pack(MembershipType::probe_request, write_capnp<wire::ProbeRequest>([&](auto out) {
                out.setNonce(m.nonce);
                out.setSubject(data_of(m.subject.view()));
              }));
}

transport::Message write(const ProbeReply& m) {
  return pack(MembershipType::probe_reply, write_capnp<wire::ProbeReply>([&](auto out) {
                out.setNonce(m.nonce);
                out.setSubject(data_of(m.subject.view()));
                out.setVerdict(static_cast<std::uint8_t>(m.verdict));
              }));
}

void write_names(const std::vector<FactName>& names, ::capnp::List<wire::FactName>::Builder out) {
  for (unsigned i = 0; i < out.size(); ++i) {
    out[i].setSubject(names[i].subject);
    out[i].setVersion(names[i].version << 1 | (names[i].kind == FactName::Kind::report ? 1U : 0U));
  }
}

transport::Message write(const Facts& m) {
  return pack(MembershipType::facts, write_capnp<wire::Facts>([&](auto out) {
                auto records = out.initRecords(static_cast<unsigned>(m.records.size()));
                for (unsigned i = 0; i < records.size(); ++i) {
                  const Bytes bytes = encode_record(m.records[i].record);
                  records[i].setRecord(data_of(bytes));
                  records[i].setAgeS(m.records[i].age_s);
                }
                auto accusations = out.initAccusations(static_cast<unsigned>(m.accusations.size()));
                for (unsigned i = 0; i < accusations.size(); ++i) {
                  const Bytes bytes = encode_accusation(m.accusations[i]);
                  accusations.set(i, data_of(bytes));
                }
                auto reports = out.initReports(static_cast<unsigned>(m.reports.size()));
                for (unsigned i = 0; i < reports.size(); ++i) {
                  const Bytes bytes = encode_report(m.reports[i]);
                  reports.set(i, data_of(bytes));
                }
                out.setAnswers(m.answers);
                if (m.more_after) out.setMoreAfter(data_of(m.more_after->view()));
                write_names(m.has, out.initHas(static_cast<unsigned>(m.has.size())));
                write_names(m.wants, out.initWants(static_cast<unsigned>(m.wants.size())));
              }));
}

transport::Message write(const Digest& m) {
  return pack(MembershipType::digest, write_capnp<wire::Digest>([&](auto out) {
                auto buckets = out.initBuckets(kBuckets);
                for (unsigned i = 0; i < kBuckets; ++i) buckets.set(i, m.buckets[i]);
                out.setWantsReply(m.wants_reply);
              }));
}

transport::Message write(const BucketRequest& m) {
  Bytes bits(kBuckets / 8);
  for (std::size_t i = 0; i < kBuckets; ++i)
    if (m.buckets[i]) bits[i / 8] |= std::byte{1} << (i % 8);
  return pack(MembershipType::bucket_request, write_capnp<wire::BucketRequest>([&](auto out) {
                out.setNonce(m.nonce);
                out.setBuckets(data_of(bits));
                out.setAfter(data_of(m.after.view()));
              }));
}

// ---- reading

Result<MembershipMessage> read_probe_request(wire::ProbeRequest::Reader in) {
  TRY(const auto subject, read_id(in.getSubject()));
  return ProbeRequest{in.getNonce(), subject};
}

Result<MembershipMessage> read_probe_reply(wire::ProbeReply::Reader in) {
  TRY(const auto subject, read_id(in.getSubject()));
  const auto verdict = in.getVerdict();
  if (verdict < 1 || verdict > 3)
    return bad_message("a probe reply with verdict " + std::to_string(verdict));
  return ProbeReply{in.getNonce(), subject, static_cast<ProbeVerdict>(verdict)};
}

Result<FactName> read_name(wire::FactName::Reader in) {
  // Incarnations begin with one.
  if (in.getVersion() == 0) return bad_message("a name of no statement");
  return FactName{in.getSubject(),
                  (in.getVersion() & 1) != 0 ? FactName::Kind::report : FactName::Kind::record,
                  in.getVersion() >> 1};
}

Result<void> read_names(::capnp::List<wire::FactName>::Reader in, std::vector<FactName>& names) {
  for (const auto each : in) {
    TRY(const FactName name, read_name(each));
    names.push_back(name);
  }
  return {};
}

Result<MembershipMessage> read_facts(wire::Facts::Reader in) {
  // Each list is fetched once: the traversal limit counts every time.
  const auto records = in.getRecords();
  const auto accusations = in.getAccusations();
  const auto reports = in.getReports();
  const auto has = in.getHas();
  const auto wants = in.getWants();
  if (records.size() > kMaxStatements || accusations.size() > kMaxStatements ||
      reports.size() > kMaxStatements || has.size() > kMaxNames || wants.size() > kMaxNames)
    return fail(Errc::too_many, Doing::reading_message, "more statements than fit into a message");
  Facts facts;
  for (const auto entry : records) {
    TRY(auto record, parse_record(view_of(entry.getRecord())));
    facts.records.push_back({std::move(record), entry.getAgeS()});
  }
  for (const auto entry : accusations) {
    TRY(auto accusation, parse_accusation(view_of(entry)));
    facts.accusations.push_back(accusation);
  }
  for (const auto entry : reports) {
    TRY(auto report, parse_report(view_of(entry)));
    facts.reports.push_back(report);
  }
  TRY_VOID(read_names(has, facts.has));
  TRY_VOID(read_names(wants, facts.wants));
  facts.answers = in.getAnswers();
  if (const auto more = in.getMoreAfter(); more.size() != 0) {
    TRY(const auto after, read_id(more));
    facts.more_after = after;
  }
  return facts;
}

Result<MembershipMessage> read_digest(wire::Digest::Reader in) {
  const auto buckets = in.getBuckets();
  if (buckets.size() != kBuckets)
    return bad_message("a digest of " + std::to_string(buckets.size()) + " buckets");
  Digest digest;
  for (unsigned i = 0; i < kBuckets; ++i) digest.buckets[i] = buckets[i];
  digest.wants_reply = in.getWantsReply();
  return digest;
}

Result<MembershipMessage> read_bucket_request(wire::BucketRequest::Reader in) {
  BucketRequest request;
  request.nonce = in.getNonce();
  if (request.nonce == 0) return bad_message("a bucket request without nonce");
  const auto bits = view_of(in.getBuckets());
  if (bits.size() != kBuckets / 8) return bad_message("a bucket request without its buckets");
  for (std::size_t i = 0; i < kBuckets; ++i)
    request.buckets[i] = (bits[i / 8] & (std::byte{1} << (i % 8))) != std::byte{0};
  TRY(request.after, read_id(in.getAfter()));
  return request;
}

}  // namespace

transport::Message encode(const MembershipMessage& message) {
  return std::visit([](const auto& content) { return write(content); }, message);
}

Result<MembershipMessage> decode_membership(const transport::Message& message) {
  if (message.attachment) return bad_message("a membership message with an attachment");
  const auto read = [&]<class Schema>(auto copy) {
    return read_capnp<Schema, MembershipMessage>(message.body, kMaxMembershipBody, copy);
  };
  switch (static_cast<MembershipType>(message.type)) {
    case MembershipType::heartbeat:
      return read.template operator()<wire::Heartbeat>([](auto in) -> Result<MembershipMessage> {
        return Heartbeat{in.getSeq(), in.getUnneeded(), in.getView()};
      });
    case MembershipType::heartbeat_ack:
      return read.template operator()<wire::HeartbeatAck>([](auto in) -> Result<MembershipMessage> {
        return HeartbeatAck{in.getSeq(), in.getUnneeded()};
      });
    case MembershipType::probe_request:
      return read.template operator()<wire::ProbeRequest>(read_probe_request);
    case MembershipType::probe_reply:
      return read.template operator()<wire::ProbeReply>(read_probe_reply);
    case MembershipType::facts:
      return read.template operator()<wire::Facts>(read_facts);
    case MembershipType::digest:
      return read.template operator()<wire::Digest>(read_digest);
    case MembershipType::bucket_request:
      return read.template operator()<wire::BucketRequest>(read_bucket_request);
  }
  return bad_message("membership message of unknown type " + std::to_string(message.type));
}

}  // namespace starling::gossip
