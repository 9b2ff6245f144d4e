// Reads all of a checkpoint and tells all that is wrong with it.
//
// A checkpoint of ours is compared byte by byte with the sums of its files; where one differs, and in a
// checkpoint of somebody else's, each record is compared with torch.save's own checksums, which says what is
// damaged. Those are not there where torch was told to leave them out, which is no fault, and counted. Every
// record is also asked for the type and shape that it should have; one that lies over another, which is a
// fault already, is not looked into.
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
  DcpFaults faults;  // Those of the contents first.
  // Whose bytes nothing vouches for: the checkpoint has no sums that do, and they no checksums of their own.
  int64_t unsummed_records = 0;
};

// Which files are read, so that several readers can share the work: those whose number in the index leaves
// `part` when it is divided by `of`.
struct DcpShare {
  int64_t part = 0;
  int64_t of = 1;
};

// Files are read by this many threads. `stopped` is asked now and then, and ends it early with CANCELLED.
// Errors are LoadContents()'s otherwise, those of reading among them that are no fault of the checkpoint's.
absl::StatusOr<DcpVerdict> VerifyDcp(
    const std::string& directory, int threads, const std::function<bool()>& stopped = [] { return false; },
    DcpShare share = {});

}  // namespace fsdpd
