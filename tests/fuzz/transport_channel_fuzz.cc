// A channel in the hands of an authenticated peer that sends any records: type, length (u16), body.
// Nothing may be reserved beyond the budget, and all of it must come back.
#include "transport/channel.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace {

class EvenAdmitter final : public starling::transport::Admitter {
 public:
  bool admit(std::uint16_t type, starling::ByteView, std::size_t) override { return type % 2 == 0; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::transport;
  TransferBudget budget(100'000);
  {
    ByteReader reader(std::as_bytes(std::span(data, size)));
    const auto first = reader.read<std::uint8_t>().value_or(0);
    Channel channel(first % 2 == 0 ? End::responder : End::initiator, budget);
    Message own;
    own.type = 0x0202;
    own.attachment = share(Bytes(1 + first * 4'000U));
    if (!channel.send(std::move(own))) std::abort();
    EvenAdmitter admitter;
    std::vector<ChannelEvent> events;
    TimePoint now{std::chrono::seconds(1)};
    while (const auto type = reader.read<std::uint8_t>()) {
      const auto length = reader.read<std::uint16_t>();
      if (!length) break;
      const auto body = reader.take(std::min<std::size_t>(*length, reader.left()));
      OpenedRecord record;
      record.type = static_cast<RecordType>(*type % (kLastRecordType + 1));
      record.body = *body;
      if (!channel.on_record(now, record, admitter, events)) break;
      (void)channel.next_record(now, 8'192);
      now += std::chrono::milliseconds(*type);
      channel.on_tick(now);
      if (budget.reserved() > 100'000 || channel.incoming_bytes() != budget.reserved())
        std::abort();
    }
    channel.say_bye({Errc::closed, Doing::stopping, ""}, Leave::after_messages);
    while (channel.next_record(now, 8'192)) {
    }
    if (!channel.bye_taken()) std::abort();
  }
  if (budget.reserved() != 0) std::abort();
  return 0;
}
