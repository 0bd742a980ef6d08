// A sequence of events for one Join among four peers, any of which may lie: what a sponsor brings
// is put in place only as its manifest says, byte for byte; nothing is counted twice or kept that
// is wrong; no outcome is waited for that nobody brings; a silent transfer ends; and whatever was
// said before, two honest members then make this node a member.
//
// An input: two bytes choose the node (plan_from), then comes one byte an event (Script::event)
// with its arguments. The seeds are written by hand that way, each named after what it reaches,
// but for lost-outcome, which the fuzzer found.
#include "tests/fuzz/join_bench.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace {

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using std::chrono::milliseconds;

class Script : Bench {
 public:
  explicit Script(ByteView input) : Script(ByteReader(input)) {}

  void run() {
    for (int events = 0; events < 250 && input_.left() > 0; ++events) event();
    be_silent();
    be_honest();
  }

 private:
  explicit Script(ByteReader input) : Bench(read_plan(input)), input_(input) {}
  static Plan read_plan(ByteReader& input) {
    const auto first = input.read<std::uint8_t>().value_or(0);
    return plan_from(first, input.read<std::uint8_t>().value_or(0));
  }
  std::uint8_t byte() { return input_.read<std::uint8_t>().value_or(0); }
  Remote& remote() { return remotes_[byte() % kPeers]; }

  void event() {
    switch (byte() % 16) {
      case 0:
      case 1: {
        const std::size_t seed = byte();
        return open(remote(), seed % 8 < 6 ? std::optional(endpoint(seed % 8)) : std::nullopt);
      }
      case 2:
        return close(remote());
      case 3:
      case 4: {
        Remote& from = remote();
        return deliver(from, encode(hello()));
      }
      case 5:
        return advance(milliseconds(5) * (1 << (byte() % 13)));
      case 6:
        return settle(byte() % 32);
      case 7:
        return disturb();
      case 8:
        return settle(1);
      case 9: {
        if (pending_.empty()) return;
        const std::size_t index = byte() % pending_.size();
        return answer(index, byte());
      }
      case 10:
        return change_facts();
      case 11: {
        Remote& from = remote();
        return deliver(from, encode(lie()));
      }
      case 12: {
        Remote& from = remote();
        return deliver(from, encode(false_manifest(from)));
      }
      case 13:
        return deliver(remote(), raw());
      case 14:
        return own();
      default:
        return invite_guest();
    }
  }

  // A true message out of its turn, twice, never, or changed on its way.
  void disturb() {
    if (queue_.empty()) return;
    const std::size_t index = byte() % queue_.size();
    const auto item = queue_[index];
    switch (byte() % 4) {
      case 0:
        return deliver_at(index);
      case 1:
        return deliver(*item.first, encode(item.second));
      case 2:
        queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(index));
        return;
      default:
        return deliver(*item.first, changed(encode(item.second)));
    }
  }
  transport::Message changed(transport::Message wire) {
    const std::size_t place = byte();
    const auto bits = static_cast<std::byte>(byte());
    Bytes attached = to_bytes(wire.attached());
    Bytes& bytes = place % 2 == 0 || attached.empty() ? wire.body : attached;
    if (bits == std::byte{0}) bytes.resize(bytes.size() / 2);
    if (!bytes.empty()) bytes[place * 8 % bytes.size()] ^= bits;
    if (wire.attachment) wire.attachment = share(std::move(attached));
    return wire;
  }

  Hello hello() {
    constexpr std::array<double, 8> kAges = {500, 500, 500, 700, 0, 50, 5000, 1e9};
    const auto a = byte();
    const auto b = byte();
    const auto c = byte();
    Hello hello;
    hello.settings = a % 8 < 6 ? join_.settings() : settings_named(a % 8 - 5);
    hello.age = kAges[a / 8 % 8];
    hello.phase = b % 8 < 5 ? RunPhase::training : static_cast<RunPhase>(1 + b / 8 % 5);
    if (hello.phase == RunPhase::finished) hello.certificate = kCertificate;
    hello.alive = c % 4 == 3 ? ~0ULL : c % 4;
    hello.samples = c / 4 % 4 == 3 ? ~0ULL : c / 4 % 4;
    hello.load = c / 16 % 4;
    if (c / 64 == 3) hello.forced = {"lr", "model"};
    return hello;
  }

  Hash some_id() {
    const auto which = byte() % 4;
    if (which == 1 && shadow_) return shadow_->manifest.id();
    if (which == 2) return served_;
    return which == 3 ? kCertificate : Hash{};
  }
  BootstrapMessage lie() {
    const auto kind = byte() % 7;
    const Hash id = some_id();
    const std::uint32_t number = byte();
    switch (kind) {
      case 0:
        return StateRequest{number < 250 ? join_.settings().fingerprint() : kCertificate, id};
      case 1:
        return StateRefused{id, static_cast<RefusalReason>(1 + number % 5)};
      case 2:
        return ChunkRequest{id, number % 8};
      case 3:
        return StateDone{id};
      case 4:
        return DialBackRequest{static_cast<std::uint16_t>(number)};
      case 5:
        return DialBackReply{7700, number % 2 == 0, "10.0.0.9", "made up"};
      default:
        return Chunk{id, number % 8, some_bytes(number % 8, number / 8)};
    }
  }
  SharedBytes some_bytes(std::size_t index, std::size_t how) {
    const auto& chunks = model_of(plan_.bytes).chunks;
    const SharedBytes truth = chunks[index % chunks.size()];
    switch (how % 4) {
      case 0:
        return truth;
      case 1:
        return model_of(300).chunks[0];
      case 2:
        return nullptr;
      default:
        return share(Bytes(truth->size()));
    }
  }
  StateManifest false_manifest(const Remote& from) {
    const auto what = byte();
    StateManifest message{
        (what & 64U ? snapshot_of(300, join_.settings().fingerprint(), 600) : truth(from))
            ->manifest,
        1,
        {},
        {}};
    Manifest& manifest = message.manifest;
    if (what & 1U) manifest.age = byte() * 10.0;
    if (what & 2U) manifest.total_bytes += byte();
    if (what & 4U) manifest.step = ~0ULL;
    if (what & 8U) manifest.chunk_hashes.back().bytes[0] ^= std::byte{1};
    if (what & 16U) message.donors = {node_named(0), node_named(1), node_named(2), node_named(3)};
    if (what & 32U) message.run_age_ms = ~0ULL;
    if (what & 128U) manifest.chunk_hashes.resize(byte() % 8U, kCertificate);
    return message;
  }
  transport::Message raw() {
    transport::Message wire;
    wire.type = static_cast<std::uint16_t>(0x0400U | byte());
    wire.body = some_input();
    Bytes attached = some_input();
    if (!attached.empty()) wire.attachment = share(std::move(attached));
    return wire;
  }
  Bytes some_input() {
    const std::size_t wanted = byte();
    const auto taken = input_.take(std::min(wanted, input_.left()));
    return taken ? to_bytes(*taken) : Bytes();
  }

  void change_facts() {
    const auto kind = byte() % 8;
    const auto value = byte();
    if (kind == 0 && trains_) facts_.age += value * 10.0;
    if (kind == 1) {
      facts_.alive.clear();
      for (std::size_t i = 0; i < kPeers; ++i)
        if ((value >> i) & 1U) facts_.alive.push_back(node_named(i));
      facts_.alive_same.reset();
      if (value >= 64) facts_.alive_same = value / 64U - 1;
    }
    if (kind == 2) facts_.max_state_bytes = value % 4 == 0 ? 0 : plan_.bytes;
    if (kind == 3) facts_.samples = value;
    if (kind == 4 && trains_ && !ends()) facts_.phase = RunPhase::finishing;
    if (kind == 5 && trains_ && facts_.phase == RunPhase::finishing) {
      facts_.phase = RunPhase::finished;
      facts_.certificate = kCertificate;
    }
    if (kind == 6 && value > 250) facts_.phase = RunPhase::leaving;
    if (kind == 7) facts_.addresses = {{node_named(value % kPeers), endpoint(value / 4 % 8)}};
    update();
  }

  void own() {
    Remote& peer = remote();
    switch (byte() % 5) {
      case 0:
        return trains_ && !ends() ? take(join_.rejoin(now_)) : void();
      case 1:
        return take(join_.on_isolated(now_));
      case 2:
        if (peer.up) asked_to_dial_.insert(peer.id);
        return take(join_.ask_dial_back(now_, peer.id, 7700));
      case 3:
        return add_addresses();
      default:
        return begin();
    }
  }

  void invite_guest() {
    if (guest_ || !remotes_[kGuest].up) return;
    guest_.emplace(join_.settings().fingerprint(), plan_.bytes, plan_.parts.options.transfer);
    guest_takes(guest_->start(now_, kSelf));
  }

  // ---- how it ends

  // Nobody says anything any more: a transfer ends, and nothing is kept for those who do not come.
  void be_silent() {
    queue_.clear();
    const auto failures = failures_;
    const auto lasts = [&] { return join_.phase() == JoinPhase::loading && failures_ == failures; };
    for (int passed = 0; passed < 100 && lasts(); ++passed) advance(hours(1));
    STARLING_CHECK(!lasts());
    advance(hours(1));
    if (!gave_up_) STARLING_CHECK_OP(snapshots_.size(), ==, awaited<InstallState>());
  }

  // Two members that tell the truth make this node one, too.
  void be_honest() {
    for (auto& peer : remotes_) close(peer);
    settle(256);
    if (ends() || gave_up_) return;
    facts_.alive.clear();
    facts_.alive_same.reset();
    facts_.max_state_bytes = plan_.bytes;
    update();
    begin();
    for (auto* peer : {&remotes_[0], &remotes_[1]}) {
      peer->store.drop();
      open(*peer, std::nullopt);
      peer->said = Hello{};
      peer->said.settings = join_.settings();
      peer->said.age = 900;
      peer->said.phase = RunPhase::training;
      post(*peer, peer->said);
    }
    const auto arrived = [&] { return join_.phase() == JoinPhase::member || gave_up_; };
    for (int passed = 0; passed < 90 && !arrived(); ++passed) {
      settle(256);
      advance(std::chrono::seconds(1));
    }
    STARLING_CHECK(arrived());
  }

  ByteReader input_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Script(std::as_bytes(std::span(data, size))).run();
  return 0;
}
