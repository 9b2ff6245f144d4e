// Checksums of a checkpoint's files, including `.metadata`, stored in an additional file `.fsdpd_sums`.
//
// A separate file does not affect torch's readers, which open only what `.metadata` names. torch.save's own
// checksums, which the records have too, cover neither `.metadata` nor the framing of tensor data. The
// algorithm is CRC-32, as in zip, so that a file's checksum can be combined from its tensors' (Crc32Joined)
// and every byte is read only once.
//
// Text format: "fsdpd sums 1", one line "CRC32 BYTES NAME" per file, and finally "CRC32 end" over the
// preceding lines.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>

namespace fsdpd {

inline constexpr char kDcpSumsName[] = ".fsdpd_sums";

struct DcpSum {
  int64_t bytes = 0;
  uint32_t crc32 = 0;
};

using DcpSums = std::map<std::string, DcpSum>;  // By name.

std::string SumsText(const DcpSums& sums);
absl::StatusOr<DcpSums> ParseSums(const std::string& text);  // DATA_LOSS if it was modified.

}  // namespace fsdpd
