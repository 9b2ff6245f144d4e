#include "coordinator/request/list_order.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>

#include "base/spec_text/located_violation.h"
#include "base/text.h"
#include "coordinator/request/errors.h"

namespace fsdpd {

absl::StatusOr<ListOrder> ParseListOrder(absl::string_view text, const std::vector<std::string>& fields,
                                         ListOrder by_default) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r\n\v\f"), absl::SkipEmpty());
  // An error at a word: `before`, the word in quotes, `after`.
  const auto refuse = [&](absl::string_view word, absl::string_view before, absl::string_view after) {
    constexpr size_t kMaxShownBytes = 40;
    return BadField("order_by", absl::StrCat("at offset ", word.data() - text.data(), ": ", before, "'",
                                             Escaped(CutText(word, kMaxShownBytes)), "'", after));
  };
  if (words.empty()) return by_default;
  const auto found = std::find(fields.begin(), fields.end(), words[0]);
  if (found == fields.end())
    return refuse(words[0], "unknown field ", absl::StrCat("; the fields are ", absl::StrJoin(fields, ", ")));
  ListOrder order;
  order.field = static_cast<size_t>(found - fields.begin());
  if (words.size() == 1) return order;
  order.descending = absl::EqualsIgnoreCase(words[1], "desc");
  if (!order.descending && !absl::EqualsIgnoreCase(words[1], "asc"))
    return refuse(words[1], "", " is neither asc nor desc");
  if (words.size() > 2) return refuse(words[2], "unexpected ", "; lists are ordered by one field");
  return order;
}

absl::Status RejectFilter(absl::string_view filter) {
  if (filter.empty()) return absl::OkStatus();
  return BadField("filter",
                  "is not supported after release 0.1; use the other fields of the request, such as states "
                  "and selector, or select from the response (fsdpctl --state, -l, -o jsonpath)");
}

}  // namespace fsdpd
