#include "fsdp/model/unit/documents.h"

#include <algorithm>

#include "base/check.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

std::vector<DocumentGroup> GroupsOf(const std::vector<int64_t>& starts, int64_t tokens) {
  std::vector<DocumentGroup> groups;
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t count = (d + 1 < starts.size() ? starts[d + 1] : tokens) - starts[d];
    FSDPD_CHECK(count > 0);
    const auto rows = [](const DocumentGroup& group) {
      return group.tokens + group.documents * kDocumentPaddingRows;
    };
    if (groups.empty() || rows(groups.back()) + count + kDocumentPaddingRows > MaxDocumentRows(tokens)) {
      DocumentGroup group;
      group.first = d;
      group.begin = starts[d];
      groups.push_back(group);
    }
    DocumentGroup& group = groups.back();
    ++group.documents;
    group.tokens += count;
    group.longest = std::max(group.longest, count);
  }
  return groups;
}

}  // namespace fsdpd
