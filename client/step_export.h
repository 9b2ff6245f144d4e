// A job's steps in the forms of other tools. Pure: from a step to bytes.
//
// TensorBoard reads event files: records of length, its checksum, data and the data's, whose data is a
// message `Event` of TensorFlow. Of its fields these are four numbers and a text, and they have been the same
// since 2015: they are written here without TensorFlow's protos. W&B's history is a line of JSON a step, with
// `_step`, `_timestamp` and `_runtime` beside what was logged, as its own export has it.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

#include "proto/fsdpd/v1/steps.pb.h"

namespace fsdpd {

// CRC-32C (Castagnoli), as event files have it; not masked.
uint32_t Crc32c(absl::string_view bytes);

// What an event file begins with.
std::string TensorBoardBegin(double unix_seconds);
std::string TensorBoardStep(const v1::StepRecord& record);

// With a newline. `begin_unix_nanos`: from when _runtime counts.
std::string WandbStep(const v1::StepRecord& record, int64_t begin_unix_nanos);

}  // namespace fsdpd
