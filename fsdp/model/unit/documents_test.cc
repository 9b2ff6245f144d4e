#include "fsdp/model/unit/documents.h"

#include <gtest/gtest.h>

#include <numeric>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

void ExpectAllWithinBound(const std::vector<int64_t>& starts, int64_t tokens) {
  size_t documents = 0;
  int64_t end = 0;
  for (const DocumentGroup& group : GroupsOf(starts, tokens)) {
    EXPECT_EQ(group.first, documents);
    EXPECT_EQ(group.begin, end);
    EXPECT_EQ(group.begin, starts[group.first]);
    EXPECT_LE(group.tokens + group.documents * kDocumentPaddingRows, MaxDocumentRows(tokens));
    documents += group.documents;
    end += group.tokens;
  }
  EXPECT_EQ(documents, starts.size());
  EXPECT_EQ(end, tokens);
}

TEST(Documents, GroupsFewDocumentsTogether) {
  const std::vector<DocumentGroup> groups = GroupsOf({0, 1000, 1024, 4000}, 8192);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].documents, 4);
  EXPECT_EQ(groups[0].tokens, 8192);
  EXPECT_EQ(groups[0].longest, 4192);
}

TEST(Documents, SplitsOneTokenDocuments) {
  std::vector<int64_t> starts(8192);
  std::iota(starts.begin(), starts.end(), 0);
  ExpectAllWithinBound(starts, 8192);
  EXPECT_EQ(GroupsOf(starts, 8192).front().documents, (2 * 8192 + 128) / 129);
  EXPECT_EQ(GroupsOf(starts, 8192).front().longest, 1);
  starts.resize(4096);  // The second half is one document.
  ExpectAllWithinBound(starts, 8192);
}

TEST(Documents, AcceptsOneToken) {
  ExpectAllWithinBound({0}, 1);
  ExpectAllWithinBound({0}, 100);
  ExpectAllWithinBound({0, 1, 2}, 200);
}

}  // namespace
}  // namespace fsdpd
