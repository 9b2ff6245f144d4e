#include "base/rank/log_gap.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "base/text.h"

namespace fsdpd {
namespace {

constexpr absl::string_view kBegin = "[fsdpd-agent: ";
constexpr absl::string_view kLines = " lines (";

}  // namespace

std::string LogGapNotice(int64_t bytes, int64_t lines, int64_t max_bytes) {
  return absl::StrCat(kBegin, lines < 0 ? "lines (" : absl::StrCat(lines, kLines), bytes,
                      " bytes) are gone here: of a rank's log the newest ", HumanBytes(max_bytes),
                      " are kept]");
}

int64_t LinesOfLogGap(absl::string_view notice) {
  int64_t lines = 0;
  if (!absl::ConsumePrefix(&notice, kBegin)) return 0;
  const size_t end = notice.find(kLines);
  return absl::SimpleAtoi(notice.substr(0, end), &lines) ? lines : 0;
}

}  // namespace fsdpd
