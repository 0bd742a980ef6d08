// CIFAR-10's binary form: records of one label byte and 3,072 pixel bytes.
#pragma once

#include "node/base/result.h"
#include "training/data/dataset.h"

namespace starling::training {

// The set in a folder (or in its `cifar-10-batches-bin`): every `*train*.bin` and
// `data_batch*.bin` is for training, every `*test*.bin` for validation, in bytewise order.
//
// Errors:  data_failed naming the file: no whole number of records, a label above 9.
// Cost:    reads the files once to check the labels; keeps nothing but file descriptors.
[[nodiscard]] Result<DataSets> open_cifar10(const DataSpec& spec);

}  // namespace starling::training
