#include "fsdp/checkpoint/names/tied_copy.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <string>

#include "base/check.h"

namespace fsdpd {

absl::Status CheckTiedCopy(const TensorReader& source, ParamMatch* match) {
  if (match->tied_copy < 0) return absl::OkStatus();
  const size_t of_head = static_cast<size_t>(match->tied_copy), of_embedding = match->tensors[0];
  const StoredTensor& head = source.tensors()[of_head];
  const StoredTensor& embedding = source.tensors()[of_embedding];
  bool equal = head.shape == embedding.shape && head.type == embedding.type;
  const int64_t piece = (8 << 20) / embedding.type->bytes;
  std::string left, right;
  for (int64_t begin = 0; equal && begin < embedding.numbers(); begin += piece) {
    const int64_t count = std::min(piece, embedding.numbers() - begin);
    left.resize(count * embedding.type->bytes);
    right.resize(left.size());
    FSDPD_RETURN_IF_ERROR(source.ReadRun(of_embedding, begin, count, left.data()));
    FSDPD_RETURN_IF_ERROR(source.ReadRun(of_head, begin, count, right.data()));
    equal = left == right;
  }
  if (equal) return absl::OkStatus();
  match->violations.Add(head.name, absl::StrCat("differs from ", embedding.name,
                                                ", but the model ties them; set tie_word_embeddings "
                                                "(tied_embeddings in a spec) to false to load both"));
  return absl::OkStatus();
}

}  // namespace fsdpd
