// The table of fundamental patterns (source, section 7.4 and 7.5) and the psk modifiers (section
// 9).
#include "transport/noise.h"

#include <algorithm>
#include <array>
#include <span>

namespace starling::transport::noise {
namespace {

using enum Token;

struct Row {
  std::string_view name;
  bool initiator_known;
  bool responder_known;
  // Messages separated by a comma, tokens by a space.
  std::string_view messages;
};

constexpr std::array kRows = {
    Row{"N", false, true, "e es"},
    Row{"K", true, true, "e es ss"},
    Row{"X", false, true, "e es s ss"},
    Row{"NN", false, false, "e,e ee"},
    Row{"NK", false, true, "e es,e ee"},
    Row{"NX", false, false, "e,e ee s es"},
    Row{"XN", false, false, "e,e ee,s se"},
    Row{"XK", false, true, "e es,e ee,s se"},
    Row{"XX", false, false, "e,e ee s es,s se"},
    Row{"KN", true, false, "e,e ee se"},
    Row{"KK", true, true, "e es ss,e ee se"},
    Row{"KX", true, false, "e,e ee se s es"},
    Row{"IN", false, false, "e s,e ee se"},
    Row{"IK", false, true, "e es s ss,e ee se"},
    Row{"IX", false, false, "e s,e ee se s es"},
};

Token token_of(std::string_view text) {
  if (text == "e") return e;
  if (text == "s") return s;
  if (text == "ee") return ee;
  if (text == "es") return es;
  if (text == "se") return se;
  return ss;
}

std::vector<std::vector<Token>> tokens_of(std::string_view text) {
  std::vector<std::vector<Token>> messages(1);
  std::size_t start = 0;
  while (start <= text.size()) {
    const auto end = std::min(text.find_first_of(" ,", start), text.size());
    messages.back().push_back(token_of(text.substr(start, end - start)));
    if (end < text.size() && text[end] == ',') messages.emplace_back();
    start = end + 1;
  }
  return messages;
}

}  // namespace

Result<Pattern> Pattern::parse(std::string_view name) {
  const auto unsupported = [name] {
    return fail(Errc::unsupported, Doing::handshaking, "Noise pattern " + std::string(name));
  };
  const auto base = name.substr(0, name.find_first_not_of("NKXI"));
  auto modifiers = name.substr(base.size());
  const Row* row = nullptr;
  for (const auto& candidate : kRows)
    if (candidate.name == base) row = &candidate;
  if (row == nullptr) return unsupported();

  Pattern pattern;
  pattern.initiator_known = row->initiator_known;
  pattern.responder_known = row->responder_known;
  pattern.messages = tokens_of(row->messages);
  while (!modifiers.empty()) {
    if (pattern.psks > 0) {
      if (modifiers.front() != '+') return unsupported();
      modifiers.remove_prefix(1);
    }
    if (!modifiers.starts_with("psk") || modifiers.size() < 4) return unsupported();
    const auto position = static_cast<std::size_t>(modifiers[3] - '0');
    modifiers.remove_prefix(4);
    if (position > pattern.messages.size()) return unsupported();
    // psk0 opens the first message, psk<n> ends message n.
    if (position == 0)
      pattern.messages.front().insert(pattern.messages.front().begin(), psk);
    else
      pattern.messages[position - 1].push_back(psk);
    ++pattern.psks;
  }
  return pattern;
}

}  // namespace starling::transport::noise
