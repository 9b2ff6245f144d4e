#include "coordinator/page_token.h"

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

namespace fsdpd {

std::string EncodePageToken(const JobCursor& cursor) {
  return absl::WebSafeBase64Escape(absl::StrCat("1/", cursor.create_unix_nanos, "/", cursor.id));
}

absl::StatusOr<JobCursor> DecodePageToken(const std::string& token) {
  std::string text;
  JobCursor cursor;
  if (absl::WebSafeBase64Unescape(token, &text)) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('/', 2));
    if (parts.size() == 3 && parts[0] == "1" && absl::SimpleAtoi(parts[1], &cursor.create_unix_nanos)) {
      cursor.id = parts[2];
      return cursor;
    }
  }
  return absl::InvalidArgumentError(
      "is not a token of this server; pass next_page_token of the page before unchanged");
}

}  // namespace fsdpd
