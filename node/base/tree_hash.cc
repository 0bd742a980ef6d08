#include "node/base/tree_hash.h"

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace starling {

namespace {

constexpr std::size_t kLanes = TreeHash::kPart / TreeHash::kLeaf;
constexpr std::size_t kBlockBytes = 128;
static_assert(TreeHash::kLeaf % kBlockBytes == 0,
              "the last block of a leaf in a lane is a full one");

// One 64-bit word of each lane. Passed by reference only: by value its place depends on the target.
using Words [[gnu::vector_size(8 * kLanes)]] = std::uint64_t;

// RFC 7693, sections 2.6 and 2.7.
constexpr std::array<std::uint64_t, 8> kIv{
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr std::size_t kRounds = 12;
constexpr std::array<std::array<std::uint8_t, 16>, 10> kSigma{{
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}};
// Digest of 32 bytes, no key, a tree of BLAKE2's own of one node (section 2.5).
constexpr std::uint64_t kParameters = 0x0101'0020;

#define STARLING_INLINE [[gnu::always_inline]] inline

STARLING_INLINE void rotate_right(Words& words, int bits) {
  words = (words >> bits) | (words << (64 - bits));
}

using Places = std::array<std::size_t, 4>;

// Half of section 3.1 on four words of v: `d_right` and `b_right` are its rotations.
STARLING_INLINE void half_mix(Words* v, const Places& places, const Words& word, int d_right,
                              int b_right) {
  auto& [a, b, c, d] = places;
  v[a] += v[b] + word;
  v[d] ^= v[a];
  rotate_right(v[d], d_right);
  v[c] += v[d];
  v[b] ^= v[c];
  rotate_right(v[b], b_right);
}

STARLING_INLINE void mix(Words* v, const Places& places, const Words& x, const Words& y) {
  half_mix(v, places, x, 32, 24);
  half_mix(v, places, y, 16, 63);
}

// Section 3.2.
STARLING_INLINE void mix_round(Words* v, const Words* m, const std::array<std::uint8_t, 16>& s) {
  mix(v, {0, 4, 8, 12}, m[s[0]], m[s[1]]);
  mix(v, {1, 5, 9, 13}, m[s[2]], m[s[3]]);
  mix(v, {2, 6, 10, 14}, m[s[4]], m[s[5]]);
  mix(v, {3, 7, 11, 15}, m[s[6]], m[s[7]]);
  mix(v, {0, 5, 10, 15}, m[s[8]], m[s[9]]);
  mix(v, {1, 6, 11, 12}, m[s[10]], m[s[11]]);
  mix(v, {2, 7, 8, 13}, m[s[12]], m[s[13]]);
  mix(v, {3, 4, 9, 14}, m[s[14]], m[s[15]]);
}

// Row k was eight words of lane k and becomes word k of all lanes: pairs change places, then twos,
// then fours.
STARLING_INLINE void transpose(Words* rows) {
  Words a[kLanes];
  Words b[kLanes];
  for (std::size_t k = 0; k < kLanes; k += 2) {
    a[k] = __builtin_shufflevector(rows[k], rows[k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    a[k + 1] = __builtin_shufflevector(rows[k], rows[k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (const std::size_t k : {0U, 1U, 4U, 5U}) {
    b[k] = __builtin_shufflevector(a[k], a[k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    b[k + 2] = __builtin_shufflevector(a[k], a[k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (std::size_t k = 0; k < kLanes / 2; ++k) {
    rows[k] = __builtin_shufflevector(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[k + 4] = __builtin_shufflevector(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// The next 128 bytes of each lane, word by word.
STARLING_INLINE void load_block(const std::byte* const* lanes, std::size_t at, Words* m) {
  for (std::size_t half = 0; half < 2; ++half) {
    Words* const rows = m + half * kLanes;
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      std::memcpy(&rows[lane], lanes[lane] + at + half * sizeof(Words), sizeof(Words));
    transpose(rows);
  }
}

using LaneHashes = std::array<std::array<std::uint64_t, 4>, kLanes>;

// BLAKE2b-256 of `size` bytes in each lane, a multiple of 128.
STARLING_WIDE void hash_lanes(const std::byte* const* lanes, std::size_t size, LaneHashes* hashes) {
  Words h[8];
  for (std::size_t k = 0; k < 8; ++k) h[k] = Words{} + kIv[k];
  h[0] ^= Words{} + kParameters;
  for (std::size_t at = 0; at < size; at += kBlockBytes) {
    Words m[16];
    load_block(lanes, at, m);
    Words v[16];
    for (std::size_t k = 0; k < 8; ++k) {
      v[k] = h[k];
      v[k + 8] = Words{} + kIv[k];
    }
    const std::uint64_t hashed = at + kBlockBytes;
    v[12] ^= Words{} + hashed;
    if (hashed == size) v[14] = ~v[14];
#pragma GCC unroll 12
    for (std::size_t round = 0; round < kRounds; ++round)
      mix_round(v, m, kSigma[round % kSigma.size()]);
    for (std::size_t k = 0; k < 8; ++k) h[k] ^= v[k] ^ v[k + 8];
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    for (std::size_t k = 0; k < 4; ++k) (*hashes)[lane][k] = h[k][lane];
}

#undef STARLING_INLINE

}  // namespace

TreeHash::TreeHash(ByteView bytes) : bytes_(bytes), leaves_((bytes.size() + kLeaf - 1) / kLeaf) {}

std::size_t TreeHash::parts() const { return (leaves_.size() + kLanes - 1) / kLanes; }

void TreeHash::hash_part(std::size_t part) {
  STARLING_CHECK_OP(part, <, parts());
  const std::size_t first = part * kLanes;
  const std::size_t end = std::min(first + kLanes, leaves_.size());
  const std::size_t whole = std::min(end, bytes_.size() / kLeaf);
  std::array<const std::byte*, kLanes> lanes{};
  // Lanes that are left over repeat the last leaf: they cost nothing.
  for (std::size_t k = 0; k < kLanes && whole > first; ++k)
    lanes[k] = bytes_.data() + std::min(first + k, whole - 1) * kLeaf;
  if (whole > first) {
    LaneHashes hashes;
    hash_lanes(lanes.data(), kLeaf, &hashes);
    static_assert(sizeof(hashes[0]) == sizeof(leaves_[0].bytes));
    for (std::size_t leaf = first; leaf < whole; ++leaf)
      std::memcpy(leaves_[leaf].bytes.data(), hashes[leaf - first].data(), sizeof(hashes[0]));
  }
  if (whole < end) leaves_[whole] = hash_of(bytes_.subspan(whole * kLeaf));
}

Hash TreeHash::root() const {
  Hasher hasher;
  hasher.add("starling/tree/1").add(std::uint64_t{bytes_.size()});
  for (const Hash& leaf : leaves_) hasher.add(leaf.view());
  return hasher.finish();
}

Hash tree_hash_of(ByteView bytes) {
  TreeHash tree(bytes);
  for (std::size_t part = 0; part < tree.parts(); ++part) tree.hash_part(part);
  return tree.root();
}

}  // namespace starling
