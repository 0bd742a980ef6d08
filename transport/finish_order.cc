#include "transport/finish_order.h"

#include "transport/base64.h"
#include "transport/identity.h"

#include <cstdint>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::string_view kOrderWord = "starling-finish ";
constexpr std::uint8_t kOrderVersion = 1;
constexpr std::size_t kOrderBytes = 1 + 32 + 32 + 64;
static_assert(kOrderWord.size() + (kOrderBytes + 2) / 3 * 4 < kMaxFinishOrderText);

}  // namespace

FinishOrder order_finish(const SwarmId& swarm, const Hash& settings, const Signer& admin) {
  return {swarm, settings, admin.sign(kFinishOrderDomain, ordered_part(swarm, settings))};
}

bool signed_by(const NodeId& admin, const FinishOrder& order) {
  return Ed25519Verifier{}.verify(admin, kFinishOrderDomain,
                                  ordered_part(order.swarm, order.settings),
                                  order.signature) == Verdict::valid;
}

std::string print_finish_order(const FinishOrder& order) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.write(kOrderVersion);
  writer.append(order.swarm.view());
  writer.append(order.settings.view());
  writer.append(order.signature.view());
  return std::string(kOrderWord) + encode_base64(bytes) + "\n";
}

Result<FinishOrder> parse_finish_order(std::string_view text) {
  const auto corrupt = [](std::string what) {
    return fail(Errc::corrupt, Doing::reading_file,
                std::move(what) + "; `starling key finish` prints one");
  };
  if (text.size() > kMaxFinishOrderText)
    return fail(Errc::too_large, Doing::reading_file,
                "an order to finish is one line of at most " + std::to_string(kMaxFinishOrderText) +
                    " characters, and this has more");
  if (!text.starts_with(kOrderWord)) return corrupt("this is no order to finish");
  text.remove_prefix(kOrderWord.size());
  const auto bytes = decode_base64(text);
  if (!bytes) return corrupt("the order to finish is no base64");
  if (bytes->size() != kOrderBytes)
    return corrupt("the order to finish has " + std::to_string(bytes->size()) + " bytes and not " +
                   std::to_string(kOrderBytes));
  ByteReader reader(*bytes);
  if (reader.read<std::uint8_t>() != kOrderVersion)
    return corrupt("the order to finish has a version other than 1");
  return FinishOrder{*SwarmId::from(*reader.take(32)), *Hash::from(*reader.take(32)),
                     *Signature::from(*reader.take(64))};
}

}  // namespace starling::transport
