// Packed documents: how the tokens of a micro-batch are divided into documents that do not attend to each
// other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdpd {

struct Documents {
  // Index of the first token of each document: ascending indices into the micro-batch's tokens, row by row,
  // including the first of every row. Empty: each row is one document.
  std::vector<int64_t> starts = {};
  // int32: starts followed by the number of tokens (cumulative sequence lengths), on the device of the
  // tokens, for kernels that process all documents together; undefined if no kernel reads it.
  at::Tensor bounds = {};

  bool empty() const { return starts.empty(); }
};

// Consecutive documents, and their tokens.
struct DocumentGroup {
  size_t first = 0;
  int64_t documents = 0;
  int64_t begin = 0;
  int64_t tokens = 0;
  int64_t longest = 0;  // Tokens of the longest document.
};

// Divides a micro-batch of `tokens` tokens into groups, in order, each as large as the plan allows
// (MaxDocumentRows).
std::vector<DocumentGroup> GroupsOf(const std::vector<int64_t>& starts, int64_t tokens);

}  // namespace fsdpd
