#include "node/base/ids.h"

namespace starling {

namespace {

constexpr std::array<std::string_view, 64> kQualities{
    "amber",  "ashen",  "bold",  "brave",  "brisk",  "bright", "calm",  "clear", "cloudy", "coral",
    "crisp",  "dapper", "dusky", "eager",  "early",  "fair",   "fleet", "foggy", "gentle", "glad",
    "golden", "grand",  "green", "hardy",  "hazel",  "icy",    "jolly", "keen",  "kind",   "late",
    "lively", "lucky",  "lunar", "mellow", "merry",  "mild",   "misty", "mossy", "nimble", "noble",
    "olive",  "pale",   "plain", "plum",   "proud",  "quick",  "quiet", "rapid", "rosy",   "royal",
    "rusty",  "sandy",  "sharp", "shy",    "silver", "sleek",  "solar", "stout", "sunny",  "swift",
    "tidy",   "vivid",  "warm",  "wild"};

constexpr std::array<std::string_view, 64> kAnimals{
    "auk",    "badger", "bear",   "beaver", "bison",   "bittern", "boar",    "bunting",
    "condor", "coot",   "crake",  "crane",  "crow",    "curlew",  "deer",    "dipper",
    "dove",   "duck",   "dunlin", "eagle",  "egret",   "eider",   "elk",     "falcon",
    "finch",  "fox",    "gannet", "goose",  "grebe",   "grouse",  "gull",    "hare",
    "hawk",   "heron",  "hoopoe", "ibis",   "jackdaw", "jay",     "kestrel", "kite",
    "lark",   "linnet", "lynx",   "marten", "martin",  "merlin",  "mole",    "otter",
    "owl",    "petrel", "pipit",  "plover", "puffin",  "quail",   "raven",   "robin",
    "seal",   "shrike", "snipe",  "stork",  "swan",    "tern",    "wagtail", "wren"};

}  // namespace

std::string default_name(const NodeId& id) {
  const auto index = [&id](std::size_t at) {
    return std::to_integer<std::size_t>(id.bytes[at] & std::byte{63});
  };
  std::string name{kQualities[index(30)]};
  name += '-';
  name += kAnimals[index(31)];
  return name;
}

}  // namespace starling
