// Export formats of step records for TensorBoard and Weights & Biases. Pure functions from a step to bytes.
//
// A TensorBoard event file is a sequence of records: length, CRC of the length, data, CRC of the data. The
// data is TensorFlow's message `Event`. This code writes only five of its fields, unchanged since 2015, and
// so it does not need TensorFlow's protos. The W&B history is one line of JSON per step, with `_step`,
// `_timestamp` and `_runtime` in addition to the metrics, like W&B's own export.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

#include "proto/fsdpd/v1/steps.pb.h"

namespace fsdpd {

// CRC-32C (Castagnoli) of event files, before masking.
uint32_t Crc32c(absl::string_view bytes);

// The first record of an event file, which holds the format version.
std::string TensorBoardBegin(double unix_seconds);
std::string TensorBoardStep(const v1::StepRecord& record);

// Ends with a newline. `begin_unix_nanos`: the start time of _runtime.
std::string WandbStep(const v1::StepRecord& record, int64_t begin_unix_nanos);

}  // namespace fsdpd
