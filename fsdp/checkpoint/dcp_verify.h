// Reads all of a checkpoint and tells all that is wrong with it.
//
// A checkpoint of ours is compared byte by byte with the sums of its files; where one differs, and in a
// checkpoint of somebody else's, each record is compared with torch.save's own checksums, which says what is
// damaged. (Those are not there where torch was told to leave them out.) Every record is also asked for the
// type and shape that it should have.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_contents.h"

namespace fsdpd {

struct DcpVerdict {
  DcpContents contents;
  std::vector<DcpFault> faults;  // Those of the contents first.
  int64_t bytes_read = 0;
};

// Files are read by this many threads. `stopped` is asked now and then, and ends it early with CANCELLED.
// Errors are LoadContents()'s otherwise.
absl::StatusOr<DcpVerdict> VerifyDcp(
    const std::string& folder, int threads, const std::function<bool()>& stopped = [] { return false; });

}  // namespace fsdpd
