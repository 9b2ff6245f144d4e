#include "coordinator/api/page_token.h"

#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <utility>

#include "base/check.h"
#include "base/fnv1a.h"

namespace fsdpd {
namespace {

// Prefixes of tokens for jobs and events, without and with a fingerprint. Older releases know only "1/" and
// "events/".
constexpr char kJobs[] = "1/", kMarkedJobs[] = "2/", kEvents[] = "events/", kMarkedEvents[] = "events2/";

std::string Encode(absl::string_view plain, absl::string_view marked, absl::string_view mark,
                   absl::string_view place) {
  return absl::WebSafeBase64Escape(mark.empty() ? absl::StrCat(plain, place)
                                                : absl::StrCat(marked, mark, "/", place));
}

absl::Status NoToken() {
  return absl::InvalidArgumentError(
      "is not a token of this call; pass next_page_token of the previous page unchanged");
}

absl::StatusOr<std::string> Decode(absl::string_view plain, absl::string_view marked, absl::string_view mark,
                                   const std::string& token) {
  std::string text;
  if (!absl::WebSafeBase64Unescape(token, &text)) return NoToken();
  absl::string_view rest = text, of;
  if (absl::ConsumePrefix(&rest, marked)) {
    const size_t end = rest.find('/');
    if (end == absl::string_view::npos) return NoToken();
    of = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  } else if (!absl::ConsumePrefix(&rest, plain)) {
    return NoToken();
  }
  if (of != mark)
    return absl::InvalidArgumentError(
        "was issued for another order_by; pass the same one as for the previous page");
  return std::string(rest);
}

}  // namespace

// The line break keeps the tokens of releases that had a filter before it.
std::string ListMark(absl::string_view order_by) {
  return order_by.empty() ? "" : absl::StrCat(absl::Hex(Fnv1a(absl::StrCat("\n", order_by))));
}

std::string EncodePageToken(const JobCursor& cursor, absl::string_view mark) {
  return Encode(kJobs, kMarkedJobs, mark, absl::StrCat(cursor.unix_nanos, "/", cursor.id));
}

absl::StatusOr<JobCursor> DecodePageToken(const std::string& token, absl::string_view mark) {
  FSDPD_ASSIGN_OR_RETURN(const std::string place, Decode(kJobs, kMarkedJobs, mark, token));
  JobCursor cursor;
  const size_t end = place.find('/');
  if (end == std::string::npos || !absl::SimpleAtoi(place.substr(0, end), &cursor.unix_nanos))
    return NoToken();
  cursor.id = place.substr(end + 1);
  return cursor;
}

std::string EncodeEventToken(int64_t cursor, absl::string_view mark) {
  return Encode(kEvents, kMarkedEvents, mark, absl::StrCat(cursor));
}

absl::StatusOr<int64_t> DecodeEventToken(const std::string& token, absl::string_view mark) {
  FSDPD_ASSIGN_OR_RETURN(const std::string place, Decode(kEvents, kMarkedEvents, mark, token));
  int64_t cursor = 0;
  return absl::SimpleAtoi(place, &cursor) && cursor >= 0 ? absl::StatusOr<int64_t>(cursor) : NoToken();
}

}  // namespace fsdpd
