// Checksums of a checkpoint's files, `.metadata` among them, in a file of ours beside them: `.fsdpd_sums`.
//
// Why a file: torch's readers open what `.metadata` names and nothing else, so it does not disturb them; and
// torch.save's own checksums, which our records have too, cover neither `.metadata` nor what stands around a
// tensor's numbers. Why CRC-32, as zip has it: a file's sum is then made of its tensors' (Crc32Joined), and
// every byte is read once.
//
// A text: "fsdpd sums 1", a line "CRC32 BYTES NAME" for each file, and last "CRC32 end" over the lines
// before.
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
absl::StatusOr<DcpSums> ParseSums(const std::string& text);  // DATA_LOSS where it is not as it was written.

}  // namespace fsdpd
