#include "fsdp/checkpoint/dcp/dcp_sums.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include <vector>

#include "fsdp/checkpoint/format/crc32.h"

namespace fsdpd {
namespace {

constexpr char kTitle[] = "fsdpd sums 1\n";

std::string EndOf(const std::string& lines) {
  return absl::StrFormat("%08x end\n", Crc32(lines.data(), static_cast<int64_t>(lines.size())));
}

}  // namespace

std::string SumsText(const DcpSums& sums) {
  std::string text = kTitle;
  for (const auto& [name, sum] : sums)
    absl::StrAppendFormat(&text, "%08x %d %s\n", sum.crc32, sum.bytes, name);
  return text + EndOf(text);
}

absl::StatusOr<DcpSums> ParseSums(const std::string& text) {
  const absl::Status bad = absl::DataLossError("checksum file is corrupt");
  constexpr size_t kEndBytes = sizeof("01234567 end\n") - 1;
  if (text.size() < sizeof(kTitle) - 1 + kEndBytes || text.compare(0, sizeof(kTitle) - 1, kTitle) != 0)
    return bad;
  const std::string lines = text.substr(0, text.size() - kEndBytes);
  if (text.substr(lines.size()) != EndOf(lines)) return bad;
  DcpSums sums;
  for (absl::string_view line : absl::StrSplit(lines.substr(sizeof(kTitle) - 1), '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    DcpSum sum;
    if (words.size() != 3 || !absl::SimpleHexAtoi(words[0], &sum.crc32) ||
        !absl::SimpleAtoi(words[1], &sum.bytes)) {
      return bad;
    }
    sums[std::string(words[2])] = sum;
  }
  return sums;
}

}  // namespace fsdpd
