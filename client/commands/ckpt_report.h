// Report of a checkpoint's contents and defects, in any supported format, for `fsdpctl ckpt inspect` and
// `verify`.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "proto/fsdpd/v1/checkpoint.pb.h"

namespace fsdpd {

// With `verify`, reads all data and compares its checksums if the format has them; otherwise reads metadata
// only. Returns NOT_FOUND if there is no checkpoint, DATA_LOSS if it is unreadable, CANCELLED once
// `stopped()` is true, and the operating system's error if the checkpoint cannot be read now.
absl::StatusOr<v1::CheckpointReport> MakeReport(const std::string& directory, bool verify,
                                                const std::function<bool()>& stopped);

// `text` as valid UTF-8, which proto strings require: escapes non-ASCII bytes if `text` is not UTF-8.
std::string ToUtf8(const std::string& text);

// Number of threads that read a checkpoint in parallel.
int CkptThreads();

}  // namespace fsdpd
