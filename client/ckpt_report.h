// What is in a checkpoint, of whichever format, and what is wrong with it, as `fsdpctl ckpt inspect` and
// `verify` say it.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "proto/fsdpd/v1/checkpoint.pb.h"

namespace fsdpd {

// `verify`: all of it is read, and compared where it has checksums; CANCELLED when `stopped`. Else what is in
// it and what shows without that. NOT_FOUND where there is none, DATA_LOSS where it cannot be read at all,
// and what a machine answers that cannot read it now.
absl::StatusOr<v1::CheckpointReport> ReportOf(const std::string& directory, bool verify,
                                              const std::function<bool()>& stopped);

// As a message can hold it: with other bytes than UTF-8, those of ASCII as they are.
std::string ShownText(const std::string& text);

// That read at once.
int CkptThreads();

}  // namespace fsdpd
