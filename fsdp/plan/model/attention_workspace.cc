#include "fsdp/plan/model/attention_workspace.h"

#include <algorithm>

namespace fsdpd {
namespace {

constexpr int64_t kFp32Bytes = 4;

int64_t RoundUp(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// Width factor of key and value gradients.
int64_t RepeatedKeys(const Shape& s) { return s.key < s.query ? 2 * s.query : 0; }

}  // namespace

int64_t QuerySumBytes(const Shape& s, int64_t sequences, int64_t rows) {
  constexpr int64_t kMultiprocessors = 132;  // H100 and H200.
  constexpr int64_t kHeadStep = 32;          // Head size is padded to a multiple of this.
  const int64_t heads = sequences * s.heads;
  const int64_t sums = s.ordered_attention ? (kMultiprocessors + heads - 1) / heads : 1;
  return rows * s.heads * (sums * RoundUp(s.query / s.heads, kHeadStep) + 1) * kFp32Bytes;
}

int64_t DocumentsAttentionBytes(const Shape& s) {
  const int64_t of_one = QuerySumBytes(s, /*sequences=*/1, s.tokens + kDocumentPaddingRows);
  const int64_t of_more = QuerySumBytes(s, /*sequences=*/2, MaxDocumentRows(s.tokens));
  return std::max(of_one, of_more) + s.tokens * s.heads * kFp32Bytes +
         s.Bytes(s.query + RepeatedKeys(s) + 2 * (s.query + 2 * s.key));
}

int64_t OrderedAttentionBytes(const Shape& s) {
  constexpr int64_t kRowStep = 128;  // Sequence length is padded to a multiple of this.
  const int64_t samples = s.tokens / s.sequence;
  return QuerySumBytes(s, samples, samples * RoundUp(s.sequence, kRowStep)) +
         s.Bytes(2 * s.query + RepeatedKeys(s) + 2 * s.key);
}

}  // namespace fsdpd
