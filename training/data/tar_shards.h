// Tar shards: WebDataset samples, or an ImageFolder tree packed as it is.
#pragma once

#include "node/base/log.h"
#include "node/base/result.h"
#include "training/data/byte_source.h"
#include "training/data/dataset.h"

#include <memory>
#include <string>
#include <vector>

namespace starling::training {

// Opens shards by reading every member's header once.
//
// Rule:    WebDataset, where any member ends in `.cls`: members in a row with the same name up to
//          the first dot of the base name are one sample, an image and its class as a number.
//          Otherwise class folders, sorted bytewise, which may have folders of their own. A
//          `train`, `val`, `valid`, `validation` or `test` says which part lies in it (a `test`
//          beside a `val` is left for later); the class is the first folder below that (or below
//          the top, without parts) in which members differ.
//          Other members and names that begin with a dot are passed over, and so are images above
//          the classes. Either part may come out null, not both.
// Errors:  data_failed naming the shard: damaged or truncated archive, no sample in any shard, a
//          class that is no number.
// Cost:    one 512-byte read per member, one more per `.cls`, told by OpeningProgress; 32 bytes a
//          sample in memory; one file descriptor per shard.
[[nodiscard]] Result<DataSets> open_tar_shards(std::vector<std::unique_ptr<ByteSource>> shards,
                                               const std::string& name, Log& log,
                                               const Clock& clock = SteadyClock());

}  // namespace starling::training
