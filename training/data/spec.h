// What `--data` and `--val` mean: a text becomes a checked description of a data set. No file is
// opened here.
#pragma once

#include "node/base/result.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace starling::training {

enum class DataKind : std::uint8_t {
  idx,        // MNIST's format, plain or gzip: a folder with images and labels
  cifar10,    // CIFAR-10's binary records: a folder of .bin files
  folder,     // class folders of images, or a folder that holds only tar shards
  tar,        // tar shards, WebDataset samples or class folders
  packed,     // one file that `starling data pack` made
  synthetic,  // made up, learnable, the same on every machine
};

// Shape of the synthetic data set. Raising `noise` makes it harder: at 1 the patterns drown.
struct SyntheticOptions {
  std::uint32_t classes = 10;
  std::uint32_t size = 32;  // pixels a side
  std::uint32_t channels = 3;
  std::uint32_t train = 50'000;
  std::uint32_t val = 2'000;
  float noise = 0.25F;
};

// One parsed SPEC. A value; says nothing about whether its files exist.
struct DataSpec {
  DataKind kind = DataKind::synthetic;
  std::string text;                          // as the user wrote it, for messages
  std::vector<std::filesystem::path> paths;  // one folder, or the shards in order
  SyntheticOptions synthetic;
};

// At most this many shards come out of one `{a..b}`: a typo must not fill the memory.
inline constexpr std::size_t kMaxShards = 100'000;

// The meaning of a SPEC: `fashion-mnist`, `idx:DIR`, `cifar10:DIR`, `synthetic` (or
// `synthetic:classes=10,size=32,channels=3,train=50000,val=2000,noise=0.25`), a folder, tar shards
// (`x-{000..012}.tar`, several separated by commas), `packed:FILE`.
//
// Errors:  bad_config with the text, what is wrong and what would be right.
// Thread:  any; pure.
[[nodiscard]] Result<DataSpec> parse_data_spec(std::string_view text);

}  // namespace starling::training
