// Full verification of a checkpoint: reads every byte and reports all violations.
//
// A checkpoint written by fsdpd is compared with the checksums of its files. If one differs, and for all
// other checkpoints, each record is compared with torch.save's own checksums, which locates the damage.
// Records without checksums (torch can be configured to omit them) are counted, not reported. Each record
// must also have the expected type and shape; overlapping records, which are violations already, are not
// examined.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "fsdp/checkpoint/dcp/dcp_contents.h"

namespace fsdpd {

struct DcpVerdict {
  DcpContents contents;
  DcpViolations violations;  // Those of the contents first.
  // Records that no checksum covers: neither a file checksum nor one of their own.
  int64_t unsummed_records = 0;
};

// Subset of the files to read, so that several readers can divide the work: those whose index modulo `of` is
// `part`.
struct DcpShare {
  int64_t part = 0;
  int64_t of = 1;
};

// Reads files with `threads` threads. `stopped` is polled, and cancels with CANCELLED. Other errors: those of
// LoadContents(), including read errors that are not a defect of the checkpoint.
absl::StatusOr<DcpVerdict> VerifyDcp(
    const std::string& directory, int threads, const std::function<bool()>& stopped = [] { return false; },
    DcpShare share = {});

}  // namespace fsdpd
