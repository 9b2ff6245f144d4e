// How a micro-batch's tokens fall into documents, which do not see each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdpd {

struct Documents {
  // With which tokens they begin: ascending numbers of the micro-batch's tokens, row after row, every row's
  // first among them. Empty: each row is one document.
  std::vector<int64_t> starts = {};
  // int32: the same and, behind them, how many tokens there are, for kernels that take all documents at once.
  // Where the tokens are; undefined where no kernel reads it.
  at::Tensor bounds = {};

  bool empty() const { return starts.empty(); }
};

// Documents in a row, and their tokens.
struct DocumentGroup {
  size_t first = 0;
  int64_t documents = 0;
  int64_t begin = 0;
  int64_t tokens = 0;
  int64_t longest = 0;  // Of one document.
};

// All of a micro-batch of so many tokens, in order: as many at a time as its plan has room for
// (MostDocumentRows).
std::vector<DocumentGroup> GroupsOf(const std::vector<int64_t>& starts, int64_t tokens);

}  // namespace fsdpd
