#include "tests/tidy/rules.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <string_view>

namespace starling::tidy {

namespace {

using Names = std::vector<std::string_view>;

// An outside library and the files of a layer that may see it all the same.
struct Outside {
  Names prefixes;  // of what stands between <>
  Names excepted;  // ends of file paths
};

struct Layer {
  std::string_view folder;
  Names may_include;             // folders or files, as prefixes of what stands between ""
  std::vector<Outside> outside;  // what it must not see
};

const Names kTorch{"torch/", "ATen/", "c10/", "cuda", "nccl"};
const Names kAsio{"asio/", "asio.hpp", "boost/asio"};
const Names kCapnp{"capnp/", "kj/"};
const Names kCryptography{"sodium", "openssl/"};
const Names kCodecs{"_codec.cc"};
const Names kDrivers{"/driver.h", "/driver.cc"};

// Where a file lies in several of these, the longest folder counts.
const std::vector<Layer>& layers() {
  static const Names kRoomTransport{"transport/message.h", "transport/capnp_message.h",
                                    "transport/capnp_compiler.h", "transport/limits.h"};
  static const auto room = [](std::string_view folder) {
    Names may{folder, "gossip/delta/", "node/base/"};
    may.insert(may.end(), kRoomTransport.begin(), kRoomTransport.end());
    return Layer{folder, may, {{kTorch, {}}, {kAsio, {}}, {kCryptography, {}}, {kCapnp, kCodecs}}};
  };
  static const std::vector<Layer> kLayers{
      {"node/base/",
       {"node/base/"},
       {{kTorch, {}},
        {kAsio, {}},
        {kCapnp, {}},
        {{"spdlog/", "fmt/"}, {}},
        {kCryptography, {"/hash.cc"}}}},
      {"transport/",
       {"transport/", "node/base/"},
       {{kTorch, {}},
        {{"openssl/"}, {"/aead.cc"}},
        {kCapnp, {"_codec.cc", "/capnp_message.h", "/capnp_compiler.h"}}}},
      {"gossip/delta/",
       {"gossip/delta/", "node/base/"},
       {{kTorch, {}}, {kAsio, {}}, {kCapnp, {}}, {kCryptography, {}}}},
      room("gossip/membership/"),
      room("gossip/exchange/"),
      room("gossip/consensus/"),
      {"gossip/baselines/",
       {"gossip/", "transport/", "node/base/"},
       {{kTorch, {}}, {kCapnp, kCodecs}, {kCryptography, {}}}},
      {"gossip/",
       {"gossip/", "transport/", "node/base/"},
       {{kTorch, {}}, {kAsio, kDrivers}, {kCapnp, kCodecs}, {kCryptography, {}}}},
      {"training/data/",
       {"training/data/", "node/base/"},
       {{kTorch, {}}, {kAsio, {}}, {kCapnp, {}}, {kCryptography, {}}}},
      {"training/",
       {"training/", "gossip/delta/", "node/base/"},
       {{kAsio, {}}, {kCapnp, {}}, {kCryptography, {}}}},
      {"bootstrap/",
       {"bootstrap/", "gossip/", "transport/", "node/base/"},
       {{kTorch, {}}, {kAsio, kDrivers}, {kCapnp, kCodecs}}},
      {"node/", {"node/", "transport/", "gossip/", "training/", "bootstrap/"}, {{kCapnp, {}}}},
  };
  return kLayers;
}

bool begins_with_any(std::string_view text, const Names& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

bool ends_with_any(std::string_view text, const Names& ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return text.ends_with(end); });
}

const Layer* layer_of(std::string_view path) {
  const Layer* best = nullptr;
  for (const Layer& layer : layers()) {
    if (!path.starts_with(layer.folder)) continue;
    if (best == nullptr || layer.folder.size() > best->folder.size()) best = &layer;
  }
  return best;
}

// The layer that a test mirrors: tests/gossip/delta/x.cc obeys gossip/delta/.
const Layer* mirrored_layer(std::string_view path) {
  constexpr std::string_view kTests = "tests/";
  constexpr std::string_view kBaseTests = "tests/base/";
  if (path.starts_with(kBaseTests)) return layer_of("node/base/");
  if (!path.starts_with(kTests)) return nullptr;
  return layer_of(path.substr(kTests.size()));
}

struct Include {
  bool quoted = false;
  std::string name;
};

std::optional<Include> include_of(const std::string& line) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::smatch match;
  if (line.find('#') == std::string::npos) return std::nullopt;
  if (!std::regex_search(line, match, pattern)) return std::nullopt;
  return Include{.quoted = match[1].str() == "\"", .name = match[2].str()};
}

// What is wrong with an include, or nothing.
std::string verdict(const Layer& layer, const std::string& path, const Include& include,
                    bool is_test) {
  if (include.name.ends_with(".capnp.h")) {
    return ends_with_any(path, kCodecs) || is_test
               ? ""
               : "; schemas are read in *_codec.cc only, which turn them into plain structs";
  }
  if (include.quoted) {
    if (begins_with_any(include.name, layer.may_include)) return "";
    // Fixtures: of any test folder, or of its own.
    const bool beside = include.name.find('/') == std::string::npos;
    if (is_test && (beside || include.name.starts_with("tests/"))) return "";
    std::string allowed;
    for (const std::string_view may : layer.may_include) {
      allowed += allowed.empty() ? "" : ", ";
      allowed += may;
    }
    return "; " + std::string(layer.folder) + " may include " + allowed;
  }
  for (const Outside& outside : layer.outside) {
    if (!begins_with_any(include.name, outside.prefixes)) continue;
    if (ends_with_any(path, outside.excepted)) continue;
    std::string text = "; " + std::string(layer.folder) + " must not see it";
    if (!outside.excepted.empty()) text += " outside *" + std::string(outside.excepted.front());
    return text;
  }
  return "";
}

}  // namespace

Findings check_layering(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!file.is_cpp()) continue;
    const bool is_test = file.path.starts_with("tests/");
    const Layer* layer = is_test ? mirrored_layer(file.path) : layer_of(file.path);
    if (layer == nullptr) continue;
    for (std::size_t i = 0; i < file.code.size(); ++i) {
      const std::optional<Include> include = include_of(file.code[i]);
      if (!include) continue;
      // Tests of protocol logic may run it over real sockets or check it against a library.
      if (is_test && !include->quoted && !begins_with_any(include->name, kTorch)) continue;
      const std::string wrong = verdict(*layer, file.path, *include, is_test);
      if (wrong.empty()) continue;
      findings.push_back({file.path, i + 1, "layering", "includes " + include->name + wrong});
    }
  }
  return findings;
}

}  // namespace starling::tidy
